#include "libffrecord/source/delegated_queue.h"

#include <algorithm>
#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/io_times.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;

// A store that carries less is too slow to wait for.
constexpr std::uint64_t kBytesPerMsMin = 64;
constexpr unsigned kCallShift = 32;

std::uint64_t IdOf(std::uint32_t call, std::size_t number) {
  return (std::uint64_t{call} << kCallShift) | number;
}
std::size_t NumberOf(std::uint64_t id) { return id & 0xFFFF'FFFF; }

std::string BytesText(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

Result<void> DelegatedQueue::Read(const Terms& terms, std::span<RangeRead* const> ranges,
                                  const Ended& ended, Patience& patience) {
  Call call;
  call.wishes.resize(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) call.wishes[i].range = ranges[i];
  call.open_count = ranges.size();

  std::unique_lock lock(mutex_);
  if (is_closed_) return Error{ErrorCode::kUnavailable, "read files: their reader is closed"};
  const std::uint32_t number = Register(call);
  bool is_given_up = false;
  std::vector<std::size_t> news;
  auto next_look = Clock::now() + Patience::kInterval;
  while (!is_given_up && (call.open_count > 0 || !call.ended.empty())) {
    if (call.ended.empty()) {
      const TimedIo timed(&IoTimes::device);
      WaitUntil(call.changed, lock, next_look);
    }
    if (const auto now = Clock::now(); now >= next_look) {
      EndLate(terms, call, now);
      next_look = now + Patience::kInterval;
    }
    news.swap(call.ended);
    // Ended wishes do not change any more.
    lock.unlock();
    for (const std::size_t one : news) ended(one, call.wishes[one].error);
    news.clear();
    is_given_up = patience.IsOver();
    lock.lock();
  }
  calls_.erase(number);
  call.changed.wait(lock, [&] { return call.copy_count == 0; });
  if (is_given_up) return GivenUp();
  return {};
}

std::uint32_t DelegatedQueue::Register(Call& call) {
  FFR_ASSERT(call.wishes.size() <= 0xFFFF'FFFF);
  while (calls_.contains(next_call_)) ++next_call_;
  const std::uint32_t number = next_call_++;
  calls_.emplace(number, &call);
  const auto now = Clock::now();
  for (std::size_t i = 0; i < call.wishes.size(); ++i) {
    call.wishes[i].since = now;
    waiting_.push_back(IdOf(number, i));
  }
  work_.notify_all();
  return number;
}

DelegatedQueue::Wish* DelegatedQueue::Find(std::uint64_t id, Call** call) {
  const auto found = calls_.find(static_cast<std::uint32_t>(id >> kCallShift));
  if (found == calls_.end() || NumberOf(id) >= found->second->wishes.size()) return nullptr;
  *call = found->second;
  return &found->second->wishes[NumberOf(id)];
}

void DelegatedQueue::End(Call& call, std::size_t number, std::optional<Error> error) {
  Wish& wish = call.wishes[number];
  wish.state = State::kEnded;
  wish.error = std::move(error);
  call.ended.push_back(number);
  --call.open_count;
  call.changed.notify_all();
}

void DelegatedQueue::EndLate(const Terms& terms, Call& call, Clock::time_point now) {
  const milliseconds timeout = terms.options.timeout;
  for (std::size_t i = 0; i < call.wishes.size(); ++i) {
    Wish& wish = call.wishes[i];
    if (wish.state == State::kEnded || wish.state == State::kCopied) continue;
    const milliseconds extra(wish.was_taken ? wish.range->destination.size() / kBytesPerMsMin : 0);
    const auto begin = wish.was_taken ? wish.since : std::max(wish.since, taken_at_);
    if (now < begin + timeout + extra) continue;
    const std::string& name = terms.files[wish.range->file].name;
    End(call, i,
        wish.error ? *wish.error
                   : Error{ErrorCode::kDeadlineExceeded,
                           name + ": no answer within " + std::to_string(timeout.count()) + " ms"});
  }
}

void DelegatedQueue::QueueDue(Clock::time_point now) {
  while (!later_.empty() && later_.begin()->first <= now) {
    const std::uint64_t id = later_.begin()->second;
    later_.erase(later_.begin());
    Call* call = nullptr;
    Wish* const wish = Find(id, &call);
    if (wish == nullptr || wish->state != State::kLater) continue;
    wish->state = State::kWaiting;
    waiting_.push_front(id);
  }
}

bool DelegatedQueue::AddNext(const Terms& terms, DelegatedReads::Group& group,
                             std::uint64_t& group_bytes) {
  const std::uint64_t id = waiting_.front();
  Call* call = nullptr;
  Wish* const wish = Find(id, &call);
  if (wish == nullptr || wish->state != State::kWaiting) {
    waiting_.pop_front();
    return true;
  }
  const std::uint64_t size = wish->range->destination.size();
  if (!group.ranges.empty() && (group.ranges.size() >= terms.options.group_count_max ||
                                group_bytes + size > terms.options.group_bytes_max))
    return false;
  waiting_.pop_front();
  group.ranges.push_back({id, wish->range->file, wish->range->offset_bytes, size});
  group_bytes += size;
  taken_at_ = Clock::now();
  wish->state = State::kTaken;
  if (!std::exchange(wish->was_taken, true)) wish->since = taken_at_;
  return true;
}

void DelegatedQueue::WaitForWork(std::unique_lock<std::mutex>& lock) {
  ++idle_count_;
  if (later_.empty())
    work_.wait(lock);
  else
    WaitUntil(work_, lock, later_.begin()->first);
  --idle_count_;
}

DelegatedReads::Group DelegatedQueue::Take(const Terms& terms) {
  DelegatedReads::Group group;
  std::uint64_t group_bytes = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (is_closed_) return {};
    QueueDue(Clock::now());
    while (!waiting_.empty() && AddNext(terms, group, group_bytes)) {
    }
    if (!group.ranges.empty()) break;
    WaitForWork(lock);
  }
  group.is_help_wanted = !waiting_.empty() && idle_count_ == 0;
  terms.counts.requests += group.ranges.size();
  return group;
}

void DelegatedQueue::Answer(const Terms& terms, std::uint64_t id,
                            std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  Call* call = nullptr;
  Wish* const wish = Find(id, &call);
  if (wish == nullptr || wish->state != State::kTaken) return;
  const std::span<std::byte> destination = wish->range->destination;
  if (bytes.size() != destination.size()) {
    const bool is_short = bytes.size() < destination.size();
    std::string message = terms.files[wish->range->file].name + ": sent " +
                          BytesText(bytes.size()) + " instead of " + BytesText(destination.size()) +
                          " at " + std::to_string(wish->range->offset_bytes);
    if (!is_short) message += "; the store must support reads of ranges";
    return Fail(
        terms, id, *call,
        {is_short ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument, std::move(message)},
        is_short ? DelegatedReads::Retry::kLater : DelegatedReads::Retry::kNever);
  }
  // The caller waits for copies before it returns.
  wish->state = State::kCopied;
  ++call->copy_count;
  lock.unlock();
  std::memcpy(destination.data(), bytes.data(), bytes.size());
  terms.counts.received_bytes += bytes.size();
  lock.lock();
  --call->copy_count;
  End(*call, NumberOf(id), {});
}

void DelegatedQueue::Refuse(const Terms& terms, std::uint64_t id, Error error,
                            DelegatedReads::Retry retry) {
  const std::lock_guard lock(mutex_);
  Call* call = nullptr;
  const Wish* const wish = Find(id, &call);
  if (wish == nullptr || wish->state != State::kTaken) return;
  Fail(terms, id, *call, std::move(error), retry);
}

void DelegatedQueue::Fail(const Terms& terms, std::uint64_t id, Call& call, Error error,
                          DelegatedReads::Retry retry) {
  Wish& wish = call.wishes[NumberOf(id)];
  if (retry == DelegatedReads::Retry::kThrottled) ++terms.counts.throttled;
  const auto due = Clock::now() + wish.back_off.Next();
  if (retry == DelegatedReads::Retry::kNever || due >= wish.since + terms.options.timeout)
    return End(call, NumberOf(id), std::move(error));
  ++terms.counts.retries;
  wish.error = std::move(error);
  wish.state = State::kLater;
  later_.emplace(due, id);
  work_.notify_all();
}

bool DelegatedQueue::IsWanted(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  Call* call = nullptr;
  const Wish* const wish = Find(id, &call);
  return wish != nullptr && wish->state == State::kTaken;
}

void DelegatedQueue::Close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (const auto& [number, call] : calls_)
    for (std::size_t i = 0; i < call->wishes.size(); ++i) {
      const State state = call->wishes[i].state;
      if (state != State::kEnded && state != State::kCopied)
        End(*call, i, Error{ErrorCode::kUnavailable, "read files: their reader is closed"});
    }
  work_.notify_all();
}

}  // namespace ffrecord
