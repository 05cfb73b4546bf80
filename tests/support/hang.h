#pragma once

#include <atomic>

namespace ffrecord::test {

// Threads that come here wait, in the kernel, while a test wants them to. Thread-safe.
class Hang {
 public:
  bool operator=(bool is_on) noexcept {
    is_on_ = is_on;
    is_on_.notify_all();
    return is_on;
  }
  operator bool() const noexcept { return is_on_; }
  void Wait() const noexcept { is_on_.wait(true); }

 private:
  std::atomic<bool> is_on_{false};
};

}  // namespace ffrecord::test
