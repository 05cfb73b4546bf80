#include <ffrecord/batch_stream.h>
#include <ffrecord/runtime.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "libffrecord/base/event_log.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/process_threads.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/pace/gate.h"
#include "libffrecord/record/stream/decode_columns.h"
#include "libffrecord/record/stream/gather_columns.h"
#include "libffrecord/record/stream/read_ahead_depth.h"
#include "libffrecord/record/stream/step_order.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::uint32_t kThreadsMax = 64;
// Reads of one thread: while one ends and is checked, the device reads the next ones.
constexpr std::uint32_t kInFlightMax = 4;
// A thread that waits for its device looks so often whether the stream is closed.
constexpr milliseconds kStopInterval{20};
constexpr std::chrono::hours kEndless{24 * 365};

// Adds the time of a block to `sum`, and tells the profile, if it is of a kind that that has.
class Timed {
 public:
  explicit Timed(nanoseconds& sum, std::optional<ProfileKind> kind = std::nullopt)
      : sum_(sum), kind_(kind) {}
  ~Timed() {
    sum_ += Clock::now() - begin_;
    if (kind_) span_.End({.kind = static_cast<std::uint16_t>(*kind_)});
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  nanoseconds& sum_;
  const std::optional<ProfileKind> kind_;
  const ProfiledSpan span_;
  const Clock::time_point begin_ = Clock::now();
};

void Add(BatchStream::Stats& sum, const BatchStream::Stats& more) {
  sum.batches += more.batches;
  sum.records += more.records;
  sum.size_bytes += more.size_bytes;
  sum.order += more.order;
  sum.decode += more.decode;
  sum.collate += more.collate;
  sum.queue += more.queue;
  sum.idle += more.idle;
}

std::uint64_t MemoryOfColumns(const BatchStream::Item& item) {
  std::uint64_t size_bytes = 0;
  for (const ColumnValues& column : item.columns)
    if (column.owner) size_bytes += column.data.size();
  return size_bytes;
}

std::uint64_t MemoryOf(const BatchStream::Item& item) {
  return (item.batch ? item.batch.value().data().size() : 0) + MemoryOfColumns(item);
}

// Whether nothing of the batch is needed beside its columns.
bool AreApart(const std::vector<ColumnValues>& columns) {
  return !columns.empty() &&
         std::ranges::all_of(columns, [](const auto& column) { return column.owner != nullptr; });
}

Batch NoRecords() {
  static const auto kSchema = std::make_shared<const Schema>();
  return Batch(nullptr, {}, std::vector<std::int64_t>(), {}, {}, kSchema);
}

Result<void> Check(const BatchStream::Options& options, const Schema& schema) {
  const auto refuse = [](const char* option, std::uint64_t value, std::uint64_t max) {
    return Error{ErrorCode::kInvalidArgument, std::string("stream batches: ") + option + " is " +
                                                  std::to_string(value) + ", must be 1 to " +
                                                  std::to_string(max)};
  };
  if (options.threads < 1 || options.threads > kThreadsMax)
    return refuse("threads", options.threads, kThreadsMax);
  if (options.batches_ahead < 1 || options.batches_ahead > ReadAheadDepth::kMax)
    return refuse("batches_ahead", options.batches_ahead, ReadAheadDepth::kMax);
  for (const std::uint32_t column : options.gathered_columns)
    if (column >= schema.columns().size() || schema.width_bytes(column) == 0)
      return Error{ErrorCode::kInvalidArgument, "stream batches: there is no column " +
                                                    std::to_string(column) +
                                                    " of fixed width to gather"};
  for (const auto& [column, decoder] : options.decoded_columns)
    if (decoder == nullptr || (column && *column >= schema.columns().size()))
      return Error{ErrorCode::kInvalidArgument,
                   column ? "stream batches: there is no column " + std::to_string(*column) +
                                " to decode, or no decoder for it"
                          : "stream batches: there is no decoder for whole records"};
  return {};
}

}  // namespace

// --- What threads and consumer share -------------------------------------------------------------

struct BatchStream::Impl {
  class Worker;

  Impl(const RecordReader& of_reader, StepOrder of_steps, const Options& with)
      : reader(of_reader),
        order(of_steps),
        options(with),
        depth(std::max(with.batches_ahead, with.threads), with.threads, with.memory_limit_bytes) {}
  ~Impl();

  bool Start();
  std::optional<std::uint64_t> TakeStep(bool wait);
  void NotePlanned(std::uint64_t size_bytes);
  void Deliver(std::uint64_t number, Item item, std::uint64_t most_bytes, Stats& spent,
               std::uint64_t held_change);
  std::optional<Item> Next(milliseconds timeout);

  const RecordReader& reader;
  const StepOrder order;
  const Options options;
  const HomeProcess home;
  std::atomic<bool> is_closed{false};
  std::atomic<std::uint64_t> in_flight_bytes{0};  // Bytes of batches that threads are at.

  mutable std::mutex mutex;  // Guards what follows.
  ReadAheadDepth depth;
  Stats stats;              // Its `held_bytes` are those of batches that are ready.
  std::uint64_t begun = 0;  // Steps that threads have taken,
  std::uint64_t taken = 0;  // and that the consumer has.

 private:
  struct Slot {
    std::optional<Item> item;
    Clock::time_point ready_at;
  };
  struct Ask {
    Clock::time_point since;
    bool all_were_ready;
  };

  static void* Run(void* impl);
  // One always fits; how many others do shows with its size.
  bool HasRoom() const { return begun - taken < (depth.is_known() ? depth.value() : 1); }
  bool IsWorthWaking() const;
  void NoteReady();
  Slot& SlotOf(std::uint64_t number) { return slots_[number % slots_.size()]; }

  std::vector<pthread_t> threads_;
  std::condition_variable room_, arrived_;
  std::array<Slot, ReadAheadDepth::kMax> slots_;  // Slots of the steps [taken, begun).
  std::uint32_t ready_count_ = 0;
  bool is_low_ = false;  // That number, as was reported.
  std::uint32_t idle_threads_ = 0;
  bool is_awaited_ = false;   // By the consumer, step `taken`.
  std::optional<Ask> asked_;  // For that step.
};

// The step to begin next. Nothing: there is no room for one, or, if it had to wait for room, the
// stream is closed.
std::optional<std::uint64_t> BatchStream::Impl::TakeStep(bool wait) {
  std::unique_lock lock(mutex);
  if (wait && !HasRoom() && !is_closed) {
    const Timed timed(stats.idle);
    ++idle_threads_;
    room_.wait(lock, [&] { return is_closed || HasRoom(); });
    --idle_threads_;
  }
  if (is_closed || !HasRoom()) return std::nullopt;
  const std::uint64_t number = begun++;
  if (idle_threads_ > 0 && HasRoom()) room_.notify_one();
  return number;
}

// The block of a batch that was begun has that size; 0 if that is not known.
void BatchStream::Impl::NotePlanned(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex);
  if (size_bytes == 0 || depth.is_known()) return;
  depth.Expect(size_bytes);
  room_.notify_all();
}

// `most_bytes`: the most memory that the batch has taken. `held_change`: the change of what its
// thread holds. Both sums change under one lock, so that nobody counts the batch twice.
void BatchStream::Impl::Deliver(std::uint64_t number, Item item, std::uint64_t most_bytes,
                                Stats& spent, std::uint64_t held_change) {
  const std::uint64_t size_bytes = MemoryOf(item);
  const bool is_typical = static_cast<bool>(item.batch);
  const std::lock_guard lock(mutex);
  Slot& slot = SlotOf(number);
  slot.item.emplace(std::move(item));
  slot.ready_at = Clock::now();
  ++ready_count_;
  if (is_typical) {
    if (!depth.is_known()) room_.notify_all();
    depth.Weigh(most_bytes);
  }
  stats.held_bytes += size_bytes;
  in_flight_bytes += held_change;
  Add(stats, std::exchange(spent, {}));
  if (is_awaited_ && number == taken) arrived_.notify_one();
  NoteReady();
}

// Reads are as urgent as the consumer's waiting for them is near. Between the two marks it stays as
// it was, so that not every batch changes it. Those behind the one that is waited for help nobody.
void BatchStream::Impl::NoteReady() {
  const std::uint32_t low = std::max(depth.value() / 4, 1u);
  const bool is_wanted_now = asked_ && !SlotOf(taken).item;
  const bool is_low =
      is_wanted_now || ready_count_ < (is_low_ ? std::min(2 * low, depth.value()) : low);
  if (std::exchange(is_low_, is_low) != is_low) ReportLoaderQueue(is_low);
}

// A thread is woken for several steps, if there are many.
bool BatchStream::Impl::IsWorthWaking() const {
  const std::uint64_t room = depth.value() - std::min<std::uint64_t>(begun - taken, depth.value());
  return idle_threads_ > 0 && room >= std::max<std::uint64_t>(depth.value() / 4, 1);
}

std::optional<BatchStream::Item> BatchStream::Impl::Next(milliseconds timeout) {
  std::unique_lock lock(mutex);
  Slot& slot = SlotOf(taken);
  if (!asked_)
    asked_ =
        Ask{slot.item ? slot.ready_at : Clock::now(), ready_count_ == begun - taken && !HasRoom()};
  const bool had_to_wait = !slot.item;
  if (had_to_wait) {
    is_awaited_ = true;
    NoteReady();
    const auto has_come = [&] { return slot.item.has_value(); };
    // A very long wait would overflow the clock.
    if (timeout >= kEndless)
      arrived_.wait(lock, has_come);
    else
      WaitFor(arrived_, lock, std::max(timeout, milliseconds(0)), has_come);
    is_awaited_ = false;
    if (!slot.item) return std::nullopt;
  }
  const auto now = Clock::now();
  depth.Taken(had_to_wait ? now - asked_->since : nanoseconds(0), asked_->all_were_ready);
  if (!had_to_wait) stats.queue += now - slot.ready_at;
  asked_.reset();
  std::optional<Item> item = std::exchange(slot.item, std::nullopt);
  stats.held_bytes -= MemoryOf(*item);
  --ready_count_;
  ++taken;
  NoteReady();
  if (IsWorthWaking()) room_.notify_one();
  return item;
}

// --- A thread ------------------------------------------------------------------------------------

// Reads steps, several at a time. Lives on its thread's stack, for the queue is the thread's.
class BatchStream::Impl::Worker {
 public:
  explicit Worker(Impl& shared)
      : shared_(shared),
        in_flight_max_(
            std::clamp(shared.options.batches_ahead / shared.options.threads, 1u, kInFlightMax)),
        indices_(shared.order),
        queue_(shared.reader.OpenQueue(
            {.batches_in_flight = in_flight_max_, .in_order = false, .one_thread = true})) {}

  void Work() {
    const pace::TrafficScope scope(TrafficClass::kPrefetch);
    // Also where a step has to be planned from pages of an index that nobody sends.
    const Patience patience(is_closed_);
    while (!shared_.is_closed) {
      const bool may_begin = under_way_.size() < in_flight_max_;
      const auto number = may_begin ? shared_.TakeStep(under_way_.empty()) : std::nullopt;
      if (number) {
        Begin(*number);
        if (auto complete = Poll(milliseconds(0))) Deliver(*std::move(complete));
      } else if (auto complete = Poll(kStopInterval)) {
        // First give the device more to do.
        if (const auto following = shared_.TakeStep(false)) Begin(*following);
        Deliver(*std::move(complete));
      }
    }
  }

 private:
  struct UnderWay {
    std::uint64_t number;
    Item item;
  };

  void Begin(std::uint64_t number) {
    Item item;
    if (auto submitted = Submit(number, item); !submitted) {
      item.batch = std::move(submitted).error();
      return shared_.Deliver(number, std::move(item), 0, spent_, 0);
    }
    under_way_.push_back({number, std::move(item)});
    const std::uint64_t held_before = held_bytes_;
    NoteHeld(0);
    shared_.NotePlanned(held_bytes_ - std::min(held_before, held_bytes_));
  }

  Result<void> Submit(std::uint64_t number, Item& item) {
    {
      const Timed timed(spent_.order);
      const Step step = shared_.order.At(number);
      item.epoch = step.epoch;
      item.position = step.position;
      item.indices = FFR_TRY(indices_.Of(step));
    }
    if (!queue_) return queue_.error();
    return queue_.value().Submit(item.indices, number);
  }

  std::optional<BatchQueue::Completion> Poll(milliseconds timeout) {
    if (under_way_.empty()) return std::nullopt;
    auto polled = queue_.value().Poll(timeout);
    // It fails in a forked child alone, where there is no such thread.
    return polled ? std::move(polled).value() : std::nullopt;
  }

  void Deliver(BatchQueue::Completion complete) {
    const auto found = std::ranges::find(under_way_, complete.token, &UnderWay::number);
    Item item = std::move(found->item);
    under_way_.erase(found);
    item.batch = std::move(complete.batch);
    std::uint64_t most_bytes = MemoryOf(item);
    NoteHeld(most_bytes);
    if (item.batch) {
      ++spent_.batches;
      spent_.records += item.batch.value().size();
      spent_.size_bytes += item.batch.value().data().size();
      if (!MakeColumns(item)) item.columns.clear();
      most_bytes += MemoryOfColumns(item);
    }
    shared_.Deliver(complete.token, std::move(item), most_bytes, spent_, HeldChange(0));
  }

  // Tells how much memory this thread's batches have; `beside` those in the queue.
  void NoteHeld(std::uint64_t beside) { shared_.in_flight_bytes += HeldChange(beside); }

  // That memory, less what it was at the last call; below zero it wraps, and so does the sum.
  std::uint64_t HeldChange(std::uint64_t beside) {
    const std::uint64_t held_bytes = queue_.value().held_bytes() + beside;
    return held_bytes - std::exchange(held_bytes_, held_bytes);
  }

  // False if a record is not good, or does not become columns: then it has none of them.
  bool MakeColumns(Item& item) {
    const Batch& batch = item.batch.value();
    const Options& wanted = shared_.options;
    const auto is_bad = [](ErrorCode status) { return status != ErrorCode::kOk; };
    if (std::ranges::any_of(batch.statuses(), is_bad)) return false;
    {
      const Timed timed(spent_.collate, ProfileKind::kCollate);
      if (!GatherColumns(batch, wanted.gathered_columns, item.columns)) return false;
    }
    if (!wanted.decoded_columns.empty()) {
      const Timed timed(spent_.decode, ProfileKind::kDecode);
      if (!DecodeColumns(batch, wanted.decoded_columns, shared_.order.seed(), item.epoch,
                         item.position, is_closed_, item.columns))
        return false;
    }
    if (!wanted.keeps_records && AreApart(item.columns)) item.batch = NoRecords();
    return true;
  }

  Impl& shared_;
  const std::function<bool()> is_closed_ = [this] { return shared_.is_closed.load(); };
  const std::uint32_t in_flight_max_;
  StepOrder::Indices indices_;
  std::vector<UnderWay> under_way_;
  Stats spent_;
  std::uint64_t held_bytes_ = 0;
  Result<BatchQueue> queue_;
};

void* BatchStream::Impl::Run(void* impl) {
  Worker(*static_cast<Impl*>(impl)).Work();
  return nullptr;
}

bool BatchStream::Impl::Start() {
  for (std::uint32_t i = 0; i < options.threads; ++i) {
    pthread_t thread;
    if (!StartQuietThread(thread, &Run, this)) break;
    ::pthread_setname_np(thread, "ffrecord-loader");
    threads_.push_back(thread);
  }
  const std::lock_guard lock(mutex);
  NoteReady();
  return !threads_.empty();
}

BatchStream::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    is_closed = true;
  }
  room_.notify_all();
  for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
  if (is_low_) ReportLoaderQueue(false);
}

// --- The public face -----------------------------------------------------------------------------

Result<BatchStream> BatchStream::Open(const RecordReader& reader, const EpochPlan& plan,
                                      std::uint64_t epoch_end, const Options& options) {
  FFR_TRY(Check(options, reader.schema()));
  auto order = FFR_TRY(StepOrder::Make(plan, epoch_end, reader.record_count()));
  auto impl = std::make_unique<Impl>(reader, order, options);
  if (!impl->Start())
    return Error{ErrorCode::kIo, "stream batches: the system has no thread to give", EAGAIN};
  return BatchStream(std::move(impl));
}

BatchStream::BatchStream(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BatchStream::BatchStream(BatchStream&&) noexcept = default;

BatchStream& BatchStream::operator=(BatchStream&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

BatchStream::~BatchStream() {
  // In a forked child the threads, and what they read into, are the parent's.
  if (impl_ && !impl_->home.is_here()) static_cast<void>(impl_.release());
}

Result<std::optional<BatchStream::Item>> BatchStream::Next(milliseconds timeout) {
  if (!impl_->home.is_here())
    return Error{ErrorCode::kInvalidArgument,
                 "stream batches: the stream belongs to the parent of this process; open another"};
  return impl_->Next(timeout);
}

std::uint32_t BatchStream::depth() const {
  if (!impl_->home.is_here()) return 0;
  const std::lock_guard lock(impl_->mutex);
  return impl_->depth.value();
}

std::uint32_t BatchStream::pending() const {
  if (!impl_->home.is_here()) return 0;
  const std::lock_guard lock(impl_->mutex);
  return static_cast<std::uint32_t>(impl_->begun - impl_->taken);
}

BatchStream::Stats BatchStream::stats() const {
  if (!impl_->home.is_here()) return {};
  const std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->stats;
  stats.held_bytes += impl_->in_flight_bytes;
  return stats;
}

}  // namespace ffrecord
