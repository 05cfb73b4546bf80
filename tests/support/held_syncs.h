#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace ffrecord::test {

// While an object of this class lives, fsync and fdatasync block in this process, and so does all
// work that waits for them. Include it in one source of a program: it replaces the functions of
// libc. Syncs through an io_uring do not block. One object at a time.
class HeldSyncs {
 public:
  HeldSyncs() : HeldSyncs("") {}
  // Only syncs of files and folders whose paths contain `part`.
  explicit HeldSyncs(std::string part) {
    part_ = std::move(part);
    is_reached_ = false;
    is_held_ = true;
  }
  ~HeldSyncs() { Release(); }
  HeldSyncs(const HeldSyncs&) = delete;
  HeldSyncs& operator=(const HeldSyncs&) = delete;

  void Release() {
    is_held_ = false;
    is_held_.notify_all();
  }

  // Whether one has blocked.
  bool is_reached() const { return is_reached_; }

  static int Sync(long call, int fd) {
    if (is_held_ && Matches(fd)) {
      is_reached_ = true;
      is_held_.wait(true);
    }
    if (are_failing) {
      errno = EIO;
      return -1;
    }
    return static_cast<int>(::syscall(call, fd));
  }

  static inline std::atomic<bool> are_failing = false;  // With EIO, and nothing is synced.

 private:
  static bool Matches(int fd) {
    if (part_.empty()) return true;
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    return path.string().find(part_) != std::string::npos;
  }

  static inline std::string part_;  // Changes while nothing is held.
  static inline std::atomic<bool> is_held_ = false, is_reached_ = false;
};

}  // namespace ffrecord::test

extern "C" int fsync(int fd) { return ffrecord::test::HeldSyncs::Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return ffrecord::test::HeldSyncs::Sync(SYS_fdatasync, fd); }
