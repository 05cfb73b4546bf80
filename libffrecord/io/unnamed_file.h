#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord {

// A new file in a folder, without a name until it is given one: O_TMPFILE, or where the file system
// has none, a temporary name that does not end in .ffr and is removed by the destructor (of the
// process that made it, not of a forked child). Stays in its folder if the process changes its
// working directory or the folder is renamed.
//
// A temporary name says which host made it: .ffrecord-<host>-<random>.tmp, 16 hex digits each. One
// that a killed process of this host left is removed by the next file that may need such a name in
// that folder: living writers hold their file's lock (flock) as long as it has one. Locks may not
// reach other hosts; what one of them has left, or this one before it was booted, is removed once
// nothing was written to it for kForeignLeftoverAge, by the clock of the file system.
class UnnamedFile {
 public:
  static constexpr std::chrono::hours kForeignLeftoverAge{7 * 24};

  // Creates a file that Publish() will name `path`. Fails with kNotFound if the folder does not
  // exist, with kConflict if `path` does and `replace` is false, with kInvalidArgument if it cannot
  // name a file, with kDenied, or kIo.
  static Result<UnnamedFile> Create(const std::filesystem::path& path, bool replace);
  UnnamedFile(UnnamedFile&&) noexcept = default;
  UnnamedFile& operator=(UnnamedFile&&) noexcept = delete;
  ~UnnamedFile();

  int fd() const noexcept { return fd_.get(); }
  const std::filesystem::path& path() const noexcept { return path_; }

  // The same file, opened for direct writes in multiples of 4096; no descriptor where that is not
  // possible.
  UniqueFd OpenDirect() const;

  // Reserves room for `size_bytes` without changing the size. Fails with kIo (ENOSPC).
  Result<void> Reserve(std::uint64_t size_bytes);

  // Gives the file its name in one step, and syncs the folder. Fails with kConflict if the name
  // exists and `replace` was false. If only the sync fails, the name is there but may not survive
  // a crash.
  Result<void> Publish();

 private:
  UnnamedFile(const std::filesystem::path& path, bool replace);
  Result<void> Open();
  Result<void> CheckName() const;
  Result<void> OpenTemporary();
  int LinkTo(const std::string& name) const;
  int LinkOrRename();
  int RenameOver();
  int RenameWithoutReplacing(const std::string& name);
  Result<void> CheckRename();

  std::filesystem::path path_;
  std::string name_;
  std::string temporary_name_;  // In the folder; empty if the file has none.
  bool replace_ = false;
  HomeProcess home_;
  UniqueFd folder_;
  UniqueFd fd_;
};

}  // namespace ffrecord
