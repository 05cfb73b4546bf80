#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/metadata/meta_state.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// A client of a MetaState in the same process: the store of simulations and of tests. Has no thread
// and no clock: time passes, and callbacks run, in Run() alone. Several may share one state; each
// has its own connection, whose faults the caller decides. Deterministic. Thread-bound.
//
// Other faults are the state's: CompactTo() compacts, RevokeLease() ends a lease before its time.
class MemoryMetaStore final : public MetaStore {
 public:
  // How one request and its answer travel, or one message of a watch (`back`).
  struct Trip {
    std::chrono::nanoseconds there{};
    std::chrono::nanoseconds back{};
    bool is_refused = false;     // No connection: kUnavailable, after `there`.
    bool loses_request = false;  // It never arrives; the answer is a deadline.
    bool loses_answer = false;   // It takes effect all the same. A watch breaks.
  };
  struct Options {
    std::function<Trip()> next_trip = {};  // Asked once for each; empty: all arrives at once.
    TimePoint now = {};                    // When the store begins.
  };

  // The state outlives the store.
  MemoryMetaStore(MetaState& state, Options options);
  ~MemoryMetaStore() override;

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override;
  void List(ListRequest request, TimePoint deadline, Done<Page> done) override;
  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override;
  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override;
  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override;
  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override;
  WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) override;
  void StopWatch(WatchId watch) override;

  // Lets the time be `now`, which must not go back, and runs all that is due, in order of time,
  // then of beginning. Not to be called from a callback.
  void Run(TimePoint now);
  // When Run() next has something to do; none: not before another call.
  std::optional<TimePoint> next() const;
  // All watches break.
  void BreakWatches();

 private:
  struct WatchState {
    std::string prefix;
    std::uint64_t next_revision = 0;
    OnNews on_news;
    TimePoint last_arrival;  // News arrive in order.
    bool has_ended = false;  // Its last news is on its way.
  };

  using StepKey = std::pair<TimePoint, std::uint64_t>;
  struct OpenCall {
    std::function<void(Error)> give_up;
    StepKey timeout;
  };

  // Sends a request that `execute` carries out.
  template <class T>
  void Send(TimePoint deadline, Done<T> done, std::function<Result<T>()> execute);
  StepKey At(TimePoint time, std::function<void()> act);
  Trip NextTrip() { return options_.next_trip ? options_.next_trip() : Trip{}; }
  bool CollectNews();  // False: there is none.
  void Tell(WatchId id, WatchState& watch, News news, Trip trip);

  MetaState& state_;
  const Options options_;
  TimePoint now_;
  std::uint64_t next_number_ = 1;  // Numbers steps, calls and watches.
  // Steps by time; those of one time in order of their beginning.
  std::map<StepKey, std::function<void()>> steps_;
  std::map<std::uint64_t, OpenCall> open_calls_;
  std::map<WatchId, WatchState> watches_;
};

}  // namespace ffrecord::server
