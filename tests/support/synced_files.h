#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>

namespace ffrecord::test {

// The files and folders that this process has synced by fsync or fdatasync, while one of it lives.
// To be included by one source of a program: it puts itself before the calls of libc. What an
// io_uring syncs is not seen. Thread-safe; one at a time.
class SyncedFiles {
 public:
  SyncedFiles() { current_ = this; }
  ~SyncedFiles() { current_ = nullptr; }
  SyncedFiles(const SyncedFiles&) = delete;
  SyncedFiles& operator=(const SyncedFiles&) = delete;

  bool Contains(const std::filesystem::path& path) const {
    const std::lock_guard lock(mutex_);
    return paths_.contains(std::filesystem::weakly_canonical(path));
  }

  static void Note(int fd) {
    SyncedFiles* const current = current_;
    if (current == nullptr) return;
    std::error_code error;
    auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    const std::lock_guard lock(current->mutex_);
    current->paths_.insert(std::move(path));
  }

 private:
  static inline SyncedFiles* current_ = nullptr;
  mutable std::mutex mutex_;
  std::set<std::filesystem::path> paths_;
};

}  // namespace ffrecord::test

extern "C" int fsync(int fd) {
  ffrecord::test::SyncedFiles::Note(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  ffrecord::test::SyncedFiles::Note(fd);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
