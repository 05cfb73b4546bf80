#include "libffrecord/object_store/range_fetch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/http/http_transfers.h"
#include "libffrecord/object_store/content_range.h"
#include "libffrecord/object_store/retry.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;

// The caller's patience, late answers and stalls are looked at so often.
constexpr milliseconds kLookInterval{10};
constexpr milliseconds kStallMin{500};
constexpr milliseconds kStallMax{10'000};
// A connection that carries less is too slow to wait for.
constexpr std::uint64_t kBytesPerMsMin = 64;
constexpr std::size_t kConnectionsKept = 128;
constexpr std::size_t kIdleTransfersMax = 16;

// Connections that no call uses now. Kept for the process; a child has its own.
class IdleTransfers {
 public:
  static IdleTransfers& Process() {
    static auto* const all = new PerProcess<IdleTransfers>([] { return new IdleTransfers; });
    return all->Get();
  }

  Result<std::unique_ptr<net::HttpTransfers>> Take() {
    {
      const std::scoped_lock lock(mutex_);
      if (!idle_.empty()) {
        auto transfers = std::move(idle_.back());
        idle_.pop_back();
        return transfers;
      }
    }
    return net::HttpTransfers::Create(kConnectionsKept);
  }
  void GiveBack(std::unique_ptr<net::HttpTransfers> transfers) {
    const std::scoped_lock lock(mutex_);
    if (idle_.size() < kIdleTransfersMax) idle_.push_back(std::move(transfers));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<net::HttpTransfers>> idle_;
};

struct Wish;

// One request for a wish.
struct Attempt {
  net::HttpTransfer transfer;
  Wish* wish = nullptr;  // Null: free.
  bool is_under_way = false;
  Clock::time_point begun;
};

// A range, and what is done about it.
struct Wish {
  ObjectRange* range = nullptr;
  std::array<Attempt*, 2> attempts{};  // The second is made when the first is late.
  BackOff back_off{BackOff::kOfStores};
  // Set with the first attempt: no other begins after `deadline`, and one that still makes progress
  // ends at `deadline_of_all`.
  Clock::time_point deadline;
  Clock::time_point deadline_of_all;
  Clock::time_point next_try;
  bool has_begun = false;
  bool was_hedged = false;
  bool has_ended = false;
  std::optional<Error> last_error;

  bool is_live() const noexcept { return attempts[0] != nullptr || attempts[1] != nullptr; }
};

class RangeFetch {
 public:
  RangeFetch(std::span<ObjectRange> ranges, std::uint32_t in_flight_max,
             const std::function<void(ObjectRange&)>& arrived, Patience& patience,
             net::HttpTransfers& transfers)
      : in_flight_max_(in_flight_max),
        arrived_(arrived),
        patience_(patience),
        transfers_(transfers),
        wishes_(ranges.size()) {
    for (std::size_t i = 0; i < ranges.size(); ++i) wishes_[i].range = &ranges[i];
  }
  ~RangeFetch() {
    for (const auto& attempt : attempts_)
      if (attempt->is_under_way) Cancel(*attempt);
  }
  RangeFetch(const RangeFetch&) = delete;
  RangeFetch& operator=(const RangeFetch&) = delete;

  Result<void> Run() {
    std::vector<net::HttpTransfer*> ended;
    while (ended_count_ < wishes_.size()) {
      if (patience_.IsOver())
        return Error{ErrorCode::kDeadlineExceeded, "read objects: the caller gave it up"};
      FFR_TRY(BeginSome());
      ended.clear();
      FFR_TRY(transfers_.Wait(live_count_ > 0 ? kLookInterval : milliseconds(1), ended));
      // Two attempts for one range may both have ended.
      for (net::HttpTransfer* const transfer : ended)
        static_cast<Attempt*>(transfer->user)->is_under_way = false;
      for (net::HttpTransfer* const transfer : ended) Ended(*static_cast<Attempt*>(transfer->user));
      LookAround();
    }
    return {};
  }

 private:
  // Retries that are due, then ranges that have not been asked for.
  Result<void> BeginSome() {
    const auto now = Clock::now();
    for (std::size_t i = 0; i < retries_.size();) {
      Wish& wish = *retries_[i];
      if (!wish.has_ended && now < wish.next_try) {
        ++i;
        continue;
      }
      if (!wish.has_ended && !MayBegin(wish)) return {};
      retries_[i] = retries_.back();
      retries_.pop_back();
      if (!wish.has_ended) FFR_TRY(Begin(wish, 0));
    }
    while (next_wish_ < wishes_.size() && MayBegin(wishes_[next_wish_]))
      FFR_TRY(Begin(wishes_[next_wish_++], 0));
    return {};
  }

  // If so, the store counts one more request, until Free().
  bool MayBegin(const Wish& wish) {
    return live_count_ < in_flight_max_ && wish.range->store->pace().MayBegin(live_count_ > 0);
  }

  Attempt& TakeAttempt() {
    if (free_.empty()) {
      attempts_.push_back(std::make_unique<Attempt>());
      return *attempts_.back();
    }
    Attempt* const attempt = free_.back();
    free_.pop_back();
    return *attempt;
  }

  void Free(Attempt& attempt) {
    Wish& wish = *std::exchange(attempt.wish, nullptr);
    for (Attempt*& own : wish.attempts)
      if (own == &attempt) own = nullptr;
    wish.range->store->pace().Ended();
    --live_count_;
    free_.push_back(&attempt);
  }

  void Cancel(Attempt& attempt) {
    attempt.is_under_way = false;
    transfers_.Cancel(attempt.transfer);
    Free(attempt);
  }

  Result<void> Begin(Wish& wish, std::size_t number) {
    const ObjectRange& range = *wish.range;
    const milliseconds timeout = range.store->timeout();
    auto request = range.store->GetRequest(range.key, HeadersFor(range));
    const auto now = Clock::now();
    if (!std::exchange(wish.has_begun, true)) {
      wish.deadline = now + timeout;
      wish.deadline_of_all =
          wish.deadline + milliseconds(range.destination.size() / kBytesPerMsMin);
    }
    ++live_count_;  // Until Free().
    range.store->counts().requests.fetch_add(1);
    Attempt& attempt = TakeAttempt();
    attempt.wish = &wish;
    attempt.begun = now;
    wish.attempts[number] = &attempt;
    if (!request) {
      Free(attempt);
      Failed(wish, std::move(request).error(), false, {});
      return {};
    }
    attempt.transfer.request = std::move(request).value();
    attempt.transfer.destination = range.destination;
    attempt.transfer.accepts = [&range](const net::HttpResponse& response) {
      return !Complaint(range, response);
    };
    attempt.transfer.user = &attempt;
    auto begun = transfers_.Begin(attempt.transfer, std::min(timeout, StallOf(wish)));
    attempt.is_under_way = static_cast<bool>(begun);
    if (!begun) Free(attempt);
    return begun;
  }

  static ObjectStore::Headers HeadersFor(const ObjectRange& range) {
    ObjectStore::Headers headers;
    headers["range"] = "bytes=" + std::to_string(range.offset_bytes) + "-" +
                       std::to_string(range.offset_bytes + range.destination.size() - 1);
    if (range.version == nullptr) return headers;
    // A weak tag never matches.
    if (!range.version->etag.empty() && !range.version->etag.starts_with("W/"))
      headers["if-match"] = range.version->etag;
    else if (range.version->etag.empty() && !range.version->last_modified.empty())
      headers["if-unmodified-since"] = range.version->last_modified;
    return headers;
  }

  // Checks a response of 206, or one of 200 that should be one; nothing if it is the one asked for,
  // or an error of the store's.
  static std::optional<Error> Complaint(const ObjectRange& range,
                                        const net::HttpResponse& response) {
    if (response.status / 100 != 2) return Error{ErrorCode::kUnavailable, "the store refused"};
    return ComplaintAbout(response, range.offset_bytes, range.destination.size(), range.version,
                          range.store->Describe(range.key));
  }

  void Ended(Attempt& attempt) {
    Wish& wish = *attempt.wish;
    ObjectRange& range = *wish.range;
    net::HttpTransfer& transfer = attempt.transfer;
    Free(attempt);
    if (wish.has_ended) return;
    StorePace& pace = range.store->pace();
    if (transfer.error && transfer.error->code == ErrorCode::kCorruption)
      return Failed(wish, TooLong(range, transfer), false, {});
    if (transfer.error) {
      const bool may_pass = transfer.error->code == ErrorCode::kUnavailable ||
                            transfer.error->code == ErrorCode::kDeadlineExceeded;
      return Failed(wish, *std::move(transfer.error), may_pass, {});
    }
    const net::HttpResponse& response = transfer.response;
    const bool is_probe = range.version == nullptr;
    if (is_probe && IsEmptyObject(response)) {
      range.found = VersionIn(response);
      range.found.size_bytes = 0;
      return Succeeded(wish);
    }
    if (response.status == 412 || response.status == 416)
      return Failed(wish, IsAnother(range.store->Describe(range.key), response), false, {});
    if (response.status / 100 != 2) {
      if (response.status == 429 || response.status == 503) {
        pace.Throttled();
        range.store->counts().throttled.fetch_add(1);
      }
      auto refusal = range.store->RefusalOf(range.key, response);
      return Failed(wish, std::move(refusal.error), refusal.may_pass, RetryAfter(response));
    }
    if (auto complaint = Complaint(range, response))
      return Failed(wish, *std::move(complaint), false, {});
    if (response.size_bytes != range.destination.size())
      return Failed(wish, CutShort(range, response), true, {});
    pace.Answered(transfer.first_byte_after);
    range.store->counts().received_bytes.fetch_add(response.size_bytes);
    if (is_probe) range.found = VersionIn(response);
    Succeeded(wish);
  }

  static Error CutShort(const ObjectRange& range, const net::HttpResponse& response) {
    return {ErrorCode::kUnavailable, range.store->Describe(range.key) + ": the store sent " +
                                         std::to_string(response.size_bytes) + " bytes of " +
                                         std::to_string(range.destination.size()) + " at " +
                                         std::to_string(range.offset_bytes)};
  }

  // A longer body than asked for: most often the whole object.
  static Error TooLong(const ObjectRange& range, const net::HttpTransfer& transfer) {
    if (auto complaint = Complaint(range, transfer.response)) return *std::move(complaint);
    return {ErrorCode::kInvalidArgument,
            range.store->Describe(range.key) + ": the store sent more bytes than it was asked for"};
  }

  void Succeeded(Wish& wish) {
    wish.range->error.reset();
    Finish(wish);
  }

  void Failed(Wish& wish, Error error, bool may_pass, milliseconds asked_for) {
    // The other attempt may do better, unless the store has said a last word.
    if (may_pass && wish.is_live()) {
      wish.last_error = std::move(error);
      return;
    }
    if (may_pass) {
      const auto wait = wish.back_off.Next(asked_for);
      wish.next_try = Clock::now() + wait;
      if (wish.next_try <= wish.deadline) {
        wish.range->store->counts().retries.fetch_add(1);
        wish.last_error = std::move(error);
        wish.was_hedged = false;
        retries_.push_back(&wish);
        return;
      }
    }
    wish.range->error = std::move(error);
    Finish(wish);
  }

  void Finish(Wish& wish) {
    wish.has_ended = true;
    for (Attempt* const attempt : wish.attempts)
      if (attempt != nullptr && attempt->is_under_way) Cancel(*attempt);
    ++ended_count_;
    arrived_(*wish.range);
  }

  // Ends attempts that have stalled, and asks again for answers that are late.
  void LookAround() {
    const auto now = Clock::now();
    if (now - looked_ < kLookInterval) return;
    looked_ = now;
    // Attempts may be freed on the way, and new ones made behind.
    for (std::size_t i = 0; i < attempts_.size(); ++i) {
      Attempt& attempt = *attempts_[i];
      if (!attempt.is_under_way) continue;
      Wish& wish = *attempt.wish;
      const auto progress = transfers_.ProgressOf(attempt.transfer);
      const auto silent = now - progress.at;
      if (now > wish.deadline_of_all) {
        TimedOut(wish);
      } else if (silent > StallOf(wish)) {
        Cancel(attempt);
        Failed(wish, NoAnswer(wish), true, {});
      } else if (IsLate(attempt, progress, now)) {
        Hedge(wish);
      }
    }
  }

  // Nothing has come for a while, or less than a connection brings that is worth waiting for.
  static bool IsLate(const Attempt& attempt, const net::HttpTransfers::Progress& progress,
                     Clock::time_point now) {
    const milliseconds late_after = attempt.wish->range->store->pace().LateAfter();
    const milliseconds due_after(progress.size_bytes / kBytesPerMsMin);
    return now - progress.at > late_after || now - attempt.begun > late_after + due_after;
  }

  // Without bytes for so long, an attempt is given up.
  static milliseconds StallOf(const Wish& wish) {
    return std::clamp(wish.range->store->timeout() / 4, kStallMin, kStallMax);
  }

  static Error NoAnswer(const Wish& wish) {
    const ObjectRange& range = *wish.range;
    return {ErrorCode::kDeadlineExceeded, range.store->Describe(range.key) +
                                              ": the store sent nothing for " +
                                              std::to_string(StallOf(wish).count()) + " ms"};
  }

  void TimedOut(Wish& wish) {
    Error error{ErrorCode::kDeadlineExceeded,
                wish.range->store->Describe(wish.range->key) + ": no whole answer in time"};
    if (wish.last_error) error = *std::move(wish.last_error);
    wish.range->error = std::move(error);
    Finish(wish);
  }

  void Hedge(Wish& wish) {
    if (std::exchange(wish.was_hedged, true)) return;
    if (!wish.range->store->pace().MayHedge()) return;
    wish.range->store->counts().hedges.fetch_add(1);
    // A second attempt is a luxury: without memory for it, the first goes on.
    static_cast<void>(Begin(wish, wish.attempts[0] == nullptr ? 0 : 1));
  }

  const std::uint32_t in_flight_max_;
  const std::function<void(ObjectRange&)>& arrived_;
  Patience& patience_;
  net::HttpTransfers& transfers_;
  std::vector<Wish> wishes_;
  std::vector<Wish*> retries_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::vector<Attempt*> free_;
  std::size_t next_wish_ = 0;
  std::size_t ended_count_ = 0;
  std::size_t live_count_ = 0;
  Clock::time_point looked_{};
};

}  // namespace

Result<void> FetchRanges(std::span<ObjectRange> ranges, std::uint32_t in_flight_max,
                         const std::function<void(ObjectRange&)>& arrived, Patience& patience) {
  if (ranges.empty()) return {};
  auto transfers = FFR_TRY(IdleTransfers::Process().Take());
  // Ends what is under way before others may use the connections.
  auto run = RangeFetch(ranges, in_flight_max, arrived, patience, *transfers).Run();
  if (run || patience.was_over()) IdleTransfers::Process().GiveBack(std::move(transfers));
  return run;
}

}  // namespace ffrecord::object_store
