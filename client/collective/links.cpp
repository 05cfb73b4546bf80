#include "client/collective/links.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::client {
namespace {

using net::Endpoint;
using net::FrameType;

bool SecretsEqual(const GroupHello& a, const GroupHello& b) {
  // In constant time: how much of it was guessed right must not show.
  std::byte difference{0};
  for (std::size_t i = 0; i < a.secret.size(); ++i) difference |= a.secret[i] ^ b.secret[i];
  return difference == std::byte{0};
}

class Handshake {
 public:
  Handshake(const GroupHello& hello, net::TcpListener& listener, net::Deadline deadline)
      : hello_(hello),
        peers_(PeersOf(hello.rank, hello.world_size)),
        listener_(listener),
        deadline_(deadline) {}

  Result<Links> Run(std::span<const std::string> addresses) {
    if (auto joined = Join(addresses); !joined) {
      Error error = std::move(joined).error();
      // What was wrong with those who came says more than that the right one did not.
      if (refused_ && error.code != ErrorCode::kDenied)
        error = {refused_->code, refused_->message + "; " + error.message};
      TurnAwayAll(error);
      return error;
    }
    std::ranges::sort(links_.from, {}, &Link::rank);
    return std::move(links_);
  }

 private:
  Result<void> Join(std::span<const std::string> addresses) {
    for (const std::uint32_t rank : peers_.to) {
      const auto address = FFR_TRY(net::Address::Parse(addresses[rank], 0));
      auto connected = net::ConnectTcp(address, deadline_);
      if (!connected) return OfRank(rank, std::move(connected).error());
      links_.to.push_back({rank, std::move(connected).value()});
      net::Endpoint& endpoint = *links_.to.back().endpoint;
      endpoint.SetLimits({4096, 0});
      FFR_TRY(endpoint.Send({.type = FrameType::kHello}, hello_.Encode(), {}));
    }
    is_welcome_.resize(links_.to.size());
    while (!IsDone()) FFR_TRY(Step());
    return {};
  }

  bool IsWelcomeToAll() const { return std::ranges::count(is_welcome_, false) == 0; }
  bool IsDone() const { return IsWelcomeToAll() && links_.from.size() == peers_.from.size(); }

  // Does what can be done now, else waits.
  Result<void> Step() {
    for (std::size_t i = 0; i < links_.to.size(); ++i) FFR_TRY(PollWelcome(i));
    for (auto& candidate : candidates_) FFR_TRY(PollCandidate(candidate));
    std::erase(candidates_, nullptr);
    if (auto accepted = FFR_TRY(listener_.Accept())) {
      if (candidates_.size() == candidates_max()) candidates_.erase(candidates_.begin());
      candidates_.push_back(std::move(accepted));
      return {};
    }
    if (IsDone()) return {};

    // Not for those in links_.from: what they say next is not for us but for the operations.
    std::vector<Endpoint*> waited;
    for (const Link& link : links_.to) waited.push_back(link.endpoint.get());
    for (const auto& candidate : candidates_) waited.push_back(candidate.get());
    if (FFR_TRY(net::WaitReady(waited, deadline_, listener_.fd()))) return {};
    return OfRank(Missing(),
                  {ErrorCode::kDeadlineExceeded,
                   IsWelcomeToAll() ? "did not connect in time" : "did not answer in time"});
  }

  // The first that has not answered, or has not come. Requires !IsDone().
  std::uint32_t Missing() const {
    const auto unanswered = std::ranges::find(is_welcome_, false);
    if (unanswered != is_welcome_.end())
      return links_.to[static_cast<std::size_t>(unanswered - is_welcome_.begin())].rank;
    return *std::ranges::find_if(peers_.from, [&](std::uint32_t rank) { return !HasCome(rank); });
  }
  bool HasCome(std::uint32_t rank) const {
    return std::ranges::find(links_.from, rank, &Link::rank) != links_.from.end();
  }
  // Connections that have not said HELLO yet: the oldest goes when there are more.
  std::size_t candidates_max() const { return peers_.from.size() + 16; }

  Result<void> PollWelcome(std::size_t index) {
    const Link& link = links_.to[index];
    auto event = link.endpoint->Poll();
    if (!event) return OfRank(link.rank, std::move(event).error());
    if (event.value() == Endpoint::Event::kNone) return {};
    if (event.value() == Endpoint::Event::kClosed)
      return OfRank(link.rank, {ErrorCode::kUnavailable, "closed the connection"});
    if (link.endpoint->header().type == FrameType::kError) return LastWord(link);
    if (link.endpoint->header().type != net::ReplyTo(FrameType::kHello) || is_welcome_[index])
      return OfRank(link.rank, {ErrorCode::kCorruption, "sent a frame that nobody asked for"});
    is_welcome_[index] = true;
    return {};
  }

  // Leaves null if the candidate is gone or has become one of our links.
  Result<void> PollCandidate(std::unique_ptr<Endpoint>& candidate) {
    const auto event = candidate->Poll();
    if (event && event.value() == Endpoint::Event::kNone) return {};
    if (const auto theirs = HelloOf(*candidate, event)) {
      if (const auto refused = Refusal(*theirs)) {
        SendLastWord(*candidate, *refused);
        (void)candidate->Poll();
      } else {
        candidate->SetLimits({4096, static_cast<std::uint32_t>(hello_.chunk_size_bytes)});
        FFR_TRY(candidate->Send({.type = net::ReplyTo(FrameType::kHello)}, {}, {}));
        // It says nothing before it has this reply, so this can only send.
        const auto sent = candidate->Poll();
        if (sent && sent.value() == Endpoint::Event::kNone)
          links_.from.push_back({theirs->rank, std::move(candidate)});
      }
    }
    candidate.reset();
    return {};
  }

  static std::optional<GroupHello> HelloOf(const Endpoint& candidate,
                                           const Result<Endpoint::Event>& event) {
    if (!event || event.value() != Endpoint::Event::kFrame ||
        candidate.header().type != FrameType::kHello)
      return std::nullopt;
    const auto hello = GroupHello::Decode(candidate.body());
    return hello ? std::optional(hello.value()) : std::nullopt;
  }

  // Why this HELLO is not that of a rank that we wait for, if it is not.
  std::optional<Error> Refusal(const GroupHello& theirs) {
    const std::string who = "rank " + std::to_string(hello_.rank);
    if (!SecretsEqual(theirs, hello_)) {
      // Not fatal: a stranger must not be able to stop the group from forming. Said at the end.
      refused_ = Error{ErrorCode::kDenied,
                       who + " was reached at " + listener_.address().ToString() +
                           " with a secret that is not the group's; all ranks must pass the same"};
      return Error{ErrorCode::kDenied, who + " has another secret than this group's"};
    }
    if (theirs.world_size == hello_.world_size &&
        theirs.chunk_size_bytes == hello_.chunk_size_bytes && theirs.wire == hello_.wire &&
        std::ranges::binary_search(peers_.from, theirs.rank) && !HasCome(theirs.rank))
      return std::nullopt;
    const auto describe = [](const GroupHello& hello) {
      return "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size) +
             " with chunks of " + std::to_string(hello.chunk_size_bytes) + " bytes" +
             (hello.wire == WireType::kBf16 ? " that sends bf16" : "");
    };
    refused_ = Error{ErrorCode::kInvalidArgument,
                     describe(theirs) + " connected to " + describe(hello_) +
                         ": addresses in rank order, world size, chunk size and wire type must"
                         " be the same on all ranks, and each rank may join once"};
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
    for (auto accepted = listener_.Accept(); accepted && accepted.value();
         accepted = listener_.Accept())
      candidates_.push_back(std::move(accepted).value());
    for (auto& candidate : candidates_) {
      const auto theirs = HelloOf(*candidate, candidate->Poll());
      if (candidate->fd() < 0) continue;
      const bool is_stranger = theirs && !SecretsEqual(*theirs, hello_);
      SendLastWord(*candidate, is_stranger ? *Refusal(*theirs) : error);
      (void)candidate->Poll();
    }
  }

  const GroupHello& hello_;
  const Peers peers_;
  net::TcpListener& listener_;
  const net::Deadline deadline_;
  Links links_;
  std::vector<bool> is_welcome_;  // For each of links_.to: it has taken us.
  std::vector<std::unique_ptr<Endpoint>> candidates_;
  std::optional<Error> refused_;  // The last one turned away, if nobody better comes.
};

}  // namespace

Result<Links> JoinGroup(const GroupHello& hello, std::span<const std::string> addresses,
                        net::TcpListener& listener, net::Deadline deadline) {
  return Handshake(hello, listener, deadline).Run(addresses);
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
