#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/delegated_reads.h>
#include <ffrecord/store_report.h>

#include "libffrecord/base/back_off.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The queue of DelegatedReads in one process. Thread-safe.
class DelegatedQueue {
 public:
  using Files = std::vector<DelegatedReads::File>;
  using Range = DelegatedReads::Range;

  // Counts of all processes that come from one by forks, each with its counts from before.
  struct Counts {
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> retries{0};
    std::atomic<std::uint64_t> throttled{0};
    std::atomic<std::uint64_t> received_bytes{0};
  };
  // The parameters of a queue, borrowed.
  struct Terms {
    const Files& files;
    const DelegatedReads::Options& options;
    Counts& counts;
  };

  // The outcome of a range; an error has its message.
  using Ended = std::function<void(std::size_t range, const std::optional<Error>& error)>;

  // Has all of `ranges` read and tells `ended` on the calling thread about each. Fails with
  // kDeadlineExceeded once `patience` is over; nothing is written to a destination after that.
  // Requires ranges of at least one byte inside their files.
  Result<void> Read(const Terms& terms, std::span<RangeRead* const> ranges, const Ended& ended,
                    Patience& patience);

  // As those of DelegatedReads.
  DelegatedReads::Group Take(const Terms& terms);
  void Answer(const Terms& terms, std::uint64_t id, std::span<const std::byte> bytes);
  void Refuse(const Terms& terms, std::uint64_t id, Error error, DelegatedReads::Retry retry);
  bool IsWanted(std::uint64_t id);
  void Close();

 private:
  enum class State : std::uint8_t { kWaiting, kTaken, kLater, kCopied, kEnded };

  // A range of a call.
  struct Wish {
    RangeRead* range = nullptr;
    State state = State::kWaiting;
    Clock::time_point since;  // When it was queued, then when it was taken first.
    bool was_taken = false;
    BackOff back_off{BackOff::kOfStores};
    std::optional<Error> error;  // The last one.
  };
  // A call of Read, on its thread's stack.
  struct Call {
    std::vector<Wish> wishes;
    std::vector<std::size_t> ended;  // That the calling thread does not know of yet.
    std::size_t open_count = 0;
    std::size_t copy_count = 0;  // Answers that are being copied.
    std::condition_variable changed;
  };

  // All require the lock.
  std::uint32_t Register(Call& call);
  Wish* Find(std::uint64_t id, Call** call);
  void End(Call& call, std::size_t number, std::optional<Error> error);
  void EndLate(const Terms& terms, Call& call, Clock::time_point now);
  void QueueDue(Clock::time_point now);
  bool AddNext(const Terms& terms, DelegatedReads::Group& group, std::uint64_t& group_bytes);
  void WaitForWork(std::unique_lock<std::mutex>& lock);
  void Fail(const Terms& terms, std::uint64_t id, Call& call, Error error,
            DelegatedReads::Retry retry);

  std::mutex mutex_;
  std::condition_variable work_;
  std::unordered_map<std::uint32_t, Call*> calls_;
  std::uint32_t next_call_ = 0;
  std::deque<std::uint64_t> waiting_;  // Ids, perhaps of calls that are gone.
  std::multimap<Clock::time_point, std::uint64_t> later_;
  Clock::time_point taken_at_;  // When anything was taken last.
  std::size_t idle_count_ = 0;  // Threads in Take().
  bool is_closed_ = false;
};

}  // namespace ffrecord
