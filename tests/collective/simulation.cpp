#include "simulation.h"

#include <algorithm>
#include <iostream>

#include "client/collective/schedule.h"

namespace ffrecord::test {

using namespace client;
using namespace std::chrono_literals;

namespace {

constexpr SimDuration kLongSilence = 10s;
// So long the kernel waits until it asks whether the other end of an idle connection is there.
constexpr SimDuration kProbesAfter = 2s;
// All has ended by then: late ranks, then twice the timeout.
constexpr SimDuration kLimit = 8 * SimConfig::kTimeout;

}  // namespace

Simulation::Simulation(const Options& options)
    : options_(options),
      config_(options.config ? *options.config : SimConfig(options.seed)),
      random_(options.seed * 0xD1B54A32D192ED03ULL + (options.is_reference ? 7 : 0)) {
  if (IsTroubled() && random_.OneIn(2))
    failure_ =
        static_cast<Failure>(1 + random_.Below(static_cast<std::uint64_t>(Failure::kCount) - 1));
  failing_ = static_cast<std::uint32_t>(random_.Below(config_.world_size));
  if (IsTroubled()) replaces_ = !random_.OneIn(4);
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank)
    ranks_.push_back(std::make_unique<SimRank>(*this, rank));
  Connect();
}

std::optional<std::string> Simulation::Run() {
  SubmitAll();
  if (IsTroubled()) PlanFaults();
  const SimTime limit = clock_.now() + kLimit;
  while (!HasEnded()) {
    if (clock_.now() > limit || !clock_.Step()) {
      TraceConnections();
      return WhoIsOpen();
    }
    ++counts_.events;
  }
  // What is still under way touches nothing.
  const SimTime end = clock_.now() + 20 * config_.latency + 1ms;
  while (clock_.now() < end && clock_.Step()) ++counts_.events;
  return Check();
}

void Simulation::RunFor(SimDuration time) {
  const SimTime end = clock_.now() + time;
  clock_.At(end, [] {});
  while (clock_.now() < end && clock_.Step()) ++counts_.events;
}

std::string Simulation::WhoIsOpen() const {
  std::string text = "not all operations have ended:";
  for (const auto& rank : ranks_)
    if (!rank->has_ended()) text += " " + rank->Describe();
  return text;
}

void Simulation::Trace(std::uint32_t rank, const std::string& text) const {
  if (!options_.is_traced) return;
  std::cout << std::chrono::duration<double, std::milli>(clock_.now().time_since_epoch()).count() -
                   3'600'000
            << " rank " << rank << ": " << text << "\n";
}

void Simulation::TraceConnections() const {
  if (!options_.is_traced) return;
  std::cout << "ranks " << config_.world_size << " streams " << config_.streams << " rdma "
            << config_.is_rdma << " wire " << static_cast<int>(config_.wire) << " chunk "
            << config_.chunk_size_bytes << " part " << config_.part_bytes << " window "
            << config_.window_bytes << " machines " << config_.machines.count() << "\n";
  for (const SimConnection& each : connections_) {
    if (each.forward.frames.empty() && each.backward.frames.empty()) continue;
    const auto pipe = [](const SimPipe& one) {
      std::string text = std::to_string(one.frames.size()) + " frames, queued " +
                         std::to_string(one.queued_bytes) + " under way " +
                         std::to_string(one.under_way_bytes) + " unacked " +
                         std::to_string(one.unacked_bytes);
      if (one.frames.empty()) return text;
      const SimFrame& first = one.frames.front();
      return text + " first: kind " + std::to_string(static_cast<int>(first.kind)) + " operation " +
             std::to_string(first.data.sequence) + " size " + std::to_string(first.size_bytes()) +
             " arrived " + std::to_string(first.arrived_bytes) + " landed " +
             std::to_string(first.landed_bytes);
    };
    std::cout << "  " << each.from << " to " << each.to << " stream " << each.stream << ": "
              << pipe(each.forward) << " | " << pipe(each.backward) << " | cut " << each.is_cut
              << " silent " << (each.silent_until > clock_.now()) << " closed "
              << each.sender.is_closed << each.receiver.is_closed << " lost " << each.sender.is_lost
              << each.receiver.is_lost << "\n";
  }
}

void Simulation::WakeRank(std::uint32_t rank) { ranks_[rank]->Wake(); }

// --- The beginning -------------------------------------------------------------------------------

SimConnection* Simulation::Make(std::uint32_t from, std::uint32_t to, std::uint16_t stream) {
  SimConnection& connection = connections_.emplace_back();
  connection.from = from;
  connection.to = to;
  connection.stream = stream;
  connection.part_bytes = random_.Between(config_.part_bytes / 2, config_.part_bytes);
  connection.latency = random_.UpTo(config_.latency);
  if (is_cut_off_ && (from == failing_ || to == failing_)) {
    connection.silent_from = clock_.now();
    connection.silent_until = SimTime::max();
  }
  return &connection;
}

void Simulation::Connect() {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<SimConnection*>> made;
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank)
    for (const std::uint32_t to : PeersOf(rank, config_.world_size, config_.machines).to)
      for (std::uint16_t stream = 0;
           stream < (config_.SharesMemory(rank, to) ? 1 : config_.streams); ++stream)
        made[{rank, to}].push_back(Make(rank, to, stream));
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    const Peers peers = PeersOf(rank, config_.world_size, config_.machines);
    std::vector<SimConnection*> to;
    std::vector<SimConnection*> from;
    for (const std::uint32_t peer : peers.to)
      to.insert(to.end(), made[{rank, peer}].begin(), made[{rank, peer}].end());
    for (const std::uint32_t peer : peers.from)
      from.insert(from.end(), made[{peer, rank}].begin(), made[{peer, rank}].end());
    ranks_[rank]->Connect(std::move(to), std::move(from));
    if (IsTroubled() && random_.OneIn(3)) ranks_[rank]->LeaveWhenDone();
    // It begins to look at its connections late.
    if (IsTroubled() && random_.OneIn(4)) ranks_[rank]->Stop(clock_.now() + random_.UpTo(1s));
  }
}

void Simulation::SubmitAll() {
  const std::size_t count = config_.operations.size();
  const std::size_t missed = random_.Below(count);
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    SimTime at = clock_.now();
    const bool fails = rank == failing_;
    for (std::size_t i = 0; i < count; ++i) {
      if (fails && failure_ == Failure::kAbsent && i == missed) break;
      const bool differs = fails && failure_ == Failure::kDiffers && i == missed;
      if (IsTroubled()) at += random_.OneIn(3) ? random_.UpTo(config_.span) : 0ms;
      if (IsTroubled() && random_.OneIn(20)) at += random_.UpTo(SimConfig::kTimeout / 8);
      clock_.At(at, [this, rank, differs] { ranks_[rank]->Submit(differs); });
    }
  }
  if (failure_ == Failure::kAbsent || failure_ == Failure::kDiffers) has_failed_ = true;
}

// --- Connections ---------------------------------------------------------------------------------

void Simulation::Pump(SimConnection& connection, bool is_forward) {
  SimPipe& pipe = is_forward ? connection.forward : connection.backward;
  if (pipe.queued_bytes == 0 || pipe.is_pumping || connection.is_cut) return;
  pipe.is_pumping = true;
  clock_.After(random_.UpTo(std::min<SimDuration>(connection.latency / 8 + 1us, 1ms)),
               [this, &connection, is_forward] { LeavePart(connection, is_forward); });
}

void Simulation::LeavePart(SimConnection& connection, bool is_forward) {
  SimPipe& pipe = is_forward ? connection.forward : connection.backward;
  pipe.is_pumping = false;
  if (connection.is_cut || pipe.under_way_bytes >= config_.window_bytes) return;
  const std::uint64_t room = config_.window_bytes - pipe.under_way_bytes;
  const std::uint64_t bytes = pipe.Leave(std::min(room, random_.Between(1, connection.part_bytes)));
  if (bytes == 0) return;
  SimTime at = clock_.now() + connection.latency + random_.UpTo(connection.latency);
  if (connection.silent_until > at) at = connection.silent_until;
  pipe.arrives_from = std::max(pipe.arrives_from, at);
  if (pipe.arrives_from != SimTime::max())
    clock_.At(pipe.arrives_from,
              [this, &connection, is_forward, bytes] { Arrive(connection, is_forward, bytes); });
  WakeRank(is_forward ? connection.from : connection.to);
  Pump(connection, is_forward);
}

void Simulation::Arrive(SimConnection& connection, bool is_forward, std::uint64_t bytes) {
  if (connection.is_cut) return;
  // It has fallen silent while this was under way.
  if (connection.silent_until > clock_.now()) {
    SimPipe& pipe = is_forward ? connection.forward : connection.backward;
    pipe.arrives_from = std::max(pipe.arrives_from, connection.silent_until);
    if (connection.silent_until != SimTime::max())
      clock_.At(connection.silent_until,
                [this, &connection, is_forward, bytes] { Arrive(connection, is_forward, bytes); });
    return;
  }
  if (!is_forward) {
    connection.backward.Arrive(bytes, [](std::uint64_t, std::span<const std::byte>) {});
    WakeRank(connection.from);
    return;
  }
  connection.forward.Arrive(bytes, [&](std::uint64_t offset, std::span<const std::byte> payload) {
    ranks_[connection.to]->Write(connection, offset, payload);
  });
  Pump(connection, true);
  if (connection.flips) Flip(connection);
  WakeRank(connection.to);
  WakeRank(connection.from);
}

// A bit of what has arrived and has not landed.
void Simulation::Flip(SimConnection& connection) {
  for (SimFrame& frame : connection.forward.frames) {
    if (frame.kind != SimFrame::Kind::kData || frame.arrived_bytes <= frame.head_size_bytes)
      continue;
    if (frame.arrived_bytes - frame.head_size_bytes <= frame.landed_bytes) continue;
    frame.payload[frame.landed_bytes] ^= std::byte{4};
    connection.flips = false;
    return;
  }
}

void Simulation::CloseSender(SimConnection& connection) {
  if (std::exchange(connection.sender.is_closed, true) || connection.is_cut) return;
  connection.forward.Drop();
  const SimTime at = std::max({connection.forward.arrives_from, clock_.now() + connection.latency,
                               connection.silent_until});
  if (at == SimTime::max()) return;
  clock_.At(at, [this, &connection] {
    connection.receiver.is_lost = true;
    const auto& frames = connection.forward.frames;
    if (!frames.empty() && frames.front().left_bytes > 0 && !frames.back().has_arrived())
      connection.receiver.why = Error{ErrorCode::kUnavailable, "closed in the middle of a frame"};
    WakeRank(connection.to);
  });
}

void Simulation::CloseReceiver(SimConnection& connection) {
  if (std::exchange(connection.receiver.is_closed, true) || connection.is_cut) return;
  connection.backward.Drop();
  const SimTime at = std::max({connection.backward.arrives_from, clock_.now() + connection.latency,
                               connection.silent_until});
  if (at == SimTime::max()) return;
  clock_.At(at, [this, &connection] {
    connection.sender.is_lost = true;
    WakeRank(connection.from);
  });
}

// Both ends learn of it, one after the other; what is under way is lost.
void Simulation::Cut(SimConnection& connection) {
  if (std::exchange(connection.is_cut, true)) return;
  const auto lose = [this](SimEnd& end, std::uint32_t rank) {
    clock_.After(random_.UpTo(50ms), [this, &end, rank] {
      end.is_lost = true;
      end.why = Error{ErrorCode::kUnavailable, "connection reset"};
      WakeRank(rank);
    });
  };
  lose(connection.sender, connection.from);
  lose(connection.receiver, connection.to);
}

SimDuration Simulation::SilenceOf(const SimConnection& connection) const {
  if (connection.silent_until <= clock_.now()) return {};
  const SimDuration silence = clock_.now() - connection.silent_from;
  const bool owes = connection.forward.unacked_bytes > 0 || silence > kProbesAfter;
  return owes ? silence : SimDuration{};
}

void Simulation::Ask(std::uint32_t from, std::uint32_t to, std::uint16_t stream) {
  if (config_.is_rdma || !replaces_) return;  // Over RDMA nothing is.
  clock_.After(1ms + random_.UpTo(200ms), [this, from, to, stream] {
    if (!ranks_[from]->is_running()) return;
    if (ranks_[to]->is_running() && !(is_cut_off_ && (from == failing_ || to == failing_)))
      ranks_[to]->TakeCome(Make(from, to, stream));
    else
      Ask(from, to, stream);
  });
}

void Simulation::Welcome(SimConnection* connection) {
  clock_.After(connection->latency,
               [this, connection] { ranks_[connection->from]->TakeMade(connection); });
}

// --- Faults --------------------------------------------------------------------------------------

void Simulation::PlanFaults() {
  const std::uint64_t count = random_.Below(7);
  for (std::uint64_t i = 0; i < count; ++i)
    clock_.After(random_.UpTo(config_.span * 2), [this] { Fault(); });
  clock_.After(random_.UpTo(config_.span), [this] { FailRank(); });
}

void Simulation::Fault() {
  ++counts_.faults;
  switch (random_.Below(4)) {
    case 0:
      CutStream();
      return;
    case 1:
      SilenceStream();
      return;
    case 2: {
      const auto rank = static_cast<std::uint32_t>(random_.Below(config_.world_size));
      if (rank == failing_ && failure_ == Failure::kStopped) return;
      ranks_[rank]->Stop(clock_.now() + random_.UpTo(SimConfig::kTimeout / 8));
      return;
    }
    default: {
      SimConnection& connection = connections_[random_.Below(connections_.size())];
      connection.part_bytes = connection.part_bytes / 8 + 1;
      connection.latency *= 4;
    }
  }
}

// A connection breaks; others to the same rank work.
void Simulation::CutStream() {
  SimConnection& connection = connections_[random_.Below(connections_.size())];
  if (config_.streams == 1 || config_.is_rdma || !ranks_[connection.from]->IsWhole(connection.to) ||
      config_.SharesMemory(connection.from, connection.to) || connection.sender.is_closed)
    return;
  Trace(connection.from, "stream " + std::to_string(connection.stream) + " to rank " +
                             std::to_string(connection.to) + " is cut");
  Cut(connection);
}

void Simulation::SilenceStream() {
  SimConnection& connection = connections_[random_.Below(connections_.size())];
  if (config_.SharesMemory(connection.from, connection.to)) return;
  if (!ranks_[connection.from]->IsWhole(connection.to)) return;
  was_silent_ = true;
  const bool is_one_of_many = config_.streams > 1 && !config_.is_rdma;
  connection.silent_from = clock_.now();
  connection.silent_until =
      clock_.now() + random_.UpTo(is_one_of_many ? kLongSilence : SimConfig::kTimeout / 8);
  Trace(connection.from, "stream " + std::to_string(connection.stream) + " to rank " +
                             std::to_string(connection.to) + " is silent");
}

void Simulation::Silence(std::uint16_t stream, SimDuration time) {
  for (SimConnection& connection : connections_) {
    if (connection.stream != stream) continue;
    connection.silent_from = clock_.now();
    connection.silent_until = clock_.now() + time;
  }
}

void Simulation::Lose(std::uint16_t stream) {
  replaces_ = false;
  for (SimConnection& connection : connections_)
    if (connection.stream == stream) Cut(connection);
}

void Simulation::FailRank() {
  SimRank& rank = *ranks_[failing_];
  if (!rank.is_running()) return;
  has_failed_ = has_failed_ || failure_ != Failure::kNone;
  counts_.failures += failure_ != Failure::kNone;
  switch (failure_) {
    case Failure::kKilled:
      Trace(failing_, "is killed");
      rank.Kill();
      return;
    case Failure::kStopped:
      Trace(failing_, "is stopped");
      rank.Stop(SimTime::max());
      return;
    case Failure::kCutOff:
      Trace(failing_, "is cut off");
      is_cut_off_ = true;
      rank.Stop(SimTime::max());
      for (SimConnection& connection : connections_) {
        if (connection.from != failing_ && connection.to != failing_) continue;
        if (connection.silent_until <= clock_.now()) connection.silent_from = clock_.now();
        connection.silent_until = SimTime::max();
      }
      return;
    case Failure::kDamages:
      for (SimConnection& connection : connections_)
        if (connection.from == failing_) connection.flips = true;
      return;
    default:
      return;
  }
}

// --- What has to hold ----------------------------------------------------------------------------

// A rank that fails itself has nothing to end.
bool Simulation::HasEnded() const {
  return std::ranges::all_of(ranks_, [&](const auto& rank) {
    return rank->violation() || rank->has_ended() || (rank->rank() == failing_ && has_failed_);
  });
}

std::optional<std::string> Simulation::Check() {
  if (!HasEnded()) return WhoIsOpen();
  for (const auto& rank : ranks_) {
    const std::string name = "rank " + std::to_string(rank->rank()) + ": ";
    rank->CheckArrays();
    if (rank->violation()) return name + *rank->violation();
    if (const auto wrong = CheckResults(*rank)) return name + *wrong;
    if (const auto wrong = CheckError(*rank)) return name + *wrong;
    counts_.streams_lost += rank->counters().streams_lost;
  }
  return std::nullopt;
}

std::optional<std::string> Simulation::CheckResults(const SimRank& rank) {
  for (std::size_t i = 0; i < config_.operations.size(); ++i) {
    const auto& result = rank.results()[i];
    ++(result ? counts_.operations : counts_.failed);
    if (!result || options_.is_reference) continue;
    // All ranks get the same bits, but for a reduce-scatter.
    const bool differs = config_.operations[i].plan.collective == Collective::kReduceScatter;
    const auto& expected = ExpectedOf(i)[differs ? rank.rank() : 0];
    if (*result != expected)
      return "the result of " + config_.operations[i].Describe() + " is wrong";
  }
  return std::nullopt;
}

std::optional<std::string> Simulation::CheckError(const SimRank& rank) const {
  if (!rank.error()) return std::nullopt;
  const std::string& text = rank.error()->message;
  if (failure_ == Failure::kNone || !has_failed_) return "failed: " + text;
  if (rank.rank() == failing_) return std::nullopt;
  if (text.find("rank " + std::to_string(failing_)) == std::string::npos)
    return "does not name rank " + std::to_string(failing_) + ": " + text;
  if (failure_ == Failure::kKilled && !was_silent_ &&
      rank.error()->code == ErrorCode::kDeadlineExceeded)
    return "waits for a rank that has ended: " + text;
  return std::nullopt;
}

const std::vector<std::vector<std::byte>>& Simulation::ExpectedOf(std::size_t operation) {
  auto& expected = expected_[operation];
  if (!expected.empty()) return expected;
  if (!config_.GroupOf(0).IsRounded(config_.operations[operation]))
    return expected = config_.ResultsOf(operation);
  // Bits depend on what is sent, and not on the network.
  Simulation reference({.seed = options_.seed, .is_reference = true});
  const auto violation = reference.Run();
  for (const auto& rank : reference.ranks_) {
    const auto& result = rank->results()[operation];
    expected.push_back(!violation && result ? *result : std::vector<std::byte>{});
  }
  return expected;
}

}  // namespace ffrecord::test
