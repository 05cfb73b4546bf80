#include "libffrecord/source/local_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/transfer_queue.h"
#include "libffrecord/source/waiting_read.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;

// How long a group waits for a descriptor while others use them all, and how often it tries.
constexpr std::chrono::seconds kDescriptorWaitMax{5};
constexpr milliseconds kDescriptorInterval{1};

bool IsExhausted(const Error& error) noexcept {
  return error.system_errno == EMFILE || error.system_errno == ENFILE;
}

struct Call;

// One range on its way.
struct RangeTransfer : Transfer {
  RangeTransfer(Call& of_call, RangeRead& of_range, const IoRequest& request)
      : Transfer(request), call(&of_call), range(&of_range) {}
  Call* call;
  RangeRead* range;
};

// One group on its way.
struct Call {
  RangeGroup* group = nullptr;
  std::span<RangeRead> ranges;
  std::vector<OpenFiles::Way> ways;      // One for each range.
  std::vector<RangeTransfer> transfers;  // One for each that was begun: stays where it is.
  std::size_t next = 0;                  // The first range that was not begun.
  std::size_t under_way = 0;             // Transfers that have not come back.
  std::vector<OpenFiles::Pin> pins;      // Pins of reads that are under way.
  std::uint32_t pinned_file = 0;         // File of the last pin.
  OpenFiles::Way pinned_way{};
  std::optional<Clock::time_point> starved_since;  // Lacks descriptors since.
  bool is_given_up = false;

  bool is_done() const noexcept { return next == ranges.size() && under_way == 0; }
};

// Memory that one queue leaves to the next of its thread, so that no call allocates for each range.
struct QueueMemory {
  bool Recycle() {
    constexpr std::size_t kKeptRangesMax = std::size_t{1} << 14;
    ended.clear();
    return std::ranges::all_of(
        spare, [](const auto& call) { return call->transfers.capacity() <= kKeptRangesMax; });
  }

  std::vector<std::unique_ptr<Call>> spare;
  std::vector<Transfer*> ended;
  TransferQueue::Memory transfers;
};

class LocalQueue final : public RangeQueue {
 public:
  LocalQueue(const LocalFiles& files, IoEngine& engine, QueueMemory& memory)
      : files_(files),
        memory_(memory),
        engine_(engine),
        queue_(engine, files.queue_depth(), TransferQueue::Wants::kEach, memory.transfers) {}
  ~LocalQueue() override {
    if (!home_.is_here()) return;
    queue_.Drain();
    while (!calls_.empty()) Drop(calls_.size() - 1);
  }

  void Submit(RangeGroup& group) override {
    FFR_ASSERT(home_.is_here());
    if (memory_.spare.empty()) memory_.spare.push_back(std::make_unique<Call>());
    Call& call = *calls_.emplace_back(std::move(memory_.spare.back()));
    memory_.spare.pop_back();
    call.group = &group;
    call.ranges = group.ranges();
    files_.ChooseWays(call.ranges, call.ways);
    call.transfers.reserve(call.ranges.size());
    Begin();
    // The next Poll() reports a failure.
    if (auto submitted = queue_.Submit(); !submitted) broken_ = std::move(submitted).error();
  }

  void GiveUp(RangeGroup& group) override;
  void Poll(milliseconds timeout) override;
  Result<int> EventDescriptor() override { return engine_.EventDescriptor(); }

 private:
  void Begin();
  bool BeginSome(Call& call);
  static bool IsPinned(const Call& call, const RangeRead& range);
  bool Pin(Call& call);
  bool Tell();
  bool EndCalls();
  void Drop(std::size_t index);

  const LocalFiles& files_;
  const HomeProcess home_;
  QueueMemory& memory_;
  IoEngine& engine_;
  std::vector<std::unique_ptr<Call>> calls_;          // In the order of Submit().
  std::vector<std::pair<Call*, RangeRead*>> failed_;  // Not begun; their groups do not know yet.
  std::optional<Error> broken_;                       // The engine.
  TransferQueue queue_;                               // Ends before what it writes to.
};

// Begins as many ranges as descriptors allow, the oldest group first. With a broken engine nothing
// would complete.
void LocalQueue::Begin() {
  if (broken_) return;
  for (const auto& call : calls_)
    if (!BeginSome(*call)) return;
}

// False: this group and all later ones must wait for a descriptor.
bool LocalQueue::BeginSome(Call& call) {
  if (call.under_way == 0) call.pins.clear();
  for (; call.next < call.ranges.size(); ++call.next) {
    RangeRead& range = call.ranges[call.next];
    if (!IsPinned(call, range) && !Pin(call)) return false;
    if (!IsPinned(call, range)) continue;
    const IoRequest request{.fd = call.pins.back().fd(),
                            .offset_bytes = range.offset_bytes,
                            .buffer = range.destination};
    queue_.Add(call.transfers.emplace_back(call, range, request));
    ++call.under_way;
  }
  return true;
}

bool LocalQueue::IsPinned(const Call& call, const RangeRead& range) {
  return !call.pins.empty() && call.ways[call.next] == call.pinned_way &&
         range.file == call.pinned_file;
}

// Opens the file of the next range, or lets that range fail. False: not now.
bool LocalQueue::Pin(Call& call) {
  RangeRead& range = call.ranges[call.next];
  if (call.pins.size() == files_.pin_count_max()) return false;
  auto pin = files_.Take(range.file, call.ways[call.next]);
  if (!pin && IsExhausted(pin.error())) {
    // All descriptors are in use. Transfers of this queue that are under way will free some; if
    // there are none, wait a while for other queues.
    if (queue_.count() > 0) return false;
    const auto now = Clock::now();
    if (!call.starved_since)
      call.starved_since = files_.HasJustStarved(now) ? now - kDescriptorWaitMax : now;
    if (now - *call.starved_since < kDescriptorWaitMax) return false;
    // The ranges that follow do not wait again.
    files_.NoteStarved(now);
  }
  if (pin) {
    call.starved_since.reset();
    call.pins.push_back(std::move(pin).value());
    call.pinned_file = range.file;
    call.pinned_way = call.ways[call.next];
    return true;
  }
  const bool is_other = pin.error().code == ErrorCode::kCorruption;
  range.status = is_other ? ErrorCode::kCorruption : ErrorCode::kIo;
  failed_.emplace_back(&call, &range);
  return true;
}

void LocalQueue::GiveUp(RangeGroup& group) {
  const auto call = std::ranges::find_if(
      calls_, [&](const auto& candidate) { return candidate->group == &group; });
  FFR_ASSERT(call != calls_.end());
  Call& given_up = **call;
  given_up.is_given_up = true;
  given_up.next = given_up.ranges.size();
  std::vector<Transfer*> withdrawn;
  queue_.Withdraw(
      [&](const Transfer& transfer) {
        return static_cast<const RangeTransfer&>(transfer).call == &given_up;
      },
      withdrawn);
  given_up.under_way -= withdrawn.size();
}

void LocalQueue::Poll(milliseconds timeout) {
  FFR_ASSERT(home_.is_here());
  Begin();
  // Also without groups the engine is asked: it may have told its descriptor of what was taken.
  if (Tell() || calls_.empty()) timeout = milliseconds(0);
  // Nothing is on its way because no descriptor is free.
  if (queue_.count() == 0) timeout = std::min(timeout, kDescriptorInterval);
  std::vector<Transfer*>& ended = memory_.ended;
  ended.clear();
  if (auto polled = queue_.Poll(timeout, ended); !polled) broken_ = std::move(polled).error();
  for (Transfer* transfer : ended) {
    const auto& own = *static_cast<RangeTransfer*>(transfer);
    --own.call->under_way;
    if (own.call->is_given_up) continue;
    own.range->status = files_.StatusOf(*own.range, transfer->result());
    own.call->group->Arrived(*own.range);
  }
  Tell();
  // With nothing in flight, the event descriptor would never become readable.
  if (queue_.in_flight() == 0 && !broken_) {
    Begin();
    if (auto submitted = queue_.Submit(); !submitted) broken_ = std::move(submitted).error();
  }
}

// Reports failed ranges and ended groups, also those of groups that are submitted meanwhile. True
// if it reported any.
bool LocalQueue::Tell() {
  bool has_told = false;
  do {
    while (!failed_.empty())
      for (const auto& [call, range] : std::exchange(failed_, {})) {
        if (call->is_given_up) continue;
        call->group->Arrived(*range);
        has_told = true;
      }
    if (EndCalls()) has_told = true;
  } while (!failed_.empty());
  return has_told;
}

// Stops where a range has failed: its group is called for that range before its end. A group that
// is called may submit another, and so also find that the engine is broken.
bool LocalQueue::EndCalls() {
  bool has_told = false;
  for (std::size_t i = 0; i < calls_.size() && failed_.empty();) {
    const Call& call = *calls_[i];
    if (!call.is_done() && !broken_) {
      ++i;
      continue;
    }
    if (broken_) queue_.Drain();
    RangeGroup& group = *call.group;
    const bool is_given_up = call.is_given_up;
    Drop(i);
    has_told = true;
    group.Ended(is_given_up ? Result<void>(GivenUp())
                : broken_   ? Result<void>(*broken_)
                            : Result<void>());
  }
  return has_told;
}

void LocalQueue::Drop(std::size_t index) {
  std::unique_ptr<Call> call = std::move(calls_[index]);
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(index));
  call->transfers.clear();
  call->pins.clear();
  call->next = call->under_way = 0;
  call->starved_since.reset();
  call->is_given_up = false;
  memory_.spare.push_back(std::move(call));
}

// A queue for many calls, with its own engine and memory.
class OwnLocalQueue final : public RangeQueue {
 public:
  OwnLocalQueue(const LocalFiles& files, std::unique_ptr<IoEngine> engine)
      : engine_(std::move(engine)), queue_(files, *engine_, memory_) {}

  void Submit(RangeGroup& group) override { queue_.Submit(group); }
  void GiveUp(RangeGroup& group) override { queue_.GiveUp(group); }
  void Poll(milliseconds timeout) override { queue_.Poll(timeout); }
  Result<int> EventDescriptor() override { return queue_.EventDescriptor(); }

 private:
  const std::unique_ptr<IoEngine> engine_;
  QueueMemory memory_;
  LocalQueue queue_;
};

}  // namespace

Result<std::unique_ptr<RangeQueue>> MakeLocalQueue(const LocalFiles& files,
                                                   RangeReader::QueueUse use) {
  const bool roves = use == RangeReader::QueueUse::kAnyThread;
  const std::uint32_t depth = files.queue_depth();
  return MakeLocalQueue(files, FFR_TRY(roves ? MakeRovingIoEngine(depth) : MakeIoEngine(depth)));
}

std::unique_ptr<RangeQueue> MakeLocalQueue(const LocalFiles& files,
                                           std::unique_ptr<IoEngine> engine) {
  return std::make_unique<OwnLocalQueue>(files, std::move(engine));
}

Result<void> ReadLocalFiles(const LocalFiles& files, std::span<RangeRead> ranges,
                            const RangeReader::Arrived& arrived, Patience& patience) {
  if (ranges.empty()) return {};
  if (patience.IsOver()) return GivenUp();
  const ThreadScratch<QueueMemory> memory;
  IoEngine* engine = FFR_TRY(ThreadIoEngine(files.queue_depth()));
  LocalQueue queue(files, *engine, *memory);
  return ReadThrough(queue, ranges, arrived, patience);
}

}  // namespace ffrecord
