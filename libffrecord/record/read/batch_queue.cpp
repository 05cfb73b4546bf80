#include "libffrecord/record/read/batch_queue.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/record/read/read_batch.h"
#include "libffrecord/record/read/resident_batch.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;

// Rounded up, so that no wait ends early and has to be repeated.
milliseconds MillisecondsUntil(BatchQueue::Clock::time_point end) {
  if (end == BatchQueue::kNoDeadline) return BatchQueue::kForever;
  return std::max(std::chrono::ceil<milliseconds>(end - ffrecord::Clock::now()), milliseconds(0));
}

BatchQueue::Clock::time_point EndOf(milliseconds timeout) {
  constexpr std::chrono::hours kYear{24 * 365};
  return timeout >= kYear ? BatchQueue::kNoDeadline
                          : ffrecord::Clock::now() + std::max(timeout, milliseconds(0));
}

Error OfParent() {
  return {ErrorCode::kInvalidArgument,
          "read batches: the queue belongs to the parent of this process; open another one"};
}

}  // namespace

// One batch, from Submit() until it is returned or dropped.
class BatchQueue::Impl::Ask final : public RangeGroup {
 public:
  Ask(Impl& queue, std::span<const std::uint64_t> indices, std::uint64_t its_token,
      Clock::time_point its_deadline)
      : token(its_token),
        deadline(its_deadline),
        queue_(queue),
        indices_(indices.begin(), indices.end()) {}

  bool has_begun() const noexcept { return result || stage_ != Stage::kWaiting; }
  // Whether it counts against the limit; one that has failed has no memory.
  bool has_memory() const noexcept { return result ? bool(*result) : stage_ != Stage::kWaiting; }
  // Whether Proceed() would do something.
  bool may_proceed() const noexcept {
    return !result && stage_ != Stage::kReading && index_.pending_count == 0;
  }
  // Whether something of it is in the range queue.
  bool is_under_way() const noexcept { return !result && has_begun(); }
  bool is_reading() const noexcept { return !result && stage_ == Stage::kReading; }
  bool is_over() const {
    return is_dropped || (deadline != kNoDeadline && ffrecord::Clock::now() >= deadline);
  }

  // Takes the next step: begins to read what it lacks of indexes, then its records. Complete
  // afterwards, or under way.
  void Proceed();
  // Gives up what of it is under way; without records under way it is complete at once.
  void Expire();
  std::span<RangeRead> ranges() noexcept override { return read_->ranges(); }
  std::uint64_t held_bytes() const noexcept {
    if (result) return *result ? result->value().data().size() : 0;
    return read_ ? read_->size_bytes() : 0;
  }
  // Requires that its records are being read.
  StageSums::Sum& check_stage() const noexcept { return read_->check_stage(); }
  void Arrived(RangeRead& range) override {
    if (!is_dropped) read_->Arrived(range);
  }
  void Ended(Result<void> result) override;

  const std::uint64_t token;
  const Clock::time_point deadline;
  bool is_dropped = false;   // By Cancel().
  bool is_given_up = false;  // Its ranges are.
  std::optional<Result<Batch>> result;

 private:
  enum class Stage : std::uint8_t { kWaiting, kIndexes, kReading };

  void ReadIndexes();
  void ReadRecords(StageClock& clock);
  void Complete(Result<Batch> with);

  Impl& queue_;
  Stage stage_ = Stage::kWaiting;
  IndexFetches::Wait index_;
  const std::vector<std::uint64_t> indices_;
  std::unique_ptr<BatchRead::Workspace> workspace_;
  std::optional<BatchRead> read_;
};

void BatchQueue::Impl::Ask::Proceed() {
  if (is_over()) return Complete(GivenUp());
  StageClock clock(queue_.reader.stages);
  if (stage_ == Stage::kWaiting) ReadIndexes();
  if (index_.pending_count == 0) ReadRecords(clock);
  clock.Lap(queue_.reader.stages.submit);
}

void BatchQueue::Impl::Ask::Expire() {
  if (stage_ != Stage::kReading) {
    queue_.index_fetches.Leave(index_, *queue_.ranges);
    return Complete(GivenUp());
  }
  is_given_up = true;
  queue_.ranges->GiveUp(*this);
}

// Nearly every batch lacks nothing of the indexes.
void BatchQueue::Impl::Ask::ReadIndexes() {
  auto parts = LackingParts(queue_.reader, indices_);
  if (parts.empty()) return;
  queue_.index_fetches.Begin(std::move(parts), index_, *queue_.ranges);
  stage_ = Stage::kIndexes;
}

void BatchQueue::Impl::Ask::ReadRecords(StageClock& clock) {
  Patience& caller = Patience::OfThread();  // May give up before its batch does.
  const Patience::GiveUp give_up = [&] { return is_over() || caller.IsOver(); };
  Patience patience(give_up);
  const RecordReader::Impl& source = queue_.reader;
  // A copy from memory would look up records whose index has just failed.
  if (index_.failures.empty()) {
    if (auto resident = CopyResident(source, indices_, clock, patience)) {
      source.batches_from_memory.fetch_add(1, std::memory_order_relaxed);
      return Complete(*std::move(resident));
    }
  }
  if (patience.was_over()) return Complete(GivenUp());
  source.batches_read.fetch_add(1, std::memory_order_relaxed);
  workspace_ = queue_.TakeWorkspace();
  read_.emplace(source, *workspace_);
  if (auto planned = read_->Plan(indices_, index_.failures); planned) {
    stage_ = Stage::kReading;
    queue_.ranges->Submit(*this);
  } else {
    Complete(std::move(planned).error());
  }
}

// Nothing writes to its memory any more.
void BatchQueue::Impl::Ask::Ended(Result<void> ended) {
  if (!ended) return Complete(std::move(ended).error());
  if (is_dropped) return Complete(GivenUp());
  Patience& caller = Patience::OfThread();  // May give up before its batch does.
  const Patience::GiveUp give_up = [&] { return is_over() || caller.IsOver(); };
  const Patience patience(give_up);
  Complete(read_->Finish());
}

void BatchQueue::Impl::Ask::Complete(Result<Batch> with) {
  result.emplace(std::move(with));
  read_.reset();
  if (workspace_) queue_.spare.push_back(std::move(workspace_));
}

// --- The queue -----------------------------------------------------------------------------------

BatchQueue::Impl::Impl(const RecordReader::Impl& of_reader, const Options& with,
                       std::unique_ptr<RangeQueue> through)
    : reader(of_reader), options(with), index_fetches(of_reader), ranges(std::move(through)) {}

BatchQueue::Impl::~Impl() {
  if (home.is_here()) return;
  // In a forked child, the parent still works on the batches: leave their memory alone.
  for (auto& ask : asks) static_cast<void>(ask.release());
}

std::unique_ptr<BatchRead::Workspace> BatchQueue::Impl::TakeWorkspace() {
  if (spare.empty()) return std::make_unique<BatchRead::Workspace>();
  auto workspace = std::move(spare.back());
  spare.pop_back();
  return workspace;
}

// Has batches take their next step, and begins waiting ones as far as the limits allow. Whether any
// has.
bool BatchQueue::Impl::BeginMore() {
  bool has_any = false;
  for (const auto& ask : asks) {
    if (!ask->may_proceed()) continue;
    if (!ask->has_begun() && begun_count() >= options.batches_in_flight) break;
    ask->Proceed();
    has_any = true;
  }
  return has_any;
}

// The number of batches that have memory.
std::size_t BatchQueue::Impl::begun_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(asks, [](const auto& ask) { return ask->has_memory(); }));
}

std::size_t BatchQueue::Impl::size() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(asks, [](const auto& ask) { return !ask->is_dropped; }));
}

// Gives up batches whose deadline has passed or that were cancelled. Whether there were any.
bool BatchQueue::Impl::Expire() {
  bool has_any = false;
  for (const auto& ask : asks) {
    if (ask->result || ask->is_given_up || !ask->is_over()) continue;
    ask->Expire();
    has_any = true;
  }
  std::erase_if(asks, [](const auto& ask) { return ask->is_dropped && ask->result; });
  return has_any;
}

BatchQueue::Clock::time_point BatchQueue::Impl::NextDeadline() const {
  auto next = kNoDeadline;
  for (const auto& ask : asks)
    if (!ask->result && !ask->is_given_up) next = std::min(next, ask->deadline);
  return next;
}

// The batch that Poll() returns next; the end if there is none now.
std::vector<std::unique_ptr<BatchQueue::Impl::Ask>>::iterator BatchQueue::Impl::FindComplete() {
  const auto ask = std::ranges::find_if(asks, [&](const auto& candidate) {
    return !candidate->is_dropped && (candidate->result || options.in_order);
  });
  return ask != asks.end() && (*ask)->result ? ask : asks.end();
}

std::optional<BatchQueue::Completion> BatchQueue::Impl::TakeComplete() {
  const auto ask = FindComplete();
  if (ask == asks.end()) return std::nullopt;
  Completion completion{(*ask)->token, *std::move((*ask)->result)};
  asks.erase(ask);
  return completion;
}

void BatchQueue::Impl::RingIfComplete() {
  if (event.fd() < 0) return;
  if (FindComplete() != asks.end())
    event.Ring();
  else
    event.Clear();
}

Result<std::optional<BatchQueue::Completion>> BatchQueue::Impl::Poll(milliseconds timeout) {
  const auto end = EndOf(timeout);
  for (bool has_polled = false;; has_polled = true) {
    // Polls at least once for reads that were handed to the range queue, for it may rely on that to
    // ring its descriptor.
    if (Expire()) has_polled = false;
    if (BeginMore()) has_polled = false;
    auto complete = TakeComplete();
    const bool is_over = has_polled && (ffrecord::Clock::now() >= end || size() == 0);
    // A descriptor that the range queue has rung late rests only once that queue finds nothing.
    const bool is_idle = asks.empty() && index_fetches.empty() && (has_polled || event.fd() < 0);
    if (complete || is_idle || is_over) {
      RingIfComplete();
      return complete;
    }
    // Nobody waits for cancelled batches to end.
    PollRanges(size() == 0 ? milliseconds(0) : MillisecondsUntil(std::min(end, NextDeadline())));
  }
}

void BatchQueue::Impl::PollRanges(milliseconds timeout) {
  const auto ask = std::ranges::find_if(asks, [](const auto& one) { return one->is_reading(); });
  // Batches of one reader are alike: all checks of this call count as those of the oldest batch.
  StageSums::Sum& stage = ask != asks.end() ? (*ask)->check_stage() : reader.stages.submit;
  StageClock clock(reader.stages);
  ranges->Poll(timeout);
  clock.Lap(stage);
}

Result<int> BatchQueue::Impl::EventDescriptor() {
  if (events) return events.get();
  const auto failure = [](const char* what) {
    return Error{ErrorCode::kIo,
                 std::string("read batches: cannot ") + what + ": " + std::strerror(errno), errno};
  };
  auto ring = FFR_TRY(EventFd::Make());
  const int source = FFR_TRY(ranges->EventDescriptor());
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  if (!set) return failure("make a set of descriptors");
  for (const int fd : {ring.fd(), source}) {
    epoll_event event_wanted{};
    event_wanted.events = EPOLLIN;
    if (::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event_wanted) != 0)
      return failure("wait for a descriptor");
  }
  event = std::move(ring);
  events = std::move(set);
  RingIfComplete();
  return events.get();
}

// --- The public face -----------------------------------------------------------------------------

BatchQueue::BatchQueue(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BatchQueue::BatchQueue(BatchQueue&&) noexcept = default;
BatchQueue& BatchQueue::operator=(BatchQueue&&) noexcept = default;
BatchQueue::~BatchQueue() = default;

Result<void> BatchQueue::Submit(std::span<const std::uint64_t> indices, std::uint64_t token,
                                Clock::time_point deadline) {
  if (!impl_->home.is_here()) return OfParent();
  FFR_TRY(CheckIndices(impl_->reader, indices));
  impl_->asks.push_back(std::make_unique<Impl::Ask>(*impl_, indices, token, deadline));
  impl_->BeginMore();
  impl_->RingIfComplete();
  return {};
}

Result<std::optional<BatchQueue::Completion>> BatchQueue::Poll(milliseconds timeout) {
  if (!impl_->home.is_here()) return OfParent();
  return impl_->Poll(timeout);
}

bool BatchQueue::Cancel(std::uint64_t token) {
  const auto ask = std::ranges::find_if(impl_->asks, [&](const auto& candidate) {
    return candidate->token == token && !candidate->is_dropped;
  });
  if (!impl_->home.is_here() || ask == impl_->asks.end()) return false;
  (*ask)->is_dropped = true;
  const bool is_under_way = (*ask)->is_under_way();
  impl_->Expire();
  // The range queue can end what it has given up, and batches behind it can begin, only in Poll().
  if (is_under_way && impl_->event.fd() >= 0)
    impl_->event.Ring();
  else
    impl_->RingIfComplete();
  return true;
}

std::size_t BatchQueue::size() const noexcept { return impl_->size(); }

std::uint64_t BatchQueue::held_bytes() const noexcept {
  std::uint64_t size_bytes = 0;
  for (const auto& ask : impl_->asks) size_bytes += ask->held_bytes();
  return size_bytes;
}

Result<int> BatchQueue::EventDescriptor() {
  if (!impl_->home.is_here()) return OfParent();
  return impl_->EventDescriptor();
}

Result<BatchQueue> OpenBatchQueue(const RecordReader::Impl& reader,
                                  const BatchQueue::Options& options) {
  constexpr std::uint32_t kBatchesMax = 64;
  if (options.batches_in_flight < 1 || options.batches_in_flight > kBatchesMax)
    return Error{ErrorCode::kInvalidArgument, "read batches: batches_in_flight is " +
                                                  std::to_string(options.batches_in_flight) +
                                                  ", must be 1 to 64"};
  auto ranges = FFR_TRY(reader.source->MakeQueue(
      options.one_thread ? RangeReader::QueueUse::kOneThread : RangeReader::QueueUse::kAnyThread));
  return BatchQueue(std::make_unique<BatchQueue::Impl>(reader, options, std::move(ranges)));
}

}  // namespace ffrecord
