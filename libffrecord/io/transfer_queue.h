#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/home_process.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/transfer.h"

namespace ffrecord {

// Transfers of several callers on their way over one engine: submits them under back-pressure, in
// the order of Add(), continues those that stop short, and gives back those that have ended.
//
// Thread-bound, as its engine, which it borrows and which nobody else uses meanwhile.
class TransferQueue {
 public:
  // The event that Poll() waits for.
  enum class Wants : std::uint8_t {
    kAny,  // One request that comes back.
    kAll,  // All of them; while others are still to be submitted, room for some of those.
    // As many as make the waiting cheap; the owner processes each one at once. Requests that the
    // page cache serves complete during submission, and their bytes are then in the processor's
    // cache. So the queue submits little at a time until a submission completes nothing.
    kEach,
  };

  // Memory that one queue leaves to the next, so that none allocates for each transfer.
  struct Memory {
    std::vector<IoRequest*> queue;
    std::vector<IoRequest*> done;
  };

  // At most `depth` transfers, 1 or more, are in flight. Borrows `memory`, which nobody else uses
  // meanwhile.
  TransferQueue(IoEngine& engine, std::uint32_t depth, Wants wants, Memory& memory);
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;
  // Waits for what is in flight. In a forked child does nothing: that is the parent's.
  ~TransferQueue();

  // `transfer` stays in place until Poll() or Withdraw() has given it back.
  void Add(Transfer& transfer) { queue_.push_back(&transfer.request()); }

  std::uint32_t in_flight() const noexcept { return engine_.in_flight(); }
  // Added and not given back.
  std::size_t count() const noexcept { return queue_.size() - next_ + in_flight(); }

  // Submits what there is room for, waits for what is wanted or until `timeout` has passed, and
  // adds transfers that have ended to `ended`. A request that came back too short goes to the
  // queue's end.
  //
  // Fails with kIo if the engine fails; what is in flight then still is.
  Result<void> Poll(std::chrono::milliseconds timeout, std::vector<Transfer*>& ended);

  // Submits what there is room for; waits for nothing.
  Result<void> Submit();

  // Gives back the transfers for which `unwanted` holds and that were not submitted: adds them to
  // `ended`, without a result.
  template <class Unwanted>
  void Withdraw(const Unwanted& unwanted, std::vector<Transfer*>& ended) {
    const auto is_withdrawn = [&](IoRequest* request) {
      auto* const transfer = static_cast<Transfer*>(request->user);
      if (!unwanted(*transfer)) return false;
      ended.push_back(transfer);
      return true;
    };
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
    std::erase_if(queue_, is_withdrawn);
  }

  // Waits until nothing is in flight. Drops requests that were not submitted.
  void Drain();

 private:
  bool has_queued() const noexcept { return next_ < queue_.size(); }
  std::uint32_t CountWanted() const noexcept;
  std::size_t SubmissionChunk(std::size_t count) const;
  Result<std::uint32_t> Wait(std::uint32_t count_min, std::chrono::milliseconds timeout,
                             std::vector<Transfer*>& ended);

  IoEngine& engine_;
  const std::uint32_t depth_;
  const Wants wants_;
  const HomeProcess home_;
  std::vector<IoRequest*>& queue_;  // From next_ on: to be submitted.
  std::vector<IoRequest*>& done_;
  std::size_t next_ = 0;
  std::uint64_t chunk_bytes_;
};

}  // namespace ffrecord
