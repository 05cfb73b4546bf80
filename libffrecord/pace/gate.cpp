#include "libffrecord/pace/gate.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/pace/pacer.h"
#include "libffrecord/pace/signal_ring.h"

namespace ffrecord::pace {

std::atomic<bool> g_is_on{false};

namespace {

// How often a thread with a signal tries to hand it over. Those that hold the mutex hold it for a
// fraction of a microsecond, unless the kernel stops them.
constexpr int kTries = 20;
// A signal that releases nobody stays in the ring until a sender asks, for the pacer has left the
// processor's cache after a pause; but so many do not wait there.
constexpr std::uint64_t kSignalsLeft = 32;
// A signal that could not be handed over is found by those that wait within this time.
constexpr std::chrono::milliseconds kLook{5};
// No signal wakes a Turn: it looks so often.
constexpr std::chrono::milliseconds kTurnLook{1};

// Counts pacers; a forked child goes on counting, so that none of its own has a number of its
// parent's.
std::atomic<std::uint64_t> g_pacers{0};

class Gate;
// The gate that signals go to; null while pacing is off. One load: each step from pointer to
// pointer would cost a training thread the time that memory takes, for nothing is in its cache
// after a pause. In a forked child it is the parent's gate until the child has one, and holds
// nobody.
std::atomic<Gate*> g_signalled{nullptr};

class Gate {
 public:
  static Gate& Process() {
    // Never destroyed: threads may send while the process exits.
    static auto* const gate = new PerProcess<Gate>([] {
      // A child's, until it turns it on.
      g_is_on.store(false, std::memory_order_relaxed);
      g_signalled.store(nullptr, std::memory_order_relaxed);
      return new Gate;
    });
    return gate->Get();
  }

  void Start(const PacingOptions& options) {
    const std::lock_guard lock(mutex_);
    while (ring_.Pop()) {
    }
    lost_.store(0, std::memory_order_relaxed);
    pacer_.emplace(options, Clock::now());
    generation_ = ++g_pacers;
    g_is_on.store(true, std::memory_order_relaxed);
    g_signalled.store(this, std::memory_order_release);
    changed_.notify_all();
  }

  void Stop() {
    const std::lock_guard lock(mutex_);
    g_is_on.store(false, std::memory_order_relaxed);
    g_signalled.store(nullptr, std::memory_order_relaxed);
    if (!pacer_) return;
    TakeSignals();
    last_counters_ = pacer_->counters();
    for (auto& traffic : last_counters_.classes) traffic.held_now = 0;
    pacer_.reset();
    changed_.notify_all();
  }

  PacingCounters Counters() {
    const std::lock_guard lock(mutex_);
    if (!pacer_) return last_counters_;
    TakeSignals();
    return pacer_->counters();
  }

  void ReportQueue(bool is_low) noexcept {
    std::size_t low = low_queues_.load(std::memory_order_relaxed);
    while ((is_low || low > 0) && !low_queues_.compare_exchange_weak(
                                      low, is_low ? low + 1 : low - 1, std::memory_order_relaxed)) {
    }
  }

  bool has_low_queue() const noexcept { return low_queues_.load(std::memory_order_relaxed) > 0; }

  void Send(const Signal& signal) noexcept {
    const auto place = ring_.Push(signal);
    if (!place) lost_.fetch_add(1, std::memory_order_relaxed);
    // Either this sees a sender that waits, or that sender sees the signal.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool may_release =
        signal.what == Signal::What::kEnd || signal.what == Signal::What::kQueue;
    const bool is_awaited = may_release && waiting_.load(std::memory_order_relaxed) > 0;
    if (!is_awaited && place && (*place + 1) % kSignalsLeft != 0) return;
    for (int tries = 0; tries < kTries; ++tries) {
      if (!mutex_.try_lock()) continue;
      TakeSignals();
      const bool wakes = waiting_ > 0 && pacer_ && MayRelease(signal.what);
      if (wakes) ++round_;
      mutex_.unlock();
      // One of them, which wakes the others: this thread has better things to do.
      if (wakes) changed_.notify_one();
      return;
    }
  }

  std::uint64_t AwaitPart(Pacer::Request request) {
    Patience& patience = Patience::OfThread();
    std::unique_lock lock(mutex_);
    request.asked = Clock::now();
    std::uint64_t generation = generation_;
    std::uint64_t round = round_;
    waiting_.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // As in Send().
    std::uint64_t passed = 0;
    while (passed == 0) {
      TakeSignals();
      if (!pacer_ || patience.was_over()) break;
      if (generation != generation_) request.is_held = false;
      generation = generation_;
      const auto now = Clock::now();
      const Pacer::Answer answer = pacer_->Ask(request, now);
      passed = answer.size_bytes;
      if (passed > 0) break;
      if (round != round_ && announced_ != round_) {
        announced_ = round_;
        changed_.notify_all();
      }
      round = round_;
      (void)WaitUntil(changed_, lock, std::min(answer.until, now + kLook));
      if (patience.is_endless()) continue;
      lock.unlock();  // To answer, the caller may need what senders hold.
      (void)patience.IsOver();
      lock.lock();
    }
    waiting_.fetch_sub(1);
    if (pacer_ && generation == generation_) pacer_->Abandon(request);
    if (waiting_ > 0 && announced_ != round_) {
      announced_ = round_;
      changed_.notify_all();
    }
    return passed > 0 ? passed : request.size_bytes;
  }

  // As AwaitPart(), without waiting: until when it is held; none if it may go.
  std::optional<Clock::time_point> Try(Pacer::Request& request, std::uint64_t& generation) {
    const std::lock_guard lock(mutex_);
    TakeSignals();
    if (!pacer_) return std::nullopt;
    const auto now = Clock::now();
    if (generation != generation_) request.is_held = false;
    generation = generation_;
    if (!request.is_held) request.asked = now;
    const Pacer::Answer answer = pacer_->Ask(request, now);
    if (answer.size_bytes > 0) return std::nullopt;
    return std::min(answer.until, now + kTurnLook);
  }

  void Abandon(Pacer::Request& request, std::uint64_t generation) {
    const std::lock_guard lock(mutex_);
    if (pacer_ && generation == generation_) pacer_->Abandon(request);
  }

 private:
  // Whether what is held may go because of it.
  bool MayRelease(Signal::What what) const {
    if (what == Signal::What::kEnd) return !pacer_->is_in_phase();
    return what == Signal::What::kQueue && pacer_->has_low_queue();
  }

  void TakeSignals() noexcept {
    if (pacer_) pacer_->SetLowQueues(low_queues_.load(std::memory_order_relaxed));
    if (lost_.load(std::memory_order_relaxed) > 0) {
      std::uint64_t lost = lost_.exchange(0, std::memory_order_relaxed);
      while (ring_.Pop()) ++lost;  // Which of them came after the lost ones is not known.
      if (pacer_) pacer_->LoseSignals(lost, Clock::now());
    }
    while (const auto signal = ring_.Pop())
      if (pacer_) Tell(*signal);
  }

  void Tell(const Signal& signal) {
    switch (signal.what) {
      case Signal::What::kBegin:
        return pacer_->BeginPhase(signal.kind, signal.size_bytes, signal.time);
      case Signal::What::kEnd:
        return pacer_->EndPhase(signal.kind, signal.time);
      case Signal::What::kStep:
        return pacer_->EndStep(signal.time);
      case Signal::What::kQueue:
        return;  // Their count was looked at.
    }
  }

  SignalRing ring_;
  std::atomic<std::uint64_t> lost_{0};
  std::atomic<std::size_t> waiting_{0};     // Threads in AwaitPart().
  std::atomic<std::size_t> low_queues_{0};  // Known also while pacing is off.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Pacer> pacer_;  // None: off.
  PacingCounters last_counters_;
  std::uint64_t generation_ = 0;  // Number of the pacer.
  std::uint64_t round_ = 0;       // Counts signals that may let somebody go, and which of them
  std::uint64_t announced_ = 0;   // all that wait have had a notice.
};

void Send(Signal::What what, PhaseKind kind, std::uint64_t size_bytes) noexcept {
  Gate* const gate = g_signalled.load(std::memory_order_acquire);
  if (gate != nullptr) gate->Send({what, kind, size_bytes, Clock::now()});
}

}  // namespace

std::uint64_t AwaitPart(TrafficClass traffic, std::uint64_t size_bytes,
                        std::uint64_t least_size_bytes, Clock::time_point limit) {
  if (!IsOn() || size_bytes == 0) return size_bytes;
  return Gate::Process().AwaitPart(
      {.traffic = traffic,
       .size_bytes = size_bytes,
       .least_size_bytes = std::clamp<std::uint64_t>(least_size_bytes, 1, size_bytes),
       .limit = limit});
}

TrafficClass Promoted(TrafficClass traffic) noexcept {
  const bool is_promoted = traffic == TrafficClass::kPrefetch && Gate::Process().has_low_queue();
  return is_promoted ? TrafficClass::kUrgent : traffic;
}

void Turn::Abandon() {
  if (request_.is_held) Gate::Process().Abandon(request_, pacer_);
}

bool Turn::Come(std::uint64_t size_bytes) {
  if (!IsOn() || size_bytes == 0) return true;
  request_.size_bytes = request_.least_size_bytes = size_bytes;
  const auto held_until = Gate::Process().Try(request_, pacer_);
  if (held_until) until_ = *held_until;
  return !held_until;
}

}  // namespace ffrecord::pace

namespace ffrecord {

using pace::Gate;
using pace::Signal;

void BeginPhase(PhaseKind kind, std::uint64_t size_bytes) noexcept {
  pace::Send(Signal::What::kBegin, kind, size_bytes);
}

void EndPhase(PhaseKind kind) noexcept { pace::Send(Signal::What::kEnd, kind, 0); }

void EndStep() noexcept { pace::Send(Signal::What::kStep, PhaseKind::kOther, 0); }

void ReportLoaderQueue(bool is_low) noexcept {
  Gate::Process().ReportQueue(is_low);
  pace::Send(Signal::What::kQueue, PhaseKind::kOther, 0);
}

Result<void> StartPacing(const PacingOptions& options) {
  FFR_TRY(pace::Pacer::Check(options));
  Gate::Process().Start(options);
  return {};
}

void StopPacing() noexcept { Gate::Process().Stop(); }

bool IsPacing() noexcept {
  if (pace::IsOn()) (void)Gate::Process();  // Off in a forked child.
  return pace::IsOn();
}

void AwaitTurn(TrafficClass traffic, std::uint64_t size_bytes) {
  pace::AwaitWhole(traffic, size_bytes);
}

bool AwaitTurn(TrafficClass traffic, std::uint64_t size_bytes,
               const std::function<bool()>& give_up) {
  const Patience patience(give_up);
  pace::AwaitWhole(traffic, size_bytes);
  return !patience.was_over();
}

PacingCounters GetPacingCounters() { return Gate::Process().Counters(); }

}  // namespace ffrecord
