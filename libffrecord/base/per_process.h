#pragma once

#include <atomic>

#include "libffrecord/base/home_process.h"

namespace ffrecord {

// A T of this process. A forked child gets a new one at its first Get(): the parent's may be locked
// by a thread that the child does not have, and its connections are the parent's. The child
// abandons the parent's T without touching it. Thread-safe if T is.
template <class T>
class PerProcess {
 public:
  // Makes a T with `new`; a plain function, for it is kept for children.
  using Make = T* (*)();

  explicit PerProcess(Make make) : make_(make), current_(new Owned{{}, make()}) {}
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;
  ~PerProcess() {
    Owned* const owned = current_.load(std::memory_order_acquire);
    if (owned->home.is_here()) Destroy(owned);
  }

  T& Get() {
    Owned* owned = current_.load(std::memory_order_acquire);
    if (!owned->home.is_here()) {
      auto* const fresh = new Owned{{}, make_()};
      if (current_.compare_exchange_strong(owned, fresh, std::memory_order_acq_rel))
        return *fresh->value;
      Destroy(fresh);  // Another thread of the child was faster: `owned` is now its value.
    }
    return *owned->value;
  }

 private:
  struct Owned {
    HomeProcess home;
    T* value;
  };
  static void Destroy(Owned* owned) {
    delete owned->value;
    delete owned;
  }

  const Make make_;
  std::atomic<Owned*> current_;
};

}  // namespace ffrecord
