#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// A new file that appears under its name whole and durable, or not at all.
//
// Bytes are appended through a buffer to an unnamed file (O_TMPFILE; where the file system has
// none, a temporary name that does not end in .ffr). Publish() writes the rest, syncs, gives it its
// name, and syncs the folder. Destroyed before that, or killed, it leaves nothing. Only a kill
// while there is a temporary name, which each replacement has for an instant, leaves that name:
// .ffrecord-*.tmp in the same folder. The next replacement there by this host removes it. A failed
// write or sync poisons the file: it is never retried, and every later call fails with the first
// error. Thread-bound; needs an engine of its own, which it owns.
class AtomicFile {
 public:
  struct Options {
    bool replace = false;  // Publish over a file of that name.
    bool direct = false;   // Write with O_DIRECT where the file system allows it.
    std::uint64_t buffer_size_bytes = 1 << 20;  // Size of each write; a multiple of 4096.
    std::uint32_t buffers_in_flight = 4;
    std::uint64_t expected_size_bytes = 0;  // Reserved at once if known: ENOSPC comes early.
  };

  // `engine` null: MakeIoEngine. Fails with kConflict if `path` exists and `replace` is false,
  // with kNotFound if its folder does not exist, kDenied, or kIo.
  static Result<AtomicFile> Create(const std::filesystem::path& path, const Options& options,
                                   std::unique_ptr<IoEngine> engine = nullptr);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  // Copies `bytes` into the buffer and starts the writes that are full.
  Result<void> Append(std::span<const std::byte> bytes);
  Result<void> AppendZeros(std::uint64_t count_bytes);
  std::uint64_t size_bytes() const noexcept;

  // Overwrites bytes appended earlier, such as a header that was not known: waits for the writes
  // in flight. The range must lie below size_bytes().
  Result<void> WriteAt(std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Takes back what was appended from `size_bytes` on. Requires size_bytes <= size_bytes().
  Result<void> CutTo(std::uint64_t size_bytes);

  // For reading the file: complete once it is published.
  int fd() const noexcept;

  // Fails with kConflict if the name was created meanwhile (and `replace` is false). If only the
  // sync of the folder fails, it fails with kIo, and the file has its name but may lose it in a
  // crash.
  Result<void> Publish();

 private:
  struct Impl;
  explicit AtomicFile(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
