#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/io/sigbus_guard.h"

namespace ffrecord {

// A read-only, shared mapping of a part of a file: no copy in any process.
//
// Reading a mapped file that was truncated would end the process with SIGBUS. Here the lost pages
// read as zeros instead, which every index rejects: a handler, installed at the first mapping and
// chained to the previous one, replaces each page that faults inside one of our mappings.
// Immutable, thread-safe, inherited by forked children.
class MappedFile {
 public:
  // Maps [offset_bytes, offset_bytes + size_bytes) of `fd`, which may be closed afterwards; any
  // alignment. Size 0 gives an empty mapping. Fails with kIo.
  static Result<MappedFile> Map(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes);

  // Maps several parts one behind the other. Each but the last has a size that is a multiple of a
  // page, or ends with its file; zeros then fill its last page. Every offset is a multiple of a
  // page, and no size is 0. Fails with kIo.
  struct Part {
    int fd;
    std::uint64_t offset_bytes;
    std::uint64_t size_bytes;
  };
  static Result<MappedFile> MapBehindEachOther(std::span<const Part> parts);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  // Whether some of these bytes stay zeros, because the file was truncated when they were read.
  bool has_lost() const noexcept { return guard_.has_lost(); }

 private:
  MappedFile() = default;
  void* address_ = nullptr;
  std::size_t mapped_size_bytes_ = 0;
  SigbusGuard guard_;
  std::span<const std::byte> bytes_;
};

}  // namespace ffrecord
