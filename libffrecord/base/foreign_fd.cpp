#include "libffrecord/base/foreign_fd.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "libffrecord/base/home_process.h"
#include "libffrecord/base/quiet_signals.h"

namespace ffrecord {
namespace {

// So many descriptors may block at a time before those that do not have to wait too.
constexpr std::size_t kThreadsMax = 8;
// Then descriptors pile up; a process has a thousand by default.
constexpr std::size_t kWaitingMax = 128;

// Threads live while there is something to close: nobody pays for them who takes no descriptors.
class Closer {
 public:
  static Closer& Process() {
    static auto* const closer = new Closer;  // Leaked: a close may block beyond the end of main().
    return *closer;
  }

  void Close(int fd) noexcept {
    // A forked child has none of the threads, and only duplicates.
    if (!home_.is_here()) {
      ::close(fd);
      return;
    }
    const std::lock_guard lock(mutex_);
    waiting_.push_back(fd);
    waiting_count_ = waiting_.size();
    if (thread_count_ == kThreadsMax) return;
    try {
      const QuietSignals quiet;
      std::thread([this] { Run(); }).detach();
      ++thread_count_;
    } catch (const std::system_error&) {
      // No thread can be had: it stays open until one can.
    }
  }

  bool is_congested() const noexcept { return waiting_count_ >= kWaitingMax; }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const int fd = waiting_.back();
      waiting_.pop_back();
      waiting_count_ = waiting_.size();
      lock.unlock();
      ::close(fd);
      lock.lock();
    }
    --thread_count_;
  }

  const HomeProcess home_;
  std::mutex mutex_;
  std::vector<int> waiting_;
  std::size_t thread_count_ = 0;
  std::atomic<std::size_t> waiting_count_ = 0;
};

}  // namespace

ForeignFd::~ForeignFd() {
  if (fd_ >= 0) Closer::Process().Close(fd_);
}

bool ForeignFd::is_congested() noexcept { return Closer::Process().is_congested(); }

}  // namespace ffrecord
