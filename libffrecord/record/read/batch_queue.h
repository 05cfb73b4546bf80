#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include <ffrecord/batch_queue.h>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/record/read/batch_read.h"
#include "libffrecord/record/read/index_fetches.h"
#include "libffrecord/record/read/record_reader_impl.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord {

struct BatchQueue::Impl {
  class Ask;

  Impl(const RecordReader::Impl& of_reader, const Options& with,
       std::unique_ptr<RangeQueue> through);
  ~Impl();

  Result<std::optional<Completion>> Poll(std::chrono::milliseconds timeout);
  Result<int> EventDescriptor();
  bool BeginMore();
  bool Expire();
  void RingIfComplete();
  std::size_t size() const;
  std::unique_ptr<BatchRead::Workspace> TakeWorkspace();

  const RecordReader::Impl& reader;
  const Options options;
  const HomeProcess home;
  EventFd event;    // Rung while Poll() has a batch to return.
  UniqueFd events;  // Epoll of `event` and `ranges`; none until it is asked for.
  std::vector<std::unique_ptr<BatchRead::Workspace>> spare;
  std::vector<std::unique_ptr<Ask>> asks;  // In the order of Submit().
  IndexFetches index_fetches;
  std::unique_ptr<RangeQueue> ranges;  // Ends before what it writes to.

 private:
  std::size_t begun_count() const;
  void PollRanges(std::chrono::milliseconds timeout);
  Clock::time_point NextDeadline() const;
  std::vector<std::unique_ptr<Ask>>::iterator FindComplete();
  std::optional<Completion> TakeComplete();
};

// RecordReader::OpenQueue.
Result<BatchQueue> OpenBatchQueue(const RecordReader::Impl& reader,
                                  const BatchQueue::Options& options);

}  // namespace ffrecord
