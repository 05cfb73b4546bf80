#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// Appends bytes to an open file through large buffers, several writes in flight.
//
// A failed write or sync poisons it: nothing is ever retried, and every later call fails with the
// first error. Borrows the descriptor, which outlives it; owns the engine, which is its alone.
// Destroyed, it waits for what is in flight and forgets what is in its buffers. Thread-bound.
// In a forked child every call fails with kInvalidArgument: the file is the parent's.
class FileAppender {
 public:
  struct Options {
    std::uint64_t begin_bytes = 0;              // Where the first byte goes; a multiple of 4096.
    std::uint64_t buffer_size_bytes = 1 << 20;  // Size of each write; a multiple of 4096, to 1 GiB.
    std::uint32_t buffers_in_flight = 4;        // 1 to 1024.
  };

  // `path` is for messages. `direct_fd`, if there is one, is the same file with O_DIRECT; most
  // bytes are then written through it. `engine` null: MakeIoEngine with a `direct_fd`, else
  // MakeInlineEngine. Fails with kInvalidArgument if an option is out of range, with kIo.
  static Result<FileAppender> Make(const std::filesystem::path& path, int fd, UniqueFd direct_fd,
                                   const Options& options, std::unique_ptr<IoEngine> engine);
  FileAppender(FileAppender&&) noexcept;
  FileAppender& operator=(FileAppender&&) noexcept;
  ~FileAppender();

  // Copies `bytes` into the buffer and starts the writes that are full.
  Result<void> Append(std::span<const std::byte> bytes);
  Result<void> AppendZeros(std::uint64_t count_bytes);
  // Where the next byte goes.
  std::uint64_t size_bytes() const noexcept;

  // Overwrites bytes appended earlier, such as a header that was not known: waits for the writes
  // in flight. The range must lie between begin_bytes and size_bytes().
  Result<void> WriteAt(std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Takes back what was appended from `size_bytes` on, between begin_bytes and size_bytes(): the
  // file ends there, or a block before it if the rest is in the buffer again.
  Result<void> CutTo(std::uint64_t size_bytes);

  // Writes what is in the buffers and waits for all of it. With a `direct_fd` more may be appended
  // only if size_bytes() is then a multiple of 4096.
  Result<void> Flush();

  // Runs fdatasync on the flushed bytes. A failed sync is never retried.
  Result<void> Sync();

  // Fails the appender: keeps the first error, which every later call returns. For owners whose own
  // failure makes the file useless.
  Error Poison(Error error);
  Result<void> Usable() const;

 private:
  struct Impl;
  explicit FileAppender(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
