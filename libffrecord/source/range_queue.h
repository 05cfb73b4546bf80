#pragma once

#include <chrono>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// Ranges that are read together. Its owner keeps it, the ranges and their destinations in place
// until Ended().
class RangeGroup {
 public:
  virtual std::span<RangeRead> ranges() noexcept = 0;

  // Called once for each range, as soon as its status is set, in any order: as `arrived` of
  // RangeReader::ReadEach.
  virtual void Arrived(RangeRead& range) = 0;

  // Called once, when no bytes are on their way to a destination any more, with the result that
  // ReadEach would have returned. After a failure, some ranges have not arrived. May destroy the
  // group.
  virtual void Ended(Result<void> result) = 0;

 protected:
  ~RangeGroup() = default;
};

// Reads many groups of ranges of one RangeReader at a time: while the last ranges of one group are
// on their way, those of the next are begun, in the order of Submit().
//
// One thread at a time may call it, and any thread may destroy it. Bound to the process that made
// it: in a forked child it can only be destroyed. The reader outlives it. Calls groups only from
// Poll(); they may submit and give up others there.
class RangeQueue {
 public:
  // Gives up all groups without calling them, and waits until nothing is on its way.
  virtual ~RangeQueue() = default;

  // Takes `group`, whose ranges meet the requirements of ReadEach. Does not wait.
  virtual void Submit(RangeGroup& group) = 0;

  // Begins no more of `group`, which is this queue's. It ends with kDeadlineExceeded once nothing
  // of it is on its way.
  virtual void GiveUp(RangeGroup& group) = 0;

  // Waits, at most `timeout`, until a range has arrived or a group has ended; then calls the
  // groups. Returns at once if there are no groups.
  virtual void Poll(std::chrono::milliseconds timeout) = 0;

  // A descriptor that is readable while Poll() can call a group without waiting, provided that
  // Poll() was called after the last Submit() or GiveUp(). The queue owns it. Fails with kIo if
  // there is none to be had.
  virtual Result<int> EventDescriptor() = 0;
};

}  // namespace ffrecord
