#include <ffrecord/client/collective.h>
#include <ffrecord/runtime.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "client/collective/cost_model.h"
#include "client/collective/exchange.h"
#include "client/collective/links.h"
#include "client/collective/machines.h"
#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::client {
namespace {

constexpr std::uint32_t kWorldSizeMax = 65'536;
// Arrays of up to 2^44 elements: sizes in bytes and all sums of them stay far from overflow.
constexpr std::uint64_t kCountMax = std::uint64_t{1} << 44;
constexpr std::uint64_t kChunkSizeMin = 64;
constexpr std::uint64_t kChunkSizeMax = net::FrameLimits{}.payload_size_bytes_max;
// Submitted and not yet ended; a training step has some hundreds at most.
constexpr std::size_t kOperationsMax = 65'536;
// Smaller arrays are not what is tuned for.
constexpr std::uint64_t kTunedSizeMin = 64 << 10;
// A step of the ring has so many pieces, unless they become too small to be worth it: one is on the
// wire while another is checked and added.
constexpr std::uint64_t kPiecesOfStep = 4;
constexpr std::uint64_t kPieceSizeMin = 64 << 10;
// Rounds of each probe by which Connect() learns what the network costs.
constexpr int kProbeRounds = 5;

Error Refused(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

std::int64_t Nanoseconds(net::Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// Starts a thread that no signal is delivered to: they belong to the program's threads.
template <class Body>
std::thread StartQuietThread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

// The devices that streams go by, each opened; none for TCP.
Result<std::deque<net::RdmaLinks>> OpenRails(const CollectiveEngine::Options& options) {
  std::deque<net::RdmaLinks> rails;
  const std::uint32_t traffic_class = options.rdma_traffic_class;
  const std::uint32_t service_level = options.rdma_service_level;
  if (options.transport == GroupTransport::kTcp) {
    if (!options.rdma_devices.empty() || traffic_class != 0 || service_level != 0)
      return Refused("RDMA devices or QoS are given, but the transport is TCP");
    return rails;
  }
  if (traffic_class > UINT8_MAX || service_level > net::RdmaQos::kServiceLevelMax)
    return Refused("rdma_traffic_class is at most 255, rdma_service_level at most 15");
  const net::RdmaQos qos{static_cast<std::uint8_t>(traffic_class),
                         static_cast<std::uint8_t>(service_level)};
  if (options.rdma_devices.empty()) rails.emplace_back("", qos);
  for (const std::string& name : options.rdma_devices) rails.emplace_back(name, qos);
  for (net::RdmaLinks& rail : rails) FFR_TRY(rail.Device());
  return rails;
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
        rails(std::move(opened_rails)) {}

  void AssertNotForked() const { FFR_ASSERT(home.is_here()); }

  // --- Any thread ---
  Result<Token> Submit(const Plan& plan, void* data, ReduceType type, ReduceOp op);
  Algorithm AlgorithmFor(Collective collective, std::uint64_t count, ReduceType type);
  std::uint64_t ChunkSizeLocked() const {
    return tuning.chunk_size_bytes != 0 ? tuning.chunk_size_bytes : options.chunk_size_bytes;
  }
  std::uint64_t ChunkSizeLocked(const Plan& plan, ReduceType type) const;
  Completion TakeLocked(std::map<Token, Completion>::iterator done);
  void Shutdown();

  // --- The progress thread ---
  void Run(Exchange exchange);
  bool TakeSubmitted(Exchange& exchange);
  void Publish(const std::vector<Exchange::Ended>& finished);
  void EndLocked(std::map<Token, bool>::iterator operation);
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
  std::map<Token, bool> pending;     // Submitted, not ended; whether it is a phase.
  std::map<Token, Completion> done;  // Ended, not yet returned by Wait or WaitAny.
};

// --- Setting up ----------------------------------------------------------------------------------

Result<CollectiveEngine> CollectiveEngine::Create(std::uint32_t rank, std::uint32_t world_size,
                                                  const Options& options) {
  if (world_size == 0 || world_size > kWorldSizeMax || rank >= world_size)
    return Refused("a group cannot have rank " + std::to_string(rank) + " of " +
                   std::to_string(world_size) + " ranks; the limit is " +
                   std::to_string(kWorldSizeMax));
  if (options.timeout.count() <= 0) return Refused("a collective's timeout must be above zero");
  if (options.wire > WireType::kF16) return Refused("no such wire type");
  if (options.streams == 0 || options.streams > kStreamsMax)
    return Refused(std::to_string(options.streams) + " streams are not from 1 to " +
                   std::to_string(kStreamsMax));
  if (options.wire == WireType::kF16 && options.algorithm == Algorithm::kHalvingDoubling)
    return Refused(
        "halving-doubling cuts arrays anew in each step, and fp16 is scaled by chunk:"
        " take another algorithm, or bf16");
  if (options.chunk_size_bytes < kChunkSizeMin || options.chunk_size_bytes > kChunkSizeMax)
    return Refused("a chunk of " + std::to_string(options.chunk_size_bytes) +
                   " bytes is not from 64 bytes to 8 MiB");
  if (options.transport > GroupTransport::kRdma) return Refused("no such transport");
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
    impl.thread = StartQuietThread(
        [&impl, moved = std::move(exchange)]() mutable { impl.Run(std::move(moved)); });
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

// All ranks take the slowest one's figures: they must choose alike.
Result<void> CollectiveEngine::ChooseAlgorithms() {
  // Not many more pieces than a step has of a large array.
  const std::uint64_t size_bytes = std::clamp<std::uint64_t>(
      16 * impl_->options.chunk_size_bytes, sizeof(std::int32_t) * impl_->world_size, 256 << 10);
  std::vector<std::byte> probe(size_bytes);
  // Seconds of an operation. The least of some rounds is that of an undisturbed one.
  const auto measure = [&](Algorithm algorithm, std::uint64_t count) -> Result<double> {
    double least_s = std::numeric_limits<double>::max();
    for (int round = 0; round < kProbeRounds; ++round) {
      const auto before = net::Clock::now();
      const Token token = FFR_TRY(impl_->Submit({.algorithm = algorithm, .count = count},
                                                probe.data(), ReduceType::kI32, ReduceOp::kMax));
      FFR_TRY(Wait(token));
      least_s =
          std::min(least_s, std::chrono::duration<double>(net::Clock::now() - before).count());
    }
    return least_s;
  };
  const auto line = [&](Algorithm algorithm) -> Result<LinkCost> {
    const double small_s = FFR_TRY(measure(algorithm, impl_->world_size));
    const double large_s = FFR_TRY(measure(algorithm, size_bytes / sizeof(std::int32_t)));
    return LinkCost{small_s, std::max(0.0, large_s - small_s) / static_cast<double>(size_bytes)};
  };
  const LinkCost ring = FFR_TRY(line(Algorithm::kRing));
  LinkCost hierarchy;
  const bool has_hierarchy = impl_->machines.ranks_each() > 0 && impl_->machines.count() > 1;
  if (has_hierarchy) hierarchy = FFR_TRY(line(Algorithm::kHierarchical));

  // A step of the ring carries a part of the array.
  const double steps = 2 * (impl_->world_size - 1);
  std::array<double, 4> figures{ring.latency_s / steps, ring.byte_s / steps * impl_->world_size,
                                hierarchy.latency_s, hierarchy.byte_s};
  const Plan agree{.algorithm = Algorithm::kRecursiveDoubling, .count = figures.size()};
  const Token token =
      FFR_TRY(impl_->Submit(agree, figures.data(), ReduceType::kF64, ReduceOp::kMax));
  FFR_TRY(Wait(token));
  impl_->cost.link = {.latency_s = figures[0], .byte_s = figures[1]};
  if (has_hierarchy) impl_->cost.hierarchy = {.latency_s = figures[2], .byte_s = figures[3]};
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
  if (tuning.chunk_size_bytes != 0 || plan.algorithm != Algorithm::kRing ||
      plan.collective == Collective::kBroadcast)
    return chunk_size_bytes;
  const std::uint64_t step_size_bytes = plan.count * SizeOf(type) / world_size;
  return std::clamp(step_size_bytes / kPiecesOfStep, std::min(kPieceSizeMin, chunk_size_bytes),
                    chunk_size_bytes);
}

Result<CollectiveEngine::Token> CollectiveEngine::Impl::Submit(const Plan& plan, void* data,
                                                               ReduceType type, ReduceOp op) {
  AssertNotForked();
  if (FindTraits(type) == nullptr || FindTraits(op) == nullptr)
    return Refused("no such type or operation");
  if (!IsNumber(type) && IsReduction(plan.collective))
    return Refused("bytes cannot be reduced; pass a numeric type");
  if (data == nullptr && plan.count > 0) return Refused("a collective needs an array");
  if (plan.count > kCountMax)
    return Refused("a collective of " + std::to_string(plan.count) +
                   " elements; the limit is 2^44");
  if (IsReduction(plan.collective) && !IsOffered(type, op))
    return Refused(op == ReduceOp::kAverage
                       ? "integers have no average; sum them and divide"
                       : "a " + std::string(FindTraits(op)->label) + " is of integers, not of " +
                             std::string(FindTraits(type)->label));
  const std::lock_guard lock(mutex);
  if (closed) return *closed;
  if (!is_connected) return Refused("this rank has not joined its group: call Connect() first");
  if (pending.size() >= kOperationsMax)
    return Error{ErrorCode::kUnavailable,
                 std::to_string(kOperationsMax) + " operations are pending; wait for some of them"};
  const Token token = next_token++;
  if (world_size == 1) {
    const std::int64_t now = Nanoseconds(net::Clock::now());
    counters.operations.fetch_add(1, std::memory_order_relaxed);
    done.emplace(token, Completion{token, {}, now, now});
    ended.notify_all();
    return token;
  }
  // Within one machine it needs no network, and a barrier next to none.
  const bool is_phase = plan.count > 0 && machines.count() > 1;
  if (is_phase) BeginPhase(PhaseKind::kCollective, plan.count * SizeOf(type));
  pending.emplace(token, is_phase);
  submitted.push_back(
      {token, static_cast<std::byte*>(data), plan, type, op, ChunkSizeLocked(plan, type)});
  wakeup.Ring();
  return token;
}

CollectiveEngine::Completion CollectiveEngine::Impl::TakeLocked(
    std::map<Token, Completion>::iterator found) {
  Completion completion = std::move(found->second);
  done.erase(found);
  return completion;
}

Result<void> CollectiveEngine::Wait(Token token) {
  impl_->AssertNotForked();
  std::unique_lock lock(impl_->mutex);
  for (;;) {
    if (const auto found = impl_->done.find(token); found != impl_->done.end())
      return impl_->TakeLocked(found).outcome;
    if (!impl_->pending.contains(token))
      return Refused("operation " + std::to_string(token) +
                     " was never submitted, or its outcome has been returned already");
    impl_->ended.wait(lock);
  }
}

Result<CollectiveEngine::Completion> CollectiveEngine::WaitAny(std::chrono::milliseconds timeout) {
  impl_->AssertNotForked();
  const auto deadline = net::Clock::now() + timeout;
  std::unique_lock lock(impl_->mutex);
  for (;;) {
    if (!impl_->done.empty()) return impl_->TakeLocked(impl_->done.begin());
    // Whatever ended the group before: nothing will end any more.
    if (impl_->is_shut_down && impl_->pending.empty())
      return Error{ErrorCode::kUnavailable, impl_->closed->message};
    if (WaitUntil(impl_->ended, lock, deadline) == std::cv_status::timeout && impl_->done.empty() &&
        !(impl_->is_shut_down && impl_->pending.empty())) {
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

CollectiveEngine::Stats CollectiveEngine::stats() const noexcept {
  const ExchangeCounters& counters = impl_->counters;
  return {counters.bytes_sent.load(std::memory_order_relaxed),
          counters.bytes_received.load(std::memory_order_relaxed),
          counters.bytes_shared.load(std::memory_order_relaxed),
          counters.operations.load(std::memory_order_relaxed),
          counters.reduce_ns.load(std::memory_order_relaxed),
          counters.streams_lost.load(std::memory_order_relaxed)};
}

std::vector<CollectiveEngine::Event> CollectiveEngine::events() const {
  return impl_->counters.events();
}

Result<void> CollectiveEngine::Tune(const Tuning& tuning) {
  const Options& options = impl_->options;
  if (tuning.chunk_size_bytes != 0 && (tuning.chunk_size_bytes < kChunkSizeMin ||
                                       tuning.chunk_size_bytes > options.chunk_size_bytes))
    return Refused("chunks of " + std::to_string(tuning.chunk_size_bytes) +
                   " bytes are not from 64 bytes to the group's " +
                   std::to_string(options.chunk_size_bytes));
  if (tuning.algorithm == Algorithm::kHierarchical && impl_->machines.ranks_each() == 0)
    return Refused("the hierarchical algorithm needs machines with equally many ranks");
  if (tuning.algorithm == Algorithm::kHalvingDoubling && options.wire == WireType::kF16)
    return Refused("halving-doubling does not work with fp16");
  const std::lock_guard lock(impl_->mutex);
  impl_->tuning = tuning;
  impl_->counters.streams_used.store(tuning.streams, std::memory_order_relaxed);
  return {};
}

// --- The progress thread -------------------------------------------------------------------------

void CollectiveEngine::Impl::Run(Exchange exchange) {
  // The thread that made this one may round otherwise or flush subnormals; equal bits need one way.
  std::fesetenv(FE_DFL_ENV);
  std::vector<Exchange::Ended> finished;
  while (TakeSubmitted(exchange)) {
    finished.clear();
    const auto advanced = exchange.Advance(finished);
    Publish(finished);
    Result<void> waited;
    if (advanced && finished.empty()) {
      waited = exchange.Wait(wakeup.fd());
      wakeup.Clear();
    }
    if (!advanced || !waited) {
      const Error& why = advanced ? waited.error() : advanced.error();
      exchange.Close(why);
      Break(why);
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

void CollectiveEngine::Impl::Publish(const std::vector<Exchange::Ended>& finished) {
  if (finished.empty()) return;
  const std::int64_t now = Nanoseconds(net::Clock::now());
  const std::lock_guard lock(mutex);
  for (const auto& [sequence, began] : finished) {
    EndLocked(pending.find(sequence));
    done.emplace(sequence, Completion{sequence, {}, Nanoseconds(began), now});
  }
  ended.notify_all();
}

void CollectiveEngine::Impl::EndLocked(std::map<Token, bool>::iterator operation) {
  if (operation->second) EndPhase(PhaseKind::kCollective);
  pending.erase(operation);
}

// Ends all that is pending with `why`. Requires that nothing moves bytes any more.
void CollectiveEngine::Impl::Break(const Error& why) {
  const std::int64_t now = Nanoseconds(net::Clock::now());
  const std::lock_guard lock(mutex);
  if (!closed)
    closed = Error{why.code, "the collective group is closed: " + why.message, why.system_errno};
  while (!pending.empty()) {
    const Token token = pending.begin()->first;
    EndLocked(pending.begin());
    done.emplace(token, Completion{token, why, now, now});
  }
  submitted.clear();
  ended.notify_all();
}

}  // namespace ffrecord::client
