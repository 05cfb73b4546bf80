#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace ffrecord::test {

// While an object of this class lives, fsync and fdatasync block in this process, and so does all
// work that waits for them. Include it in one source of a program: it replaces the functions of
// libc. Syncs through an io_uring do not block. One object at a time.
class HeldSyncs {
 public:
  HeldSyncs() { is_held_ = true; }
  ~HeldSyncs() { Release(); }
  HeldSyncs(const HeldSyncs&) = delete;
  HeldSyncs& operator=(const HeldSyncs&) = delete;

  void Release() {
    is_held_ = false;
    is_held_.notify_all();
  }

  // Waits until a thread of the process waits in a sync.
  void AwaitSync() const {
    for (int count = waiting_count_; count == 0; count = waiting_count_) waiting_count_.wait(0);
  }

  static int Sync(long call, int fd) {
    ++waiting_count_;
    waiting_count_.notify_all();
    is_held_.wait(true);
    --waiting_count_;
    if (are_failing) {
      errno = EIO;
      return -1;
    }
    return static_cast<int>(::syscall(call, fd));
  }

  static inline std::atomic<bool> are_failing = false;  // With EIO, and nothing is synced.

 private:
  static inline std::atomic<bool> is_held_ = false;
  static inline std::atomic<int> waiting_count_ = 0;
};

}  // namespace ffrecord::test

extern "C" int fsync(int fd) { return ffrecord::test::HeldSyncs::Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return ffrecord::test::HeldSyncs::Sync(SYS_fdatasync, fd); }
