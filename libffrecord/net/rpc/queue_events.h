#pragma once

#include <cstdint>
#include <memory>

#include <ffrecord/result.h>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// One descriptor that stays, for what a queue waits for: a connection, which comes and goes,
// another descriptor, and a moment. Thread-bound.
class QueueEvents {
 public:
  static Result<std::unique_ptr<QueueEvents>> Make();

  int fd() const noexcept { return set_.get(); }  // Readable when something has come.
  // Sets what to wait for from now on: `endpoint`, if not null, which is the queue's `number`th;
  // `other`, if not -1; and `next`. With `has_more` there is no wait.
  void Wait(const Endpoint* endpoint, std::uint64_t number, int other, Deadline next,
            bool has_more);

 private:
  // A descriptor in the set, by a duplicate: taken out of it even after the original was closed.
  struct Watched {
    int original = -1;
    std::uint64_t number = 0;
    std::uint32_t events = 0;
    UniqueFd duplicate;
  };
  void Watch(Watched& watched, int fd, std::uint64_t number, std::uint32_t events);

  UniqueFd set_;
  ClockTimer timer_;
  EventFd more_;
  Watched endpoint_;
  Watched other_;
  Deadline armed_ = Deadline::max();
};

}  // namespace ffrecord::net
