#pragma once

#include <pthread.h>

#include <atomic>
#include <optional>

#include <ffrecord/result.h>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::net {

// Session::Tries::Begin() on a thread of its own, which lasts until it has succeeded or failed: for
// those who may not wait. Thread-bound.
class Connecting {
 public:
  explicit Connecting(Session::Tries& tries) : tries_(tries) {}
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;
  ~Connecting() { Stop(); }

  // Begins; from then on `tries` are the thread's. Without a thread it waits itself.
  void Start(Deadline deadline);
  bool is_under_way() const noexcept { return deadline_.has_value(); }
  Deadline deadline() const noexcept { return *deadline_; }
  // Nobody waits for it any more: it fails soon. Stop() waits until it has.
  void GiveUp() noexcept { is_given_up_ = true; }
  bool is_given_up() const noexcept { return is_given_up_; }
  void Stop();

  // The result, after which nothing is under way; none while it still connects.
  std::optional<Result<void>> Take();
  // Readable when Take() has an answer; -1: nothing was ever started.
  int fd() const noexcept { return event_.fd(); }

 private:
  static void* Run(void* self);

  Session::Tries& tries_;
  EventFd event_;
  std::optional<Deadline> deadline_;
  std::optional<pthread_t> thread_;
  std::atomic<bool> is_given_up_ = false;
  std::atomic<bool> is_done_ = false;
  Result<void> result_;
};

}  // namespace ffrecord::net
