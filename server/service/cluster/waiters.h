#pragma once

#include <functional>
#include <list>

#include <ffrecord/result.h>

#include "server/cluster/machine.h"

namespace ffrecord::server {

// Callers that wait until the machines of a node show something, each with a deadline of its own.
//
// Threads: the node's thread alone; a `done` is called on it, once. Ownership: NodeMachines owns
// it; it owns the callers' functions until they are called.
class Waiters {
 public:
  using Done = std::function<void(Result<void>)>;

  // `done` without an error once `is_reached`, which is asked after each step of the machines; with
  // kDeadlineExceeded once the deadline has passed.
  void Add(std::function<bool()> is_reached, cluster::TimePoint deadline, Done done);
  // Answers those that have reached what they wait for, or are late.
  void Answer(cluster::TimePoint now);
  // Answers all with that error, also those that begin to wait meanwhile.
  void AnswerAll(const Error& why);
  // The earliest deadline.
  cluster::TimePoint wake() const;

 private:
  struct Waiter {
    std::function<bool()> is_reached;
    cluster::TimePoint deadline;
    Done done;
  };
  std::list<Waiter> waiters_;
};

}  // namespace ffrecord::server
