#include "sim_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "simulation.h"

namespace ffrecord::test {

using namespace client;
using namespace std::chrono_literals;
using Kind = SimFrame::Kind;

namespace {

constexpr std::byte kReused{0xA5};  // What the program writes over an array that is its own again.
constexpr SimDuration kFarewell = 250ms;
constexpr SimDuration kLastPiecesMax = 10s;
constexpr std::uint64_t kHeaderSize = 40;

}  // namespace

SimRank::SimRank(Simulation& simulation, std::uint32_t rank) : sim_(simulation), rank_(rank) {
  const std::size_t count = sim_.config().operations.size();
  for (std::size_t i = 0; i < count; ++i) arrays_.push_back(sim_.config().InputOf(rank, i));
  results_.resize(count);
  has_ended_.resize(count);
  open_ = count;
}

void SimRank::Connect(std::vector<SimConnection*> to, std::vector<SimConnection*> from) {
  const SimConfig& config = sim_.config();
  const auto channel_of = [&](const SimConnection& connection, std::uint32_t other) {
    exchange::Channel channel{
        .rank = other, .stream = connection.stream, .address = "sim" + std::to_string(other)};
    if (config.SharesMemory(rank_, other))
      channel.shared_piece_size_bytes = config.shared_piece_size_bytes;
    else
      channel.is_rdma = config.is_rdma;
    return channel;
  };
  std::vector<exchange::Channel> to_channels;
  std::vector<exchange::Channel> from_channels;
  const std::uint64_t ring_size = 5 * config.chunk_size_bytes / 2;
  for (SimConnection* connection : to) {
    to_channels.push_back(channel_of(*connection, connection->to));
    if (to_channels.back().is_rdma) to_channels.back().ring_there_size_bytes = ring_size;
    if (to_.empty() || to_.back().streams.front()->to != connection->to) to_.emplace_back();
    to_.back().streams.push_back(connection);
    if (config.SharesMemory(rank_, connection->to))
      to_.back().ring = &sim_.RingOf(rank_, connection->to);
  }
  for (SimConnection* connection : from) {
    Incoming& in = from_.emplace_back(Incoming{.connection = connection});
    from_channels.push_back(channel_of(*connection, connection->from));
    if (from_channels.back().is_rdma) {
      in.written.resize(ring_size);
      from_channels.back().ring_here = in.written;
    }
    if (config.SharesMemory(rank_, connection->from))
      in.ring = &sim_.RingOf(connection->from, rank_);
  }
  machine_ =
      std::make_unique<ExchangeMachine>(config.GroupOf(rank_), std::move(to_channels),
                                        std::move(from_channels), counters_, sim_.clock().now());
}

void SimRank::Submit(bool differs) {
  if (submitted_ == arrays_.size()) return;
  const std::size_t index = submitted_++;
  if (has_ended_[index]) return;  // The group is broken.
  Operation operation = sim_.config().operations[index];
  const bool reduces = operation.plan.collective <= Collective::kReduceScatter;
  if (differs && reduces && (operation.plan.count == 0 || sim_.random().OneIn(2)))
    operation.op = operation.op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
  else if (differs && operation.plan.count > 0)
    --operation.plan.count;
  else if (differs)
    operation.type = ReduceType::kBytes;
  operation.data = arrays_[index].data();
  if (is_running()) machine_->Submit(operation);
  Wake();
}

// --- Turns ---------------------------------------------------------------------------------------

template <class Event>
Result<void> SimRank::Tell(const Event& event) {
  FFR_TRY(machine_->Take(sim_.clock().now(), event, actions_, moved_));
  if (is_doing_) return {};
  is_doing_ = true;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const exchange::Action action = std::move(actions_[i]);
    // The answer to this one is an event, which may end all.
    if (const auto* look = std::get_if<exchange::LookWhetherSilent>(&action)) {
      const SimDuration silence = sim_.SilenceOf(*to_[look->peer].streams[look->stream]);
      FFR_TRY(
          Tell(exchange::Silent{look->peer, look->stream,
                                std::chrono::duration_cast<std::chrono::milliseconds>(silence)}));
      continue;
    }
    std::visit([&](const auto& one) { Do(one); }, action);
  }
  actions_.clear();
  is_doing_ = false;
  return {};
}

void SimRank::Wake() {
  if (std::exchange(will_turn_, true)) return;
  const SimTime at = sim_.clock().now() + sim_.random().UpTo(sim_.config().latency / 4 + 2us);
  if (stopped_until_ == SimTime::max()) return;
  sim_.clock().At(std::max(at, stopped_until_), [this] {
    if (stopped_until_ > sim_.clock().now()) {
      will_turn_ = false;
      Wake();
      return;
    }
    will_turn_ = false;
    Turn();
  });
}

void SimRank::Stop(SimTime until) { stopped_until_ = until; }

void SimRank::Turn() {
  if (!is_running()) return;
  TakeReplacements();
  if (const auto advanced = Advance(); !advanced) {
    Fail(advanced.error());
    return;
  }
  if (state_ == State::kRunning && leaves_ && open_ == 0) {
    actions_.clear();
    machine_->TellAll(sim_.clock().now(), actions_);
    for (const auto& action : std::exchange(actions_, {}))
      std::visit([&](const auto& one) { Do(one); }, action);
    state_ = State::kLeaving;
    leaves_until_ = sim_.clock().now() + kLastPiecesMax;
  }
  if (state_ == State::kLeaving) {
    if (!IsDelivering() || sim_.clock().now() > leaves_until_) {
      Leave();
      return;
    }
    sim_.clock().After(2ms, [this] { Wake(); });
  }
  const SimTime next = machine_->NextTime();
  if (next == SimTime::max()) return;
  tick_at_ = std::max(next, sim_.clock().now() + 100us);
  sim_.clock().At(tick_at_, [this, at = tick_at_] {
    if (at == tick_at_) Wake();
  });
}

Result<void> SimRank::Advance() {
  for (moved_ = true; moved_ && is_running();) {
    moved_ = false;
    for (std::size_t peer = 0; peer < to_.size(); ++peer) {
      SimRing* const ring = to_[peer].ring;
      if (ring == nullptr || !ring->HasRoom() || sim_.random().OneIn(2)) continue;
      ring->Room().bytes.resize(sim_.config().shared_piece_size_bytes);
      machine_->OfferRoom(peer, ring->Room().bytes);
    }
    FFR_TRY(Tell(exchange::Go{}));
    for (std::size_t peer = 0; peer < to_.size(); ++peer) {
      FFR_TRY(TellRoom(peer));
      for (std::size_t i = 0; i < to_[peer].streams.size(); ++i)
        if (!machine_->peer(peer).IsGone(i) && !sim_.random().OneIn(8))
          FFR_TRY(PollStream(peer, i));
    }
    // In any order, and not always all: what comes on one link may be late.
    const std::size_t first = sim_.random().Below(from_.size() + 1);
    for (std::size_t i = 0; i < from_.size(); ++i) FFR_TRY(Receive((first + i) % from_.size()));
    FFR_TRY(Tell(exchange::Settle{}));
  }
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    for (std::size_t i = 0; i < to_[peer].streams.size(); ++i)
      if (!machine_->peer(peer).IsGone(i)) FFR_TRY(PollStream(peer, i));
  FFR_TRY(Tell(exchange::Tick{}));
  if (moved_) Wake();
  return {};
}

Result<void> SimRank::TellRoom(std::size_t peer) {
  SimRing* const ring = to_[peer].ring;
  while (ring != nullptr && machine_->peer(peer).awaits_room && ring->HasRoom()) {
    ring->Room().bytes.resize(sim_.config().shared_piece_size_bytes);
    FFR_TRY(Tell(exchange::Room{peer, ring->Room().bytes}));
  }
  return {};
}

Result<void> SimRank::PollStream(std::size_t peer, std::size_t stream) {
  SimConnection& connection = *to_[peer].streams[stream];
  SimPipe& pipe = connection.backward;
  while (!pipe.frames.empty() && pipe.frames.front().has_arrived()) {
    const SimFrame frame = std::move(pipe.frames.front());
    pipe.frames.pop_front();
    pipe.under_way_bytes -= frame.size_bytes();
    sim_.Pump(connection, false);
    if (frame.kind == Kind::kError) return frame.error;
    FFR_TRY(Tell(exchange::Taken{peer, stream, connection.forward.queued_bytes, frame.taken}));
  }
  if (connection.forward.queued_bytes != machine_->peer(peer).queued_bytes(stream))
    FFR_TRY(Tell(exchange::Left{peer, stream, connection.forward.queued_bytes}));
  if (!connection.sender.is_lost) return {};
  return Tell(
      exchange::StreamLost{peer, stream, connection.forward.queued_bytes, connection.sender.why});
}

// --- Receiving -----------------------------------------------------------------------------------

Result<void> SimRank::Receive(std::size_t link) {
  Incoming& in = from_[link];
  SimConnection& connection = *in.connection;
  if (machine_->IsHeld(link)) return {};
  if (in.ring != nullptr && in.ring->HasPiece()) {
    SimRing::Slot& slot = in.ring->Front();
    return Tell(
        exchange::SharedCame{link, slot.data, std::span(slot.bytes).first(slot.size_bytes)});
  }
  if (connection.receiver.is_closed) return Tell(exchange::LinkLost{link, std::nullopt});
  SimPipe& pipe = connection.forward;
  if (!in.place.empty()) {
    if (Land(link)) {
      const bool is_whole = in.place.size() == pipe.frames.front().landed_bytes;
      moved_ = true;
      if (!is_whole) return {};
      in.place = {};
      pipe.frames.pop_front();
      return Tell(exchange::Landed{link});
    }
  } else if (!pipe.frames.empty() && !pipe.frames.front().is_taken &&
             pipe.frames.front().arrived_bytes >= pipe.frames.front().head_size_bytes &&
             (pipe.frames.front().kind == Kind::kData || pipe.frames.front().has_arrived())) {
    return TakeFrame(link);
  }
  if (!connection.receiver.is_lost) return {};
  in.place = {};
  return Tell(exchange::LinkLost{link, connection.receiver.why});
}

// Some of the payload that has arrived goes to its place. False: none has.
bool SimRank::Land(std::size_t link) {
  Incoming& in = from_[link];
  SimFrame& frame = in.connection->forward.frames.front();
  const std::uint64_t there = frame.arrived_bytes - frame.head_size_bytes - frame.landed_bytes;
  if (there == 0) return false;
  const std::uint64_t part = sim_.random().OneIn(2) ? there : sim_.random().Between(1, there);
  std::memcpy(in.place.data() + frame.landed_bytes, frame.payload.data() + frame.landed_bytes,
              part);
  frame.landed_bytes += part;
  in.connection->forward.under_way_bytes -= part;
  sim_.Pump(*in.connection, true);
  return true;
}

Result<void> SimRank::TakeFrame(std::size_t link) {
  SimPipe& pipe = from_[link].connection->forward;
  SimFrame& first = pipe.frames.front();
  const bool has_payload = first.kind == Kind::kData && !first.source.empty();
  pipe.under_way_bytes -= first.head_size_bytes;
  first.is_taken = true;
  sim_.Pump(*from_[link].connection, true);
  SimFrame frame{.kind = first.kind,
                 .data = first.data,
                 .waiting = first.waiting,
                 .error = first.error,
                 .offset_bytes = first.offset_bytes,
                 .source = first.source};
  if (!has_payload) pipe.frames.pop_front();
  switch (frame.kind) {
    case Kind::kData:
      return Tell(exchange::FrameCame{link, frame.data, frame.source.size(), kHeaderSize});
    case Kind::kPlaced:
      return Tell(exchange::PlacedCame{
          link, {frame.data, frame.offset_bytes, frame.source.size()}, kHeaderSize});
    case Kind::kWaiting:
      return Tell(exchange::WaitingCame{link, frame.waiting});
    default:
      return frame.error;
  }
}

// --- Actions -------------------------------------------------------------------------------------

void SimRank::Do(const exchange::SendPiece& send) {
  if (machine_->peer(send.peer).IsGone(send.stream)) return;
  SimConnection& connection = *to_[send.peer].streams[send.stream];
  SimFrame frame{.kind = send.place ? Kind::kPlaced : Kind::kData,
                 .data = send.data,
                 .offset_bytes = send.place ? send.place->begin : 0,
                 .source = send.bytes,
                 .head_size_bytes = kHeaderSize + (send.place ? 64U : 48U)};
  connection.forward.Queue(std::move(frame));
  if (connection.forward.is_dropped) connection.forward.queued_bytes = 0;
  sim_.Pump(connection, true);
}

void SimRank::Do(const exchange::Publish& publish) {
  SimRing& ring = *to_[publish.peer].ring;
  ring.Room().data = publish.data;
  ring.Room().size_bytes = publish.size_bytes;
  ++ring.written;
  sim_.WakeRank(machine_->peer(publish.peer).rank());
}

void SimRank::Do(const exchange::SendWaiting& send) {
  SimConnection& connection = *to_[send.peer].streams[send.stream];
  connection.forward.Queue(
      {.kind = Kind::kWaiting, .waiting = send.waiting, .head_size_bytes = kHeaderSize + 8});
  sim_.Pump(connection, true);
}

void SimRank::Do(const exchange::SendTaken& send) {
  SimConnection& connection = *from_[send.link].connection;
  if (connection.receiver.is_closed) return;
  connection.backward.Queue(
      {.kind = Kind::kTaken, .taken = send.taken, .head_size_bytes = kHeaderSize + 16});
  sim_.Pump(connection, false);
}

void SimRank::Do(const exchange::Receive& receive) {
  from_[receive.link].place = receive.place;
  moved_ = true;
}

void SimRank::Do(const exchange::Pop& pop) {
  ++from_[pop.link].ring->read;
  sim_.WakeRank(from_[pop.link].connection->from);
}

void SimRank::Do(const exchange::CloseStream& close) {
  sim_.CloseSender(*to_[close.peer].streams[close.stream]);
}

void SimRank::Do(const exchange::CloseLink& close) {
  from_[close.link].place = {};
  sim_.CloseReceiver(*from_[close.link].connection);
}

void SimRank::Do(const exchange::AskStream& ask) { sim_.Ask(rank_, ask.rank, ask.stream); }

void SimRank::Do(const exchange::LookWhetherSilent&) {}  // Tell() answers it.

void SimRank::Do(const exchange::Tell& tell) { sim_.Trace(rank_, tell.text); }

void SimRank::Do(const exchange::Complete& complete) { End(complete.ended.sequence, true); }

void SimRank::Write(const SimConnection& connection, std::uint64_t offset_bytes,
                    std::span<const std::byte> bytes) {
  for (Incoming& in : from_)
    if (in.connection == &connection)
      std::ranges::copy(bytes, in.written.begin() + static_cast<std::ptrdiff_t>(offset_bytes));
}

// --- Connections ---------------------------------------------------------------------------------

bool SimRank::IsWhole(std::uint32_t peer) const {
  const auto at =
      std::ranges::find_if(to_, [&](const Peer& each) { return each.streams.front()->to == peer; });
  return at != to_.end() && std::ranges::all_of(at->streams, [&](const SimConnection* each) {
           return !each->is_cut && !each->sender.is_lost && !each->sender.is_closed &&
                  !each->receiver.is_closed && each->silent_until <= sim_.clock().now();
         });
}

void SimRank::TakeCome(SimConnection* connection) {
  come_.push_back(connection);
  Wake();
}

void SimRank::TakeMade(SimConnection* connection) {
  made_.push_back(connection);
  Wake();
}

void SimRank::TakeReplacements() {
  for (SimConnection* made : std::exchange(made_, {})) {
    for (std::size_t peer = 0; peer < to_.size(); ++peer) {
      if (machine_->peer(peer).rank() != made->to) continue;
      const auto lost = machine_->peer(peer).LostStream(made->stream);
      if (machine_->peer(peer).gone() || !lost) {
        sim_.CloseSender(*made);
        continue;
      }
      to_[peer].streams[*lost] = made;
      (void)Tell(exchange::StreamMade{peer, *lost, "sim" + std::to_string(made->to) + "+"});
    }
  }
  for (SimConnection* come : std::exchange(come_, {})) {
    const auto in = std::ranges::find_if(from_, [&](const Incoming& each) {
      return each.connection->from == come->from && each.connection->stream == come->stream;
    });
    sim_.CloseReceiver(*in->connection);
    in->connection = come;
    in->place = {};
    (void)Tell(exchange::LinkMade{static_cast<std::size_t>(in - from_.begin()),
                                  "sim" + std::to_string(come->from) + "+"});
    sim_.Welcome(come);
  }
}

// --- Ending --------------------------------------------------------------------------------------

void SimRank::End(std::size_t operation, bool is_well) {
  if (has_ended_[operation]) {
    violation_ = "operation " + std::to_string(operation) + " ended twice";
    return;
  }
  has_ended_[operation] = true;
  --open_;
  if (is_well) results_[operation] = arrays_[operation];
  std::ranges::fill(arrays_[operation], kReused);
}

std::string SimRank::Describe() const {
  return std::to_string(rank_) + " (state " + std::to_string(static_cast<int>(state_)) + ", " +
         std::to_string(submitted_) + " submitted, " + std::to_string(open_) + " open, " +
         (will_turn_ ? "awake" : "asleep") + ", tick in " +
         std::to_string((tick_at_ - sim_.clock().now()).count() / 1000) + " us)";
}

void SimRank::CheckArrays() {
  for (std::size_t i = 0; i < arrays_.size(); ++i)
    if (has_ended_[i] &&
        !std::ranges::all_of(arrays_[i], [](std::byte each) { return each == kReused; }))
      violation_ = "the array of operation " + std::to_string(i) + " was written after its end";
}

// As Exchange::Close(why), and what the engine does then.
void SimRank::Fail(const Error& error) {
  sim_.Trace(rank_, "fails: " + error.message);
  sim_.TraceConnections();
  error_ = error;
  state_ = State::kFailing;
  const SimFrame word{.kind = Kind::kError, .error = error, .head_size_bytes = kHeaderSize + 100};
  for (Peer& peer : to_)
    for (SimConnection* connection : peer.streams) {
      if (connection->sender.is_closed || connection->sender.is_lost) continue;
      connection->forward.Queue(word);
      sim_.Pump(*connection, true);
    }
  for (Incoming& in : from_) {
    if (in.connection->receiver.is_closed || in.connection->receiver.is_lost) continue;
    in.connection->backward.Queue(word);
    sim_.Pump(*in.connection, false);
  }
  sim_.clock().After(kFarewell, [this] {
    if (state_ != State::kFailing) return;
    CloseAll();
    for (std::size_t i = 0; i < arrays_.size(); ++i)
      if (!has_ended_[i]) End(i, false);
  });
}

void SimRank::Leave() { CloseAll(); }

bool SimRank::IsDelivering() const {
  for (std::size_t index = 0; index < to_.size(); ++index) {
    const PeerStreams& peer = machine_->peer(index);
    if (peer.gone() || peer.is_shared()) continue;
    if (peer.has_again()) return true;
    for (std::size_t i = 0; i < peer.size(); ++i) {
      const SimPipe& pipe = to_[index].streams[i]->forward;
      if (peer.IsGone(i)) continue;
      if (pipe.queued_bytes > 0 || (peer.HasInFlight(i) && pipe.unacked_bytes > 0)) return true;
    }
  }
  return false;
}

void SimRank::CloseAll() {
  state_ = State::kClosed;
  for (Peer& peer : to_)
    for (SimConnection* connection : peer.streams) sim_.CloseSender(*connection);
  for (Incoming& in : from_) {
    in.place = {};
    sim_.CloseReceiver(*in.connection);
  }
}

void SimRank::Kill() {
  if (state_ == State::kClosed) return;
  CloseAll();
  stopped_until_ = SimTime::max();
}

}  // namespace ffrecord::test
