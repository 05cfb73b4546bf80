#include "client/collective/exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <variant>

#include "client/collective/stream_silence.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;
using namespace std::chrono_literals;

// How long a last word may take: the peer reads it at once or is stuck itself.
constexpr auto kFarewell = 250ms;
// How long one that closes waits for its last pieces to leave: a silent stream is found before.
constexpr std::chrono::milliseconds kLastPiecesMax = 10s;
constexpr auto kDeliveryPause = 2ms;
constexpr auto kIdleWait = 1h;
exchange::Channel ChannelOf(const Link& link) {
  exchange::Channel channel{.rank = link.rank,
                            .stream = link.stream,
                            .address = link.endpoint->peer(),
                            .is_rdma = link.endpoint->remote_memory() != nullptr,
                            .ring_here = link.ring_here.bytes()};
  if (link.ring_out) channel.shared_piece_size_bytes = link.ring_out->piece_size_bytes();
  if (link.ring_in) channel.shared_piece_size_bytes = link.ring_in->piece_size_bytes();
  if (link.ring_there) channel.ring_there_size_bytes = link.ring_there->size_bytes;
  return channel;
}

void Flush(const std::vector<Endpoint*>& peers) {
  const auto deadline = Clock::now() + kFarewell;
  for (;;) {
    std::vector<pollfd> unsent;
    for (Endpoint* peer : peers) {
      // Errors are no news here, and what still comes in is of no use.
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) (void)peer->Poll();
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) unsent.push_back({peer->fd(), POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (unsent.empty() || left.count() <= 0) break;
    (void)PollFor(unsent, left);
  }
}

}  // namespace

Exchange::Exchange(const Group& group, Links links, std::unique_ptr<Replacements> replacements,
                   ExchangeCounters& counters)
    : timeout_(group.timeout),
      rank_(group.rank),
      replacements_(std::move(replacements)),
      counters_(&counters) {
  std::vector<exchange::Channel> to;
  std::vector<exchange::Channel> from;
  for (Link& link : links.to) {
    to.push_back(ChannelOf(link));
    if (to_.empty() || to_.back().streams.front().link.rank != link.rank) to_.emplace_back();
    to_.back().streams.emplace_back().link = std::move(link);
  }
  for (Link& link : links.from) {
    from.push_back(ChannelOf(link));
    from_.emplace_back().link = std::move(link);
  }
  machine_ = std::make_unique<ExchangeMachine>(group, std::move(to), std::move(from), counters,
                                               Clock::now());
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    if (machine_->peer(peer).hears_taken())
      for (const Stream& stream : to_[peer].streams) ProbeWhenIdle(stream.link.endpoint->fd());
}

// --- Turns ---------------------------------------------------------------------------------------

// The machine may want more because of these actions; DoAll() comes to that.
template <class Event>
Result<void> Exchange::Tell(const Event& event) {
  return TellAt(Clock::now(), event);
}

template <class Event>
Result<void> Exchange::TellAt(Clock::time_point now, const Event& event) {
  FFR_TRY(machine_->Take(now, event, actions_, moved_));
  if (actions_.empty() || is_doing_) return {};
  return DoAll();
}

Result<void> Exchange::DoAll() {
  is_doing_ = true;
  while (!actions_.empty()) {
    std::swap(actions_, doing_);
    for (const exchange::Action& action : doing_)
      FFR_TRY(std::visit([&](const auto& one) { return Do(one); }, action));
    doing_.clear();
  }
  is_doing_ = false;
  return {};
}

Result<void> Exchange::Advance(std::vector<Ended>& ended) {
  if (std::exchange(has_replacements_, false)) FFR_TRY(TakeReplacements());
  ended_ = &ended;
  const std::size_t ended_before = ended.size();
  Clock::time_point now;
  for (moved_ = true; moved_ && ended.size() == ended_before;) {
    moved_ = false;
    now = Clock::now();
    FFR_TRY(Turn(now));
  }
  FFR_TRY(TellAt(now, exchange::Tick{}));
  if (!std::exchange(has_words_, false)) return {};
  for (std::size_t peer = 0; peer < to_.size(); ++peer) FFR_TRY(PollStreams(peer));
  return {};
}

Result<void> Exchange::Turn(Clock::time_point now) {
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    if (RingSender* const ring = to_[peer].ring(); ring != nullptr && ring->HasRoom())
      machine_->OfferRoom(peer, ring->Room());
  FFR_TRY(TellAt(now, exchange::Go{}));
  for (std::size_t peer = 0; peer < to_.size(); ++peer) {
    if (to_[peer].ring() != nullptr) FFR_TRY(TellRoom(peer));
    FFR_TRY(PollStreams(peer));
  }
  for (std::size_t link = 0; link < from_.size(); ++link) FFR_TRY(Receive(link));
  return TellAt(now, exchange::Settle{});
}

// --- Waiting -------------------------------------------------------------------------------------

Result<void> Exchange::Wait(int wake_fd) {
  SetSleeps(true);
  // Nobody has rung for news that came before.
  const bool has_news = HasNews();
  if (!has_news) FFR_TRY(WaitForFds(wake_fd));
  if (has_news) has_replacements_ = true;  // A peer that has rung meanwhile does not ring again.
  SetSleeps(false);
  return {};
}

// Peers that share memory with us ring only while this flag is set.
void Exchange::SetSleeps(bool sleeps) {
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    if (to_[peer].ring() != nullptr && machine_->peer(peer).awaits_room)
      to_[peer].ring()->WillSleep(sleeps);
  for (std::size_t link = 0; link < from_.size(); ++link)
    if (from_[link].link.ring_in && !machine_->IsHeld(link))
      from_[link].link.ring_in->WillSleep(sleeps);
}

bool Exchange::HasNews() const {
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    if (to_[peer].ring() != nullptr && machine_->peer(peer).awaits_room &&
        to_[peer].ring()->HasRoom())
      return true;
  for (std::size_t link = 0; link < from_.size(); ++link)
    if (from_[link].link.ring_in && !machine_->IsHeld(link) && from_[link].link.ring_in->HasPiece())
      return true;
  return false;
}

Result<void> Exchange::WaitForFds(int wake_fd) {
  std::vector<pollfd> waited{{wake_fd, POLLIN, 0}};
  std::vector<bool*> are_ready;
  const auto add = [&](const Endpoint& endpoint, bool is_waited_for, bool& is_ready) {
    const int events = endpoint.wants_room() ? POLLIN | POLLOUT : POLLIN;
    waited.push_back({is_waited_for ? endpoint.fd() : -1, static_cast<short>(events), 0});
    are_ready.push_back(&is_ready);
  };
  for (std::size_t peer = 0; peer < to_.size(); ++peer)
    for (std::size_t i = 0; i < to_[peer].streams.size(); ++i)
      add(EndpointOf(peer, i), !machine_->peer(peer).IsGone(i), to_[peer].streams[i].is_ready);
  for (std::size_t link = 0; link < from_.size(); ++link)
    add(*from_[link].link.endpoint, !from_[link].is_closed && !machine_->IsHeld(link),
        from_[link].is_ready);

  if (replacements_)
    for (const int fd : replacements_->fds()) waited.push_back({fd, POLLIN, 0});
  const auto now = Clock::now();
  const auto until = std::min(machine_->NextTime(), now + kIdleWait);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  const int count = PollFor(waited, left);
  if (count < 0 && errno != EINTR)
    return Error{ErrorCode::kIo, std::string("poll failed: ") + std::strerror(errno), errno};
  for (std::size_t i = 0; i < are_ready.size(); ++i)
    if (waited[1 + i].revents != 0) *are_ready[i] = true;
  // The thread that makes connections rings as those do who submit.
  has_replacements_ = waited[0].revents != 0;
  for (std::size_t i = 1 + are_ready.size(); i < waited.size(); ++i)
    has_replacements_ |= waited[i].revents != 0;
  return {};
}

// --- Sending -------------------------------------------------------------------------------------

Result<void> Exchange::TellRoom(std::size_t peer) {
  RingSender* const ring = to_[peer].ring();
  while (machine_->peer(peer).awaits_room && ring->HasRoom())
    FFR_TRY(Tell(exchange::Room{peer, ring->Room()}));
  return {};
}

Result<void> Exchange::Do(const exchange::Publish& publish) {
  to_[publish.peer].ring()->Publish(publish.data.Encode(), publish.size_bytes);
  return {};
}

// Queues the frame. It goes over another stream if this one turns out to be gone.
Result<void> Exchange::Do(const exchange::SendPiece& send) {
  const PeerStreams& peer = machine_->peer(send.peer);
  if (peer.IsGone(send.stream)) return {};
  to_[send.peer].has_sent = true;
  Link& link = to_[send.peer].streams[send.stream].link;
  Result<void> sent;
  if (send.place) {
    const GroupRing& ring = *link.ring_there;
    const net::RemoteMemory::PlacedPiece piece{
        {.bytes = send.bytes}, {ring.memory.address + send.place->begin, ring.memory.key}};
    sent = link.endpoint->remote_memory()->SendPlaced(
        {.type = FrameType::kCollectivePlaced},
        CollectivePlaced{send.data, send.place->begin, send.bytes.size()}.Encode(), {&piece, 1});
  } else {
    sent = link.endpoint->Send({.type = FrameType::kCollectiveData}, send.data.Encode(),
                               {&send.bytes, 1});
  }
  if (sent) return {};
  return Tell(exchange::StreamLost{send.peer, send.stream, peer.queued_bytes(send.stream),
                                   std::move(sent).error()});
}

Result<void> Exchange::Do(const exchange::SendWaiting& send) {
  Stream& stream = to_[send.peer].streams[send.stream];
  // If it is lost, that will show when it is polled.
  (void)stream.link.endpoint->Send({.type = FrameType::kPing}, send.waiting.Encode(), {});
  stream.is_ready = has_words_ = true;
  return {};
}

Result<void> Exchange::Do(const exchange::CloseStream& close) {
  EndpointOf(close.peer, close.stream).Close();
  return {};
}

Result<void> Exchange::Do(const exchange::LookWhetherSilent& look) {
  const Endpoint& endpoint = EndpointOf(look.peer, look.stream);
  return Tell(exchange::Silent{look.peer, look.stream, SilenceOf(endpoint.fd())});
}

// Pieces in shared memory are there at once, and leave nothing for the socket to do.
Result<void> Exchange::PollStreams(std::size_t peer) {
  const bool has_sent = std::exchange(to_[peer].has_sent, false);
  for (std::size_t i = 0; i < to_[peer].streams.size(); ++i)
    if ((has_sent || to_[peer].streams[i].is_ready) && !machine_->peer(peer).IsGone(i))
      FFR_TRY(PollStream(peer, i));
  return {};
}

// Sends the queued frames. With several streams, the peer acknowledges the pieces that it takes;
// with one stream, it sends nothing here but its last message.
Result<void> Exchange::PollStream(std::size_t peer, std::size_t index) {
  Stream& stream = to_[peer].streams[index];
  stream.is_ready = false;
  Endpoint& endpoint = *stream.link.endpoint;
  auto event = endpoint.Poll();
  for (; event && event.value() == Endpoint::Event::kFrame; event = endpoint.Poll())
    FFR_TRY(TellTaken(peer, index));
  if (const std::uint64_t queued_bytes = endpoint.bytes_queued();
      queued_bytes != machine_->peer(peer).queued_bytes(index))
    FFR_TRY(Tell(exchange::Left{peer, index, queued_bytes}));
  if (event && event.value() == Endpoint::Event::kNone) return {};
  std::optional<Error> why;
  if (!event) why = std::move(event).error();
  return Tell(exchange::StreamLost{peer, index, endpoint.bytes_queued(), std::move(why)});
}

Result<void> Exchange::TellTaken(std::size_t peer, std::size_t index) {
  const Link& link = to_[peer].streams[index].link;
  const Endpoint& endpoint = *link.endpoint;
  if (endpoint.header().type == FrameType::kError) return LastWord(link);
  if (endpoint.header().type != FrameType::kCollectiveTaken || !machine_->peer(peer).hears_taken())
    return Error{ErrorCode::kCorruption, "rank " + std::to_string(link.rank) +
                                             " sent a frame against the data's direction"};
  const auto taken = CollectiveTaken::Decode(endpoint.body());
  if (!taken) return OfRank(link.rank, taken.error());
  return Tell(exchange::Taken{peer, index, endpoint.bytes_queued(), taken.value()});
}

// --- Receiving -----------------------------------------------------------------------------------

Result<void> Exchange::Receive(std::size_t link) {
  Incoming& in = from_[link];
  if (machine_->IsHeld(link)) return {};
  if (in.link.ring_in && in.link.ring_in->HasPiece()) return TakeShared(link);
  if (in.is_closed) return Tell(exchange::LinkLost{link, in.why});
  if (std::exchange(in.link.has_frame, false)) return TakeFrame(link);
  if (!in.is_ready) return {};
  auto event = in.link.endpoint->Poll();
  if (!event || event.value() == Endpoint::Event::kClosed) {
    // Not a lost connection but a frame that cannot be right.
    if (!event && event.error().code == ErrorCode::kCorruption)
      return OfRank(in.link.rank, std::move(event).error());
    in.is_closed = moved_ = true;  // Data that it had left in shared memory is still there.
    if (!event) in.why = std::move(event).error();
    return {};
  }
  if (event.value() == Endpoint::Event::kFrame) return TakeFrame(link);
  if (event.value() == Endpoint::Event::kPayload) return Tell(exchange::Landed{link});
  in.is_ready = false;
  return {};
}

Result<void> Exchange::TakeShared(std::size_t link) {
  const Incoming& in = from_[link];
  const auto piece = in.link.ring_in->Front();
  if (!piece) return OfRank(in.link.rank, piece.error());
  const auto data = CollectiveData::Decode(piece.value().head());
  if (!data) return OfRank(in.link.rank, data.error());
  return Tell(exchange::SharedCame{link, data.value(), piece.value().payload});
}

Result<void> Exchange::TakeFrame(std::size_t link) {
  const Link& from = from_[link].link;
  const Endpoint& endpoint = *from.endpoint;
  const auto& header = endpoint.header();
  const std::uint64_t frame_size_bytes =
      net::FrameHeader::kEncodedSizeBytes + endpoint.body().size();
  const auto tell = [&](const auto& decoded, const auto& event_of) -> Result<void> {
    if (!decoded) return OfRank(from.rank, decoded.error());
    return Tell(event_of(decoded.value()));
  };
  switch (header.type) {
    case FrameType::kCollectiveData:
      return tell(CollectiveData::Decode(endpoint.body()), [&](const CollectiveData& data) {
        return exchange::FrameCame{link, data, header.payload_size_bytes, frame_size_bytes};
      });
    case FrameType::kCollectivePlaced:
      return tell(CollectivePlaced::Decode(endpoint.body()), [&](const CollectivePlaced& placed) {
        return exchange::PlacedCame{link, placed, frame_size_bytes};
      });
    case FrameType::kPing:
      return tell(GroupWaiting::Decode(endpoint.body()), [&](const GroupWaiting& waiting) {
        return exchange::WaitingCame{link, waiting};
      });
    case FrameType::kError:
      return LastWord(from);
    default:
      return exchange::Unexpected(
          from.rank, rank_,
          "sent a frame of type " + std::to_string(static_cast<int>(header.type)));
  }
}

Result<void> Exchange::Do(const exchange::Receive& receive) {
  const std::span<std::byte> places[] = {receive.place};
  const auto placed = from_[receive.link].link.endpoint->ReceivePayload(places);
  // If the connection is lost, that will show when it is polled.
  if (!placed && placed.error().code != ErrorCode::kUnavailable) return placed;
  return {};
}

Result<void> Exchange::Do(const exchange::Pop& pop) {
  from_[pop.link].link.ring_in->Pop();
  return {};
}

Result<void> Exchange::Do(const exchange::SendTaken& send) {
  Incoming& in = from_[send.link];
  // If it is lost, that will show when it is read from.
  if (!in.link.endpoint->Send({.type = FrameType::kCollectiveTaken}, send.taken.Encode(), {}))
    return {};
  in.is_ready = true;
  // It is not read from before there is a place for what it has brought; that sends, though.
  if (machine_->IsHeld(send.link)) (void)in.link.endpoint->Poll();
  return {};
}

Result<void> Exchange::Do(const exchange::CloseLink& close) {
  from_[close.link].link.endpoint->Close();
  from_[close.link].is_closed = true;
  return {};
}

// --- Replacements and results --------------------------------------------------------------------

Result<void> Exchange::Do(const exchange::AskStream& ask) {
  if (replacements_) replacements_->Ask(ask.rank, ask.stream);
  return {};
}

Result<void> Exchange::Do(const exchange::Tell& tell) {
  counters_->Tell(tell.text);
  return {};
}

Result<void> Exchange::Do(const exchange::Complete& complete) {
  ended_->push_back(complete.ended);
  return {};
}

Result<void> Exchange::TakeReplacements() {
  if (!replacements_) return {};
  for (Link& link : replacements_->TakeMade()) {
    for (std::size_t peer = 0; peer < to_.size(); ++peer) {
      const auto lost = machine_->peer(peer).LostStream(link.stream);
      if (machine_->peer(peer).rank() != link.rank || machine_->peer(peer).gone() || !lost)
        continue;
      ProbeWhenIdle(link.endpoint->fd());
      const exchange::StreamMade made{peer, *lost, link.endpoint->peer()};
      to_[peer].streams[*lost] = {std::move(link)};
      FFR_TRY(Tell(made));
      break;
    }
  }
  for (Link& link : replacements_->TakeCome()) {
    const auto in = std::ranges::find_if(from_, [&](const Incoming& each) {
      return each.link.rank == link.rank && each.link.stream == link.stream && !each.link.ring_in;
    });
    if (in == from_.end()) continue;
    const exchange::LinkMade made{static_cast<std::size_t>(in - from_.begin()),
                                  link.endpoint->peer()};
    *in = {std::move(link)};
    FFR_TRY(Tell(made));
  }
  return {};
}

// --- Closing -------------------------------------------------------------------------------------

void Exchange::Close(const Error& why) {
  const auto peers = Endpoints();
  for (Endpoint* peer : peers)
    if (peer->fd() >= 0) SendLastWord(*peer, why);
  Flush(peers);
  for (Endpoint* peer : peers) peer->Close();
}

void Exchange::Close() {
  // Tells senders which pieces were taken, so that nobody sends them again.
  machine_->TellAll(Clock::now(), actions_);
  for (const exchange::Action& action : std::exchange(actions_, {}))
    (void)std::visit([&](const auto& one) { return Do(one); }, action);
  DeliverLast();
  std::vector<Endpoint*> senders;
  for (Incoming& in : from_) senders.push_back(in.link.endpoint.get());
  Flush(senders);
  for (Endpoint* peer : Endpoints()) peer->Close();
}

// An operation ends when copies of its small pieces are queued, and who has ended may close.
void Exchange::DeliverLast() {
  const auto deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(timeout_, kLastPiecesMax);
  std::vector<Ended> ended;
  while (IsDelivering() && Clock::now() < deadline) {
    for (Peer& peer : to_)
      for (Stream& stream : peer.streams) stream.is_ready = true;
    if (!Advance(ended)) return;  // Peers that are gone need nothing.
    // No event tells when the other machine has acknowledged.
    if (IsDelivering()) SleepFor(kDeliveryPause);
  }
}

// Whether something that was sent may not have reached its peer's machine.
bool Exchange::IsDelivering() const {
  for (std::size_t index = 0; index < to_.size(); ++index) {
    const PeerStreams& peer = machine_->peer(index);
    if (peer.gone() || peer.is_shared()) continue;
    if (peer.has_again()) return true;
    for (std::size_t i = 0; i < peer.size(); ++i) {
      const Endpoint& endpoint = *to_[index].streams[i].link.endpoint;
      if (peer.IsGone(i)) continue;
      if (endpoint.bytes_queued() > 0 || (peer.HasInFlight(i) && HasUnacknowledged(endpoint.fd())))
        return true;
    }
  }
  return false;
}

std::vector<Endpoint*> Exchange::Endpoints() {
  std::vector<Endpoint*> endpoints;
  for (const Peer& peer : to_)
    for (const Stream& stream : peer.streams) endpoints.push_back(stream.link.endpoint.get());
  for (const Incoming& in : from_) endpoints.push_back(in.link.endpoint.get());
  return endpoints;
}

}  // namespace ffrecord::client
