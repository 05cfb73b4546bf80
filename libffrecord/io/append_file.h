#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file_appender.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// An existing file that is extended in place, by this one writer: from Open() to the destructor it
// holds the file's exclusive lock (flock), as nothing else in the library does.
//
// Bytes below the file's old size are only read. A failed write or sync poisons the file, as with
// FileAppender. Destroyed, it cuts off what was appended after the last Commit(), so that an append
// that was given up leaves nothing behind. Thread-bound.
class AppendFile {
 public:
  // Fails with kConflict if another writer has the lock or the file was replaced meanwhile, with
  // kNotFound, with kInvalidArgument if it is not a regular file, with kDenied if it is read-only,
  // with kIo. `engine` null: MakeInlineEngine.
  static Result<AppendFile> Open(const std::filesystem::path& path,
                                 std::unique_ptr<IoEngine> engine);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();

  const std::filesystem::path& path() const noexcept { return path_; }
  // The size of the file when it was opened.
  std::uint64_t old_size_bytes() const noexcept { return old_size_bytes_; }
  // Fills all of `destination`. After BeginAt(), reads only bytes that were synced. Fails with kIo,
  // and with kCorruption if the file ends before.
  Result<void> Read(std::uint64_t offset_bytes, std::span<std::byte> destination);

  // Cuts the file to `size_bytes`, a multiple of 4096, durably if that removes anything. Append()
  // continues there. Call it once, before the first Append().
  Result<void> BeginAt(std::uint64_t size_bytes);

  Result<void> Append(std::span<const std::byte> bytes) { return appender_->Append(bytes); }
  Result<void> AppendZeros(std::uint64_t count) { return appender_->AppendZeros(count); }
  std::uint64_t size_bytes() const noexcept { return appender_->size_bytes(); }
  // Takes back what was appended from `size_bytes` on, which must not be below the last Commit().
  Result<void> CutTo(std::uint64_t size_bytes) { return appender_->CutTo(size_bytes); }

  // Writes all that was appended, and waits until it is durable. Fails with kConflict, and poisons
  // the file, if another program deleted, renamed or replaced the file, or wrote over it.
  Result<void> Sync();
  // Sync(), and keeps what was appended so far when the object is destroyed.
  Result<void> Commit();

 private:
  // Bytes below the last commit, as they were. Another program that writes over the file (`cp`)
  // ignores the lock, and changes them.
  struct Witness {
    std::uint64_t offset_bytes = 0;
    std::vector<std::byte> bytes;
  };

  AppendFile(const std::filesystem::path& path, UniqueFd fd, std::unique_ptr<IoEngine> engine);

  // Notes that all bytes below `size_bytes` are committed.
  Result<void> Keep(std::uint64_t size_bytes);
  bool IsUnchanged() const;
  Result<void> CheckIsThere();
  void CutOffUncommitted() noexcept;

  std::filesystem::path path_;
  std::filesystem::path absolute_path_;
  UniqueFd fd_;
  std::unique_ptr<IoEngine> engine_;  // Until the appender takes it.
  std::optional<FileAppender> appender_;
  std::uint64_t old_size_bytes_ = 0;
  std::uint64_t kept_size_bytes_ = 0;  // As of the last commit.
  std::vector<Witness> witnesses_;
  HomeProcess home_;
};

}  // namespace ffrecord
