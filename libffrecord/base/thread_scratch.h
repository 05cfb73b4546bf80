#pragma once

#include <memory>
#include <utility>

namespace ffrecord {

// Working memory of a call, which the next call of the same thread finds again: a T of the
// thread's own, for the lifetime of this object. `T::Recycle()` runs at the end; it drops what
// must not outlive the call and returns whether what remains is small enough to keep.
//
// T keeps its contents from the last call, but for what Recycle() dropped. A call inside another,
// and one made by a destructor at the thread's end, gets a new T. A forked child goes on with the T
// of the thread that forked. Thread-bound; lives on the stack.
template <class T>
class ThreadScratch {
 public:
  ThreadScratch()
      : value_(Kept::is_gone || !kept().value ? std::make_unique<T>() : std::move(kept().value)) {}
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;
  ~ThreadScratch() {
    if (value_->Recycle() && !Kept::is_gone) kept().value = std::move(value_);
  }

  T& operator*() const noexcept { return *value_; }
  T* operator->() const noexcept { return value_.get(); }

 private:
  struct Kept {
    ~Kept() { is_gone = true; }
    std::unique_ptr<T> value;
    // Has no destructor, so that it can be asked until the thread's end.
    static constinit inline thread_local bool is_gone = false;
  };
  static Kept& kept() noexcept {
    thread_local Kept kept;
    return kept;
  }

  std::unique_ptr<T> value_;
};

}  // namespace ffrecord
