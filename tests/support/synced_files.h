#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace ffrecord::test {

// The files and folders that this process has synced by fsync or fdatasync, while one of it lives;
// one of them may be made to fail with EIO. To be included by one source of a program: it puts
// itself before the calls of libc. It does not see syncs of an io_uring. Thread-safe; one at a
// time.
class SyncedFiles {
 public:
  explicit SyncedFiles(const std::filesystem::path& fails = "")
      : fails_(fails.empty() ? fails : std::filesystem::weakly_canonical(fails)) {
    current_ = this;
  }
  ~SyncedFiles() { current_ = nullptr; }
  SyncedFiles(const SyncedFiles&) = delete;
  SyncedFiles& operator=(const SyncedFiles&) = delete;

  bool Contains(const std::filesystem::path& path) const {
    const std::lock_guard lock(mutex_);
    return paths_.contains(std::filesystem::weakly_canonical(path));
  }

  // Answers a call for `fd`.
  static int Sync(long call, int fd) {
    SyncedFiles* const current = current_;
    if (current != nullptr) {
      std::error_code error;
      auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
      if (path == current->fails_) {
        errno = EIO;
        return -1;
      }
      const std::lock_guard lock(current->mutex_);
      current->paths_.insert(std::move(path));
    }
    return static_cast<int>(::syscall(call, fd));
  }

 private:
  static inline SyncedFiles* current_ = nullptr;
  const std::filesystem::path fails_;
  mutable std::mutex mutex_;
  std::set<std::filesystem::path> paths_;
};

}  // namespace ffrecord::test

extern "C" int fsync(int fd) { return ffrecord::test::SyncedFiles::Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return ffrecord::test::SyncedFiles::Sync(SYS_fdatasync, fd); }
