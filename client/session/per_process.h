#pragma once

#include <unistd.h>

#include <atomic>

namespace ffrecord::client {

// A T of this process. A forked child gets a new one at its first Get(): the parent's may be locked
// by a thread that the child does not have, and its connections are the parent's. The child
// abandons the parent's T without touching it. Thread-safe if T is.
template <class T>
class PerProcess {
 public:
  PerProcess() : current_(new Owned{getpid(), {}}) {}
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;
  ~PerProcess() {
    Owned* const owned = current_.load(std::memory_order_acquire);
    if (owned->pid == getpid()) delete owned;
  }

  T& Get() {
    Owned* owned = current_.load(std::memory_order_acquire);
    if (const pid_t pid = getpid(); owned->pid != pid) {
      auto* const fresh = new Owned{pid, {}};
      if (current_.compare_exchange_strong(owned, fresh, std::memory_order_acq_rel))
        return fresh->value;
      delete fresh;  // Another thread of the child was faster: `owned` is now its value.
    }
    return owned->value;
  }

 private:
  struct Owned {
    pid_t pid;
    T value;
  };
  std::atomic<Owned*> current_;
};

}  // namespace ffrecord::client
