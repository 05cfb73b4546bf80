#include <ffrecord/client/collective.h>
#include <ffrecord/runtime.h>

#include <algorithm>
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "client/collective/cost_model.h"
#include "client/collective/engine_options.h"
#include "client/collective/exchange.h"
#include "client/collective/links.h"
#include "client/collective/machines.h"
#include "client/collective/messages.h"
#include "client/collective/outcomes.h"
#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::client {
namespace {

// Submitted and not yet ended; a training step has some hundreds at most.
constexpr std::size_t kOperationsMax = 65'536;
// Smaller arrays are not what is tuned for.
constexpr std::uint64_t kTunedSizeMin = 64 << 10;

Error Refused(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

std::int64_t Nanoseconds(net::Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

struct CollectiveEngine::Impl {
  Impl(std::uint32_t own_rank, std::uint32_t size, const Options& chosen, net::TcpListener opened,
       std::optional<net::LocalListener> opened_locally, const MemberAddress& own_address,
       EventFd made, std::deque<net::RdmaLinks> opened_rails)
      : rank(own_rank),
        world_size(size),
        options(chosen),
        listener(std::move(opened)),
        local_listener(std::move(opened_locally)),
        address(own_address.ToString()),
        wakeup(std::move(made)),
        rails(std::move(opened_rails)) {
    if (options.carries_messages) messages.emplace();
  }

  void AssertNotForked() const { FFR_ASSERT(home.is_here()); }

  // --- Any thread ---
  Result<Token> Submit(const Plan& plan, void* data, ReduceType type, ReduceOp op);
  Algorithm AlgorithmFor(Collective collective, std::uint64_t count, ReduceType type);
  std::uint64_t ChunkSizeLocked() const {
    return tuning.chunk_size_bytes != 0 ? tuning.chunk_size_bytes : options.chunk_size_bytes;
  }
  std::uint64_t ChunkSizeLocked(const Plan& plan, ReduceType type) const;
  Result<void> CheckOpenLocked() const;
  void QueueLocked(Token token, const Plan& plan, void* data, ReduceType type, ReduceOp op);
  template <class Act>
  Result<std::optional<Token>> OnMessages(std::uint32_t own_rank, Act act);
  void DoLocked(const Messages::Wants& wants);
  Result<Token> OrClosed(std::optional<Token> token);
  void Shutdown();

  // --- The progress thread ---
  void Run(Exchange exchange);
  bool TakeSubmitted(Exchange& exchange);
  Result<void> Publish(const std::vector<Exchange::Ended>& finished);
  Result<void> EndPartLocked();
  Result<void> LookForMessages(const Exchange& exchange);
  void Break(const Error& why);

  const std::uint32_t rank;
  const std::uint32_t world_size;
  const Options options;
  std::optional<net::TcpListener> listener;  // Until Connect(), as the other.
  std::optional<net::LocalListener> local_listener;
  const std::string address;
  const HomeProcess home;
  EventFd wakeup;
  std::deque<net::RdmaLinks> rails;  // Empty: TCP.
  ExchangeCounters counters;
  GroupCost cost;     // Written by Connect() only.
  Machines machines;  // The same.
  std::thread thread;

  std::mutex mutex;
  std::condition_variable ended;  // Something was added to `done`, or the group was closed.
  bool is_connected = false;      // Connect() was called.
  bool is_shut_down = false;
  std::optional<Error> closed;  // Why no operation can succeed any more.
  std::vector<Operation> submitted;
  Tuning tuning;
  Token next_token = 0;
  Outcomes outcomes;
  std::optional<Messages> messages;
  struct Part {
    Token sequence;
    bool is_phase;
  };
  std::deque<Part> parts;  // Operations that move parts of messages, oldest first.
};

// --- Setting up ----------------------------------------------------------------------------------

Result<CollectiveEngine> CollectiveEngine::Create(std::uint32_t rank, std::uint32_t world_size,
                                                  const Options& options) {
  FFR_TRY(CheckOptions(rank, world_size, options));
  auto rails = FFR_TRY(OpenRails(options));
  auto listener = FFR_TRY(net::TcpListener::Listen({options.listen_host, 0}));
  auto wakeup = FFR_TRY(EventFd::Make());
  MemberAddress address{listener.address().ToString()};
  std::optional<net::LocalListener> local_listener;
  if (const auto machine = options.shares_memory ? ThisMachine() : std::nullopt) {
    local_listener = FFR_TRY(net::LocalListener::Listen(NewLocalName()));
    address.machine = *machine;
    address.local = local_listener->name();
  }
  return CollectiveEngine(std::make_unique<Impl>(rank, world_size, options, std::move(listener),
                                                 std::move(local_listener), address,
                                                 std::move(wakeup), std::move(rails)));
}

CollectiveEngine::CollectiveEngine(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CollectiveEngine::CollectiveEngine(CollectiveEngine&&) noexcept = default;
CollectiveEngine& CollectiveEngine::operator=(CollectiveEngine&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

CollectiveEngine::~CollectiveEngine() {
  if (!impl_) return;
  if (!impl_->home.is_here()) {
    // A forked child has the memory but not the thread: what that thread held cannot be released.
    static_cast<void>(impl_.release());
    return;
  }
  Shutdown();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::string CollectiveEngine::address() const { return impl_->address; }

Result<void> CollectiveEngine::Connect(std::span<const std::string> addresses,
                                       std::span<const std::byte, 16> secret) {
  Impl& impl = *impl_;
  impl.AssertNotForked();
  if (addresses.size() != impl.world_size)
    return Refused(std::to_string(addresses.size()) + " addresses for a group of " +
                   std::to_string(impl.world_size) + " ranks");
  {
    const std::lock_guard lock(impl.mutex);
    if (impl.closed) return *impl.closed;
    if (impl.is_connected) return Refused("this rank has joined its group already");
    impl.is_connected = true;
  }
  if (impl.world_size == 1) {
    impl.listener.reset();
    impl.local_listener.reset();
    return {};
  }

  GroupHello hello{.rank = impl.rank,
                   .world_size = impl.world_size,
                   .chunk_size_bytes = impl.options.chunk_size_bytes,
                   .wire = impl.options.wire,
                   .transport = impl.options.transport,
                   .streams = impl.options.streams};
  std::ranges::copy(secret, hello.secret.begin());
  const auto joined = [&]() -> Result<void> {
    impl.machines = FFR_TRY(Machines::Of(addresses));
    if (impl.options.algorithm == Algorithm::kHierarchical && impl.machines.ranks_each() == 0)
      return Refused(
          "the hierarchical algorithm needs machines with equally many ranks that share"
          " memory, and more than one on each");
    const Meeting meeting{*impl.listener, impl.local_listener ? &*impl.local_listener : nullptr,
                          impl.wakeup.fd(), impl.rails.empty() ? nullptr : &impl.rails};
    auto links = JoinGroup(hello, addresses, impl.machines, meeting,
                           net::Clock::now() + impl.options.timeout);
    std::unique_ptr<Replacements> replacements;
    if (links && impl.options.streams > 1 && impl.rails.empty()) {
      std::vector<std::string> hosts;
      for (const std::string& address : addresses)
        hosts.push_back(FFR_TRY(MemberAddress::Parse(address)).tcp);
      replacements = std::make_unique<Replacements>(hello, std::move(hosts),
                                                    std::move(*impl.listener), impl.wakeup.fd());
    }
    impl.listener.reset();  // Nobody else is to come but replacements.
    impl.local_listener.reset();
    Exchange exchange({.rank = impl.rank,
                       .world_size = impl.world_size,
                       .chunk_size_bytes = impl.options.chunk_size_bytes,
                       .wire = impl.options.wire,
                       .streams = impl.options.streams,
                       .timeout = impl.options.timeout,
                       .machines = impl.machines},
                      FFR_TRY(std::move(links)), std::move(replacements), impl.counters);
    {
      const QuietSignals quiet;  // Signals belong to the program's threads.
      impl.thread = std::thread(
          [&impl, moved = std::move(exchange)]() mutable { impl.Run(std::move(moved)); });
    }
    // The group is whole when a first operation, over nothing, has ended.
    const Token whole = FFR_TRY(Barrier());
    FFR_TRY(Wait(whole));
    if (!impl.options.algorithm) FFR_TRY(ChooseAlgorithms());
    return {};
  }();
  if (!joined) {
    Error error{joined.error()};
    error.message = "rank " + std::to_string(impl.rank) + " cannot join its group of " +
                    std::to_string(impl.world_size) + ": " + error.message;
    impl.Break(error);
    return error;
  }
  return {};
}

Result<void> CollectiveEngine::ChooseAlgorithms() {
  const bool has_hierarchy = impl_->machines.ranks_each() > 0 && impl_->machines.count() > 1;
  const auto run = [&](const Plan& plan, void* data, ReduceType type) -> Result<void> {
    return Wait(FFR_TRY(impl_->Submit(plan, data, type, ReduceOp::kMax)));
  };
  impl_->cost =
      FFR_TRY(MeasureCost(impl_->world_size, impl_->options.chunk_size_bytes, has_hierarchy, run));
  return {};
}

// --- Operations ----------------------------------------------------------------------------------

Result<CollectiveEngine::Token> CollectiveEngine::AllReduce(void* data, std::uint64_t count,
                                                            ReduceType type, ReduceOp op) {
  const Plan plan{.collective = Collective::kAllReduce,
                  .algorithm = impl_->AlgorithmFor(Collective::kAllReduce, count, type),
                  .count = count};
  return impl_->Submit(plan, data, type, op);
}

Result<CollectiveEngine::Token> CollectiveEngine::ReduceScatter(void* data, std::uint64_t count,
                                                                ReduceType type, ReduceOp op) {
  return impl_->Submit({.collective = Collective::kReduceScatter, .count = count}, data, type, op);
}

Result<CollectiveEngine::Token> CollectiveEngine::AllGather(void* data, std::uint64_t count,
                                                            ReduceType type) {
  return impl_->Submit({.collective = Collective::kAllGather, .count = count}, data, type,
                       ReduceOp::kSum);
}

Result<CollectiveEngine::Token> CollectiveEngine::Broadcast(void* data, std::uint64_t count,
                                                            ReduceType type, std::uint32_t root) {
  if (root >= impl_->world_size)
    return Refused("a broadcast from rank " + std::to_string(root) + " of a group of " +
                   std::to_string(impl_->world_size));
  const Plan plan{.collective = Collective::kBroadcast,
                  .algorithm = impl_->AlgorithmFor(Collective::kBroadcast, count, type),
                  .root = root,
                  .count = count};
  return impl_->Submit(plan, data, type, ReduceOp::kSum);
}

Result<CollectiveEngine::Token> CollectiveEngine::Barrier() {
  return impl_->Submit({.algorithm = Algorithm::kRecursiveDoubling}, nullptr, ReduceType::kI64,
                       ReduceOp::kSum);
}

CollectiveEngine::Shard CollectiveEngine::ShardOf(std::uint64_t count, std::uint32_t world_size,
                                                  std::uint32_t rank) noexcept {
  const Range part = client::PartOf(count, world_size, rank);
  return {part.begin, part.end};
}

Algorithm CollectiveEngine::Impl::AlgorithmFor(Collective collective, std::uint64_t count,
                                               ReduceType type) {
  const auto [chunk_size_bytes, tuned] = [&] {
    const std::lock_guard lock(mutex);
    return std::pair(ChunkSizeLocked(), tuning.algorithm);
  }();
  if (tuned && collective == Collective::kAllReduce && IsNumber(type) &&
      std::min(count, kCountMax) * SizeOf(type) >= kTunedSizeMin)
    return *tuned;
  if (options.algorithm)
    return IsOffered(collective, *options.algorithm) ? *options.algorithm : Algorithm::kRing;
  if (world_size == 1 || FindTraits(type) == nullptr) return Algorithm::kRing;
  const std::uint64_t size_bytes = std::min(count, kCountMax) * SizeOf(type);
  if (collective == Collective::kBroadcast)
    return CheapestBroadcast(world_size, size_bytes, chunk_size_bytes, cost.link);
  const bool is_f16 = options.wire == WireType::kF16 && type == ReduceType::kF32;
  return CheapestAllReduce(world_size, size_bytes, chunk_size_bytes,
                           {.link = cost.link,
                            .hierarchy = cost.hierarchy,
                            .is_one_machine = machines.count() == 1,
                            .allows_halving = !is_f16});
}

std::uint64_t CollectiveEngine::Impl::ChunkSizeLocked(const Plan& plan, ReduceType type) const {
  const std::uint64_t chunk_size_bytes = ChunkSizeLocked();
  return tuning.chunk_size_bytes != 0
             ? chunk_size_bytes
             : ChunkSizeFor(plan, SizeOf(type), world_size, chunk_size_bytes);
}

Result<CollectiveEngine::Token> CollectiveEngine::Impl::Submit(const Plan& plan, void* data,
                                                               ReduceType type, ReduceOp op) {
  AssertNotForked();
  FFR_TRY(CheckOperation(plan, data, type, op));
  const std::lock_guard lock(mutex);
  if (closed) return *closed;
  FFR_TRY(CheckOpenLocked());
  const Token token = next_token++;
  if (world_size == 1) {
    const std::int64_t now = Nanoseconds(net::Clock::now());
    counters.operations.fetch_add(1, std::memory_order_relaxed);
    outcomes.Begin(token, false);
    outcomes.End(token, {}, now);
    ended.notify_all();
    return token;
  }
  // Within one machine it needs no network, and a barrier next to none.
  const bool is_phase = plan.count > 0 && machines.count() > 1;
  if (is_phase) BeginPhase(PhaseKind::kCollective, plan.count * SizeOf(type));
  outcomes.Begin(token, is_phase);
  QueueLocked(token, plan, data, type, op);
  return token;
}

Result<void> CollectiveEngine::Impl::CheckOpenLocked() const {
  if (!is_connected) return Refused("this rank has not joined its group: call Connect() first");
  if (outcomes.pending_count() < kOperationsMax) return {};
  return Error{ErrorCode::kUnavailable,
               std::to_string(kOperationsMax) + " operations are pending; wait for some of them"};
}

void CollectiveEngine::Impl::QueueLocked(Token token, const Plan& plan, void* data, ReduceType type,
                                         ReduceOp op) {
  submitted.push_back(
      {token, static_cast<std::byte*>(data), plan, type, op, ChunkSizeLocked(plan, type)});
  wakeup.Ring();
}

Result<void> CollectiveEngine::Wait(Token token) {
  while (!FFR_TRY(WaitFor(token, std::chrono::hours(1)))) {
  }
  return {};
}

Result<bool> CollectiveEngine::WaitFor(Token token, std::chrono::milliseconds limit) {
  impl_->AssertNotForked();
  const auto deadline = net::Clock::now() + limit;
  std::unique_lock lock(impl_->mutex);
  for (bool is_late = false;;) {
    if (auto completion = impl_->outcomes.Take(token)) {
      FFR_TRY(std::move(completion->outcome));
      return true;
    }
    if (!impl_->outcomes.IsPending(token))
      return Refused("operation " + std::to_string(token) +
                     " was never submitted, or its outcome has been returned already");
    if (is_late) return false;
    is_late = WaitUntil(impl_->ended, lock, deadline) == std::cv_status::timeout;
  }
}

Result<CollectiveEngine::Completion> CollectiveEngine::WaitAny(std::chrono::milliseconds timeout) {
  impl_->AssertNotForked();
  const auto deadline = net::Clock::now() + timeout;
  std::unique_lock lock(impl_->mutex);
  for (;;) {
    if (auto completion = impl_->outcomes.TakeAny()) return *std::move(completion);
    // Whatever ended the group before: nothing will end any more.
    const auto is_over = [&] {
      return impl_->is_shut_down && impl_->outcomes.pending_count() == 0;
    };
    if (is_over()) return Error{ErrorCode::kUnavailable, impl_->closed->message};
    if (WaitUntil(impl_->ended, lock, deadline) == std::cv_status::timeout && !is_over()) {
      if (auto completion = impl_->outcomes.TakeAny()) return *std::move(completion);
      return Error{ErrorCode::kDeadlineExceeded, "no collective operation ended within " +
                                                     std::to_string(timeout.count()) + " ms"};
    }
  }
}

void CollectiveEngine::Shutdown() noexcept { impl_->Shutdown(); }

void CollectiveEngine::Impl::Shutdown() {
  const std::lock_guard lock(mutex);
  if (is_shut_down) return;
  is_shut_down = true;
  if (!closed) closed = Error{ErrorCode::kUnavailable, "this rank's engine was shut down"};
  ended.notify_all();
  wakeup.Ring();
}

CollectiveEngine::Stats CollectiveEngine::stats() const noexcept { return impl_->counters.stats(); }

std::vector<CollectiveEngine::Event> CollectiveEngine::events() const {
  return impl_->counters.events();
}

Result<void> CollectiveEngine::Tune(const Tuning& tuning) {
  FFR_TRY(CheckTuning(tuning, impl_->options, impl_->machines));
  const std::lock_guard lock(impl_->mutex);
  impl_->tuning = tuning;
  impl_->counters.streams_used.store(tuning.streams, std::memory_order_relaxed);
  return {};
}

// --- Messages ------------------------------------------------------------------------------------

// `act` takes whether the group is open, and returns a token, or none if there can be none.
template <class Act>
Result<std::optional<CollectiveEngine::Token>> CollectiveEngine::Impl::OnMessages(
    std::uint32_t own_rank, Act act) {
  AssertNotForked();
  if (!messages || rank != own_rank)
    return Refused("rank 0 of a group that carries messages sends them, and rank 1 receives them");
  const std::lock_guard lock(mutex);
  FFR_TRY(CheckOpenLocked());
  Messages::Wants wants;
  const std::optional<Token> token = act(!closed, wants);
  if (token) outcomes.BeginQuietly(*token);
  DoLocked(wants);
  return token;
}

void CollectiveEngine::Impl::DoLocked(const Messages::Wants& wants) {
  for (const Messages::Part& part : wants.parts) {
    const bool is_phase = part.is_phase && machines.count() > 1;
    if (is_phase) BeginPhase(PhaseKind::kPointToPoint, part.size_bytes);
    parts.push_back({next_token++, is_phase});
    const Plan plan{.collective = Collective::kBroadcast, .count = part.size_bytes};
    QueueLocked(parts.back().sequence, plan, part.data, ReduceType::kBytes, ReduceOp::kSum);
  }
  const std::int64_t now = Nanoseconds(net::Clock::now());
  for (const Messages::Ended& each : wants.ended) outcomes.End(each.token, each.failure, now);
  if (!wants.ended.empty()) ended.notify_all();
}

Result<CollectiveEngine::Token> CollectiveEngine::Send(const void* data, std::uint64_t size_bytes,
                                                       std::int64_t tag) {
  if (size_bytes > kCountMax) return Refused("a message of more than 2^44 bytes");
  const auto token = FFR_TRY(impl_->OnMessages(0, [&](bool is_open, Messages::Wants& wants) {
    return is_open ? std::optional(impl_->messages->Send(static_cast<const std::byte*>(data),
                                                         size_bytes, tag, wants))
                   : std::nullopt;
  }));
  return impl_->OrClosed(token);
}

Result<CollectiveEngine::Token> CollectiveEngine::Receive(void* data, std::uint64_t size_bytes,
                                                          std::int64_t tag) {
  const auto token = FFR_TRY(impl_->OnMessages(1, [&](bool is_open, Messages::Wants& wants) {
    auto* const place = static_cast<std::byte*>(data);
    return is_open ? std::optional(impl_->messages->Receive(place, size_bytes, tag, wants))
                   : impl_->messages->ReceiveKept(place, size_bytes, tag, wants);
  }));
  return impl_->OrClosed(token);
}

Result<std::optional<CollectiveEngine::Token>> CollectiveEngine::ReceiveKept(
    void* data, std::uint64_t size_bytes, std::int64_t tag) {
  return impl_->OnMessages(1, [&](bool, Messages::Wants& wants) {
    return impl_->messages->ReceiveKept(static_cast<std::byte*>(data), size_bytes, tag, wants);
  });
}

Result<CollectiveEngine::Token> CollectiveEngine::Probe(std::int64_t tag) {
  const auto token = FFR_TRY(impl_->OnMessages(1, [&](bool is_open, Messages::Wants& wants) {
    impl_->wakeup.Ring();  // The sender may have begun to send.
    return is_open || impl_->messages->HasKept(tag)
               ? std::optional(impl_->messages->Probe(tag, wants))
               : std::nullopt;
  }));
  return impl_->OrClosed(token);
}

Result<void> CollectiveEngine::KeepNext() {
  FFR_TRY(impl_->OnMessages(1, [&](bool is_open, Messages::Wants&) -> std::optional<Token> {
    if (is_open) impl_->messages->KeepNext();
    impl_->wakeup.Ring();
    return std::nullopt;
  }));
  return {};
}

Result<CollectiveEngine::Token> CollectiveEngine::Impl::OrClosed(std::optional<Token> token) {
  if (token) return *token;
  const std::lock_guard lock(mutex);
  return *closed;
}

Result<void> CollectiveEngine::Announce(Token token) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->outcomes.Announce(token))
    return Refused("message " + std::to_string(token) +
                   " is none, or its outcome has been returned already");
  impl_->ended.notify_all();
  return {};
}

// --- The progress thread -------------------------------------------------------------------------

void CollectiveEngine::Impl::Run(Exchange exchange) {
  // The thread that made this one may round otherwise or flush subnormals; equal bits need one way.
  std::fesetenv(FE_DFL_ENV);
  std::vector<Exchange::Ended> finished;
  while (TakeSubmitted(exchange)) {
    finished.clear();
    auto outcome = exchange.Advance(finished);
    const auto published = Publish(finished);
    if (outcome) outcome = published;
    if (outcome && messages) outcome = LookForMessages(exchange);
    if (outcome && finished.empty()) {
      outcome = exchange.Wait(wakeup.fd());
      wakeup.Clear();
    }
    if (!outcome) {
      exchange.Close(outcome.error());
      Break(outcome.error());
      return;
    }
  }
  exchange.Close();
  Break({ErrorCode::kUnavailable, "this rank's engine was shut down"});
}

// False after Shutdown().
bool CollectiveEngine::Impl::TakeSubmitted(Exchange& exchange) {
  const std::lock_guard lock(mutex);
  for (const Operation& operation : submitted) exchange.Submit(operation);
  submitted.clear();
  return !is_shut_down;
}

Result<void> CollectiveEngine::Impl::Publish(const std::vector<Exchange::Ended>& finished) {
  if (finished.empty()) return {};
  const std::int64_t now = Nanoseconds(net::Clock::now());
  const std::lock_guard lock(mutex);
  for (const auto& [sequence, began] : finished) {
    if (!parts.empty() && parts.front().sequence == sequence)
      FFR_TRY(EndPartLocked());
    else
      outcomes.End({sequence, {}, Nanoseconds(began), now});
  }
  ended.notify_all();
  return {};
}

Result<void> CollectiveEngine::Impl::EndPartLocked() {
  if (parts.front().is_phase) EndPhase(PhaseKind::kPointToPoint);
  parts.pop_front();
  Messages::Wants wants;
  FFR_TRY(messages->PartEnded(wants));
  DoLocked(wants);
  return {};
}

// A receiver that is probed, or keeps the next message, asks for what its sender has begun to send.
Result<void> CollectiveEngine::Impl::LookForMessages(const Exchange& exchange) {
  const std::lock_guard lock(mutex);
  if (!messages->is_looking()) return {};
  const Error* const gone = exchange.AllGone();
  if (gone != nullptr && messages->has_probes()) return *gone;
  Messages::Wants wants;
  messages->Look(exchange.IsAwaited(), wants);
  DoLocked(wants);
  return {};
}

// Ends all that is pending with `why`. Requires that nothing moves bytes any more.
void CollectiveEngine::Impl::Break(const Error& why) {
  const std::int64_t now = Nanoseconds(net::Clock::now());
  const std::lock_guard lock(mutex);
  const std::string before = messages ? "" : "the collective group is closed: ";
  if (!closed) closed = Error{why.code, before + why.message, why.system_errno};
  outcomes.EndAll(why, now);
  for (const Part& part : parts)
    if (part.is_phase) EndPhase(PhaseKind::kPointToPoint);
  parts.clear();
  if (messages) messages->Stop();
  submitted.clear();
  ended.notify_all();
}

}  // namespace ffrecord::client
