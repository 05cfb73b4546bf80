#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/io/unnamed_file.h"

namespace ffrecord {

// Bytes that do not fit in memory, in an unnamed file that disappears with this object.
// Thread-bound.
class ScratchFile {
 public:
  // In the folder of `path`, which is where the user has room for large files. Fails with
  // kNotFound, kDenied, or kIo.
  static Result<ScratchFile> Create(const std::filesystem::path& path);

  // Fails with kIo.
  Result<void> Append(std::span<const std::byte> bytes);
  // Forgets what was appended from `size_bytes` on. Requires size_bytes <= size_bytes().
  void CutTo(std::uint64_t size_bytes) noexcept { size_bytes_ = size_bytes; }
  // Requires the range to lie below size_bytes(). Fails with kIo.
  Result<void> ReadAt(std::uint64_t offset_bytes, std::span<std::byte> destination) const;
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  explicit ScratchFile(UnnamedFile file) noexcept : file_(std::move(file)) {}
  UnnamedFile file_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace ffrecord
