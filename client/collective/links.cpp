#include "client/collective/links.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/packet_marks.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "libffrecord/pace/marks.h"

namespace ffrecord::client {
namespace {

using net::Endpoint;
using net::FrameType;

// Two chunks and a piece may be under way; where one ends a larger one need not fit behind it.
constexpr std::uint64_t kRingChunks = 4;

class Handshake {
 public:
  Handshake(const GroupHello& hello, const Machines& machines, const Meeting& meeting,
            net::Deadline deadline)
      : hello_(hello),
        machines_(machines),
        peers_(PeersOf(hello.rank, hello.world_size, machines)),
        meeting_(meeting),
        deadline_(deadline) {}

  Result<Links> Run(std::span<const std::string> addresses) {
    if (auto joined = Join(addresses); !joined) {
      Error error = std::move(joined).error();
      // A fault of a peer that did connect says more than the absence of the right one.
      if (refused_ && error.code != ErrorCode::kDenied)
        error = {refused_->code, refused_->message + "; " + error.message};
      TurnAwayAll(error);
      return error;
    }
    std::ranges::sort(links_.from, {},
                      [](const Link& link) { return Place(link.rank, link.stream); });
    return std::move(links_);
  }

 private:
  // A peer that has connected and is not one of our links yet.
  struct Candidate {
    Link link;                            // Whose it will be; outlives the endpoint.
    std::unique_ptr<net::RdmaLink> rdma;  // Was offered, when its HELLO was good.
    std::unique_ptr<Endpoint> endpoint;
  };

  Result<void> Join(std::span<const std::string> addresses) {
    for (const std::uint32_t rank : peers_.to) {
      for (std::uint16_t stream = 0; stream < StreamsWith(rank); ++stream) {
        auto link = Introduce(rank, stream, FFR_TRY(MemberAddress::Parse(addresses[rank])));
        if (!link) return OfRank(rank, std::move(link).error());
        links_.to.push_back(std::move(link).value());
      }
    }
    for (const std::uint32_t rank : peers_.from)
      for (std::uint16_t stream = 0; stream < StreamsWith(rank); ++stream)
        awaited_.emplace(rank, stream);
    is_welcome_.resize(links_.to.size());
    while (!IsDone()) FFR_TRY(Step());
    return {};
  }

  // Connects to `rank` and says who we are; it has not answered yet.
  Result<Link> Introduce(std::uint32_t rank, std::uint16_t stream, const MemberAddress& address) {
    Link link;
    link.rank = rank;
    link.stream = stream;
    GroupHello own = hello_;
    own.stream = stream;
    const auto body = own.Encode();
    if (!machines_.Share(hello_.rank, rank)) {
      const auto at = FFR_TRY(net::Address::Parse(address.tcp, 0));
      link.endpoint = FFR_TRY(net::ConnectTcp(at, deadline_));
      net::MarkPackets(*link.endpoint, pace::MarkOfCollectives());
      link.endpoint->SetLimits({4096, 0});
      FFR_TRY(link.endpoint->Send({.type = FrameType::kHello}, body, {}));
      return link;
    }
    auto sharing = ShareMemory(address, body);
    if (!sharing) {
      Error error = std::move(sharing).error();
      error.message +=
          "; the rank is on the same machine, and memory is shared there unless a rank turns "
          "that off (shares_memory)";
      return error;
    }
    auto [endpoint, ring] = std::move(sharing).value();
    link.endpoint = std::move(endpoint);
    link.ring_out = std::move(ring);
    return link;
  }

  // The wake-up goes ahead of the HELLO, for a frame carries one descriptor.
  Result<std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RingSender>>> ShareMemory(
      const MemberAddress& address, std::span<const std::byte> body) {
    // HELLO shows the secret. When a rank has ended, another process can take its name.
    auto endpoint = FFR_TRY(
        net::ConnectLocal(address.local, address.tcp, deadline_, net::LocalOwner::kThisUser));
    auto ring = FFR_TRY(RingSender::Make(RingsOf(hello_, machines_)));
    endpoint->SetLimits({4096, 0, /*descriptor_count_max=*/1});  // Its wake-up.
    FFR_TRY(
        endpoint->descriptors()->SendDescriptor({.type = FrameType::kPing}, {}, meeting_.wake_fd));
    FFR_TRY(endpoint->descriptors()->SendDescriptor({.type = FrameType::kHello}, body,
                                                    ring.memory_fd()));
    return std::pair(std::move(endpoint), std::make_unique<RingSender>(std::move(ring)));
  }

  bool IsWelcomeToAll() const { return std::ranges::count(is_welcome_, false) == 0; }
  bool IsDone() const { return IsWelcomeToAll() && awaited_.empty(); }
  std::uint16_t StreamsWith(std::uint32_t rank) const {
    return machines_.Share(hello_.rank, rank) ? std::uint16_t{1} : hello_.streams;
  }

  // Does what can be done now, else waits.
  Result<void> Step() {
    for (std::size_t i = 0; i < links_.to.size(); ++i) FFR_TRY(PollWelcome(i));
    for (Candidate& candidate : candidates_) FFR_TRY(PollCandidate(candidate));
    std::erase_if(candidates_, [](const Candidate& candidate) { return !candidate.endpoint; });
    if (auto accepted = FFR_TRY(Accept())) {
      if (candidates_.size() == candidates_max()) candidates_.erase(candidates_.begin());
      candidates_.emplace_back().endpoint = std::move(accepted);
      return {};
    }
    if (IsDone() || FFR_TRY(WaitForAny())) return {};
    return OfRank(Missing(),
                  {ErrorCode::kDeadlineExceeded,
                   IsWelcomeToAll() ? "did not connect in time" : "did not answer in time"});
  }

  Result<std::unique_ptr<Endpoint>> Accept() {
    auto accepted = FFR_TRY(meeting_.listener.Accept());
    if (accepted || meeting_.local_listener == nullptr) return accepted;
    accepted = FFR_TRY(meeting_.local_listener->Accept());
    // Its wake-up and its memory. They are looked at once its HELLO has shown the group's secret.
    if (accepted) accepted->SetLimits({4096, 0, /*descriptor_count_max=*/2});
    return accepted;
  }

  // False when time is up.
  Result<bool> WaitForAny() {
    std::vector<pollfd> waited{{meeting_.listener.fd(), POLLIN, 0}};
    if (meeting_.local_listener != nullptr)
      waited.push_back({meeting_.local_listener->fd(), POLLIN, 0});
    const auto add = [&](const Endpoint& endpoint) {
      const int events = endpoint.wants_room() ? POLLIN | POLLOUT : POLLIN;
      waited.push_back({endpoint.fd(), static_cast<short>(events), 0});
    };
    // Not those in links_.from: what they say next is not for us but for the operations.
    for (const Link& link : links_.to) add(*link.endpoint);
    for (const Candidate& candidate : candidates_) add(*candidate.endpoint);
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - net::Clock::now());
      if (left.count() <= 0) return false;
      const int count =
          PollFor(waited, std::min<std::chrono::milliseconds>(left, std::chrono::hours(1)));
      if (count > 0) return true;
      if (count < 0 && errno != EINTR)
        return Error{ErrorCode::kIo, std::string("poll failed: ") + std::strerror(errno), errno};
    }
  }

  // The first that has not answered, or has not come. Requires !IsDone().
  std::uint32_t Missing() const {
    const auto unanswered = std::ranges::find(is_welcome_, false);
    if (unanswered != is_welcome_.end())
      return links_.to[static_cast<std::size_t>(unanswered - is_welcome_.begin())].rank;
    return awaited_.begin()->first;
  }
  // Connections that have not said HELLO yet: the oldest goes when there are more.
  std::size_t candidates_max() const { return peers_.from.size() * hello_.streams + 16; }

  // Until there is nothing more: only then may be waited for more.
  Result<void> PollWelcome(std::size_t index) {
    Link& link = links_.to[index];
    for (;;) {
      auto event = link.endpoint->Poll();
      if (!event) return OfRank(link.rank, std::move(event).error());
      if (event.value() == Endpoint::Event::kNone) return {};
      if (event.value() == Endpoint::Event::kClosed)
        return OfRank(link.rank, {ErrorCode::kUnavailable, "closed the connection"});
      FFR_TRY(TakeAnswer(link, index));
    }
  }

  // A frame in answer to our HELLO.
  Result<void> TakeAnswer(Link& link, std::size_t index) {
    const FrameType type = link.endpoint->header().type;
    const bool awaits_rdma = meeting_.rails != nullptr && link.endpoint->transport() == "tcp";
    if (type == FrameType::kError) return LastWord(link);
    if (type == FrameType::kRdmaConnect && awaits_rdma) return TakeRdmaOffer(link);
    if (type != net::ReplyTo(FrameType::kHello) || is_welcome_[index] || awaits_rdma)
      return OfRank(link.rank, {ErrorCode::kCorruption, "sent an unrequested frame"});
    is_welcome_[index] = true;
    if (link.endpoint->remote_memory() != nullptr) {
      const auto ring = GroupRing::Decode(link.endpoint->body());
      if (!ring) return OfRank(link.rank, ring.error());
      link.ring_there = ring.value();
    }
    if (link.ring_out == nullptr) return {};
    ForeignFd wakeup = link.endpoint->descriptors()->TakeDescriptor();
    if (!wakeup) return OfRank(link.rank, {ErrorCode::kCorruption, "answered without its wake-up"});
    link.ring_out->SetReceiverWakeup(std::move(wakeup));
    return {};
  }

  // Leaves it without an endpoint if it is gone or has become one of our links.
  Result<void> PollCandidate(Candidate& candidate) {
    const auto event = candidate.endpoint->Poll();
    if (event && event.value() == Endpoint::Event::kNone) return {};
    if (candidate.rdma) return TakeRdma(candidate, event);
    // Its wake-up, which is taken when its HELLO is there.
    if (event && event.value() == Endpoint::Event::kFrame && IsLocal(*candidate.endpoint) &&
        candidate.endpoint->header().type == FrameType::kPing)
      return {};
    if (const auto theirs = HelloOf(*candidate.endpoint, event)) {
      candidate.link.rank = theirs->rank;
      candidate.link.stream = theirs->stream;
      if (const auto refused = Refusal(*theirs, *candidate.endpoint, candidate.link)) {
        SendLastWord(*candidate.endpoint, *refused);
        (void)candidate.endpoint->Poll();
      } else if (meeting_.rails != nullptr && !IsLocal(*candidate.endpoint)) {
        return OfferRdma(candidate);
      } else {
        FFR_TRY(Admit(candidate));
      }
    }
    candidate.endpoint.reset();
    return {};
  }

  // It becomes one of our links, unless it breaks.
  Result<void> Admit(Candidate& candidate) {
    Link& link = candidate.link;
    FFR_TRY(Welcome(*candidate.endpoint, link));
    // This sends. The other end may be so quick that its first piece is there.
    const auto sent = candidate.endpoint->Poll();
    if (!sent || sent.value() == Endpoint::Event::kClosed) return {};
    link.has_frame = sent.value() == Endpoint::Event::kFrame;
    // Only the first of two that call themselves the same.
    if (awaited_.erase(Place(link.rank, link.stream)) == 0) return {};
    link.endpoint = std::move(candidate.endpoint);
    links_.from.push_back(std::move(link));
    return {};
  }

  // --- RDMA: who receives asks for it, for only that end can let the other write ---

  Result<std::unique_ptr<net::RdmaLink>> MakeRdma(const Link& link, net::RdmaLink::Side side) {
    return (*meeting_.rails)[link.stream % meeting_.rails->size()].Make(side);
  }

  Result<void> OfferRdma(Candidate& candidate) {
    candidate.rdma = FFR_TRY(MakeRdma(candidate.link, net::RdmaLink::Side::kConnects));
    const auto sent = candidate.endpoint->Send({.type = FrameType::kRdmaConnect},
                                               candidate.rdma->own().Encode(), {});
    if (!sent) candidate.endpoint.reset();
    return {};
  }

  // Takes an event of a link to which RDMA was offered.
  Result<void> TakeRdma(Candidate& candidate, const Result<Endpoint::Event>& event) {
    Link& link = candidate.link;
    std::unique_ptr<Endpoint>& endpoint = candidate.endpoint;
    const bool is_frame = event && event.value() == Endpoint::Event::kFrame;
    if (is_frame && endpoint->header().type == FrameType::kError) {
      link.endpoint = std::move(endpoint);
      return LastWord(link);
    }
    if (is_frame && endpoint->header().type == net::ReplyTo(FrameType::kRdmaConnect)) {
      const auto peer = net::RdmaConnect::Decode(endpoint->body());
      if (!peer) return OfRank(link.rank, peer.error());
      auto over = candidate.rdma->Connect(peer.value(), endpoint);
      if (!over) return OfRank(link.rank, std::move(over).error());
      endpoint = std::move(over).value();
      const std::uint64_t pages =
          (kRingChunks * hello_.chunk_size_bytes + net::kSlabPageBytes - 1) / net::kSlabPageBytes;
      link.ring_here = FFR_TRY(net::Slab::Make(pages * net::kSlabPageBytes));
      FFR_TRY(Admit(candidate));
    }
    endpoint.reset();
    return {};
  }

  // A frame that is no answer to HELLO yet.
  Result<void> TakeRdmaOffer(Link& link) {
    auto rdma = FFR_TRY(MakeRdma(link, net::RdmaLink::Side::kAccepts));
    auto over = net::AcceptRdma(*rdma, link.endpoint);
    if (!over) return OfRank(link.rank, std::move(over).error());
    link.endpoint = std::move(over).value();
    link.endpoint->SetLimits({4096, 0});
    return {};
  }

  static bool IsLocal(const Endpoint& endpoint) { return endpoint.transport() == "shm"; }

  Result<void> Welcome(Endpoint& candidate, const Link& link) {
    const net::FrameHeader header{.type = net::ReplyTo(FrameType::kHello)};
    if (net::DescriptorPassing* const descriptors = candidate.descriptors())
      return descriptors->SendDescriptor(header, {}, meeting_.wake_fd);
    candidate.SetLimits({4096, static_cast<std::uint32_t>(hello_.chunk_size_bytes)});
    net::RemoteMemory* const memory = candidate.remote_memory();
    if (memory == nullptr) return candidate.Send(header, {}, {});
    const std::span<std::byte> ring = link.ring_here.bytes();
    const GroupRing told{FFR_TRY(memory->Expose(ring, net::RemoteMemory::Reach::kWrite)),
                         ring.size()};
    return candidate.Send(header, told.Encode(), {});
  }

  static std::optional<GroupHello> HelloOf(const Endpoint& candidate,
                                           const Result<Endpoint::Event>& event) {
    if (!event || event.value() != Endpoint::Event::kFrame ||
        candidate.header().type != FrameType::kHello)
      return std::nullopt;
    const auto hello = GroupHello::Decode(candidate.body());
    return hello ? std::optional(hello.value()) : std::nullopt;
  }

  // Why this HELLO is not that of a rank that we wait for, if it is not. Else `link` gets the
  // memory that came with it.
  std::optional<Error> Refusal(const GroupHello& theirs, Endpoint& candidate, Link& link) {
    const std::string who = "rank " + std::to_string(hello_.rank);
    if (!SecretsEqual(theirs, hello_)) {
      // Not fatal: a stranger must not be able to stop the group from forming. Said at the end.
      refused_ = Error{ErrorCode::kDenied,
                       who + " was reached at " + meeting_.listener.address().ToString() +
                           " with a secret that is not the group's; all ranks must pass the same"};
      return Error{ErrorCode::kDenied, who + " has another secret than this group's"};
    }
    if (theirs.world_size == hello_.world_size &&
        theirs.chunk_size_bytes == hello_.chunk_size_bytes && theirs.wire == hello_.wire &&
        theirs.transport == hello_.transport && theirs.streams == hello_.streams &&
        awaited_.contains(Place(theirs.rank, theirs.stream)) &&
        machines_.Share(theirs.rank, hello_.rank) == IsLocal(candidate)) {
      if (!IsLocal(candidate)) return std::nullopt;
      net::DescriptorPassing& descriptors = *candidate.descriptors();
      ForeignFd wakeup = descriptors.TakeDescriptor();
      auto ring = RingReceiver::Map(RingsOf(hello_, machines_), descriptors.TakeDescriptor(),
                                    std::move(wakeup));
      if (!ring) return refused_ = OfRank(theirs.rank, std::move(ring).error());
      link.ring_in = std::make_unique<RingReceiver>(std::move(ring).value());
      return std::nullopt;
    }
    const auto describe = [](const GroupHello& hello) {
      return "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size) +
             " with chunks of " + std::to_string(hello.chunk_size_bytes) + " bytes" +
             (hello.streams > 1 ? " in " + std::to_string(hello.streams) + " streams" : "") +
             (hello.transport == GroupTransport::kRdma ? " over RDMA" : "") +
             (hello.wire == WireType::kBf16  ? " that sends bf16"
              : hello.wire == WireType::kF16 ? " that sends f16"
                                             : "");
    };
    refused_ = Error{
        ErrorCode::kInvalidArgument,
        describe(theirs) + " connected to " + describe(hello_) +
            ": addresses in rank order, world size, chunk size, wire type,"
            " transport and streams must be the same on all ranks, and each rank may join once"};
    return refused_;
  }

  void TurnAwayAll(const Error& error) {
    for (auto* links : {&links_.to, &links_.from}) {
      for (const Link& link : *links) {
        if (link.endpoint->fd() < 0) continue;
        SendLastWord(*link.endpoint, error);
        (void)link.endpoint->Poll();
      }
    }
    // Those who have come but were not looked at yet would only see a reset.
    for (auto accepted = Accept(); accepted && accepted.value(); accepted = Accept())
      candidates_.emplace_back().endpoint = std::move(accepted).value();
    for (Candidate& each : candidates_) {
      Endpoint* const candidate = each.endpoint.get();
      if (candidate == nullptr) continue;
      auto event = candidate->Poll();
      // Past the wake-up.
      if (event && event.value() == Endpoint::Event::kFrame &&
          candidate->header().type == FrameType::kPing)
        event = candidate->Poll();
      const auto theirs = HelloOf(*candidate, event);
      if (candidate->fd() < 0) continue;
      const bool is_stranger = theirs && !SecretsEqual(*theirs, hello_);
      Link unused;
      SendLastWord(*candidate, is_stranger ? *Refusal(*theirs, *candidate, unused) : error);
      (void)candidate->Poll();
    }
  }

  const GroupHello& hello_;
  const Machines& machines_;
  const Peers peers_;
  const Meeting meeting_;
  const net::Deadline deadline_;
  Links links_;
  std::vector<bool> is_welcome_;                          // For each of links_.to: it has taken us.
  using Place = std::pair<std::uint32_t, std::uint16_t>;  // Rank and stream.
  std::set<Place> awaited_;                               // The links that are still to connect.
  std::vector<Candidate> candidates_;
  std::optional<Error> refused_;  // The last one turned away, if nobody better comes.
};

}  // namespace

Result<Links> JoinGroup(const GroupHello& hello, std::span<const std::string> addresses,
                        const Machines& machines, const Meeting& meeting, net::Deadline deadline) {
  return Handshake(hello, machines, meeting, deadline).Run(addresses);
}

bool SecretsEqual(const GroupHello& a, const GroupHello& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < a.secret.size(); ++i) difference |= a.secret[i] ^ b.secret[i];
  return difference == std::byte{0};
}

RingShape RingsOf(const GroupHello& hello, const Machines& machines) {
  // Pieces of fp16 have to have the same bounds on all links (wire.h).
  return RingShape::For(hello.chunk_size_bytes, machines.ranks_max(), hello.wire == WireType::kF16);
}

Link& Link::operator=(Link&& other) noexcept {
  if (endpoint) endpoint->Close();
  rank = other.rank;
  stream = other.stream;
  endpoint = std::move(other.endpoint);
  has_frame = other.has_frame;
  ring_here = std::move(other.ring_here);
  ring_there = other.ring_there;
  ring_out = std::move(other.ring_out);
  ring_in = std::move(other.ring_in);
  return *this;
}

Error OfRank(std::uint32_t rank, Error error) {
  error.message = "rank " + std::to_string(rank) + ": " + error.message;
  return error;
}

Error LastWord(const Link& link) {
  auto reply = net::ErrorReply::Decode(link.endpoint->body());
  if (!reply) return OfRank(link.rank, std::move(reply).error());
  return {reply.value().code, reply.value().message,
          static_cast<int>(reply.value().system_errno & 0x7FFFFFFF)};
}

void SendLastWord(Endpoint& peer, const Error& error) {
  (void)peer.Send({.type = FrameType::kError}, net::FromError(error).Encode(), {});
}

}  // namespace ffrecord::client
