#include "client/collective/handshake.h"

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

// Connections that have not said HELLO yet: the oldest goes when there are more.
constexpr std::size_t kCandidatesMax = 16;

bool SecretsEqual(const RingHello& a, const RingHello& b) {
  // In constant time: how much of it was guessed right must not show.
  std::byte difference{0};
  for (std::size_t i = 0; i < a.secret.size(); ++i) difference |= a.secret[i] ^ b.secret[i];
  return difference == std::byte{0};
}

class Handshake {
 public:
  Handshake(const Ring& ring, const RingHello& hello, net::TcpListener& listener,
            net::Deadline deadline)
      : ring_(ring), hello_(hello), listener_(listener), deadline_(deadline) {}

  Result<Neighbours> Run(const std::string& next_address) {
    if (auto joined = Join(next_address); !joined) {
      Error error = std::move(joined).error();
      // What was wrong with those who came says more than that the right one did not.
      if (refused_ && error.code != ErrorCode::kDenied)
        error = {refused_->code, refused_->message + "; " + error.message};
      TurnAwayAll(error);
      return error;
    }
    return std::move(neighbours_);
  }

 private:
  Result<void> Join(const std::string& next_address) {
    const auto address = FFR_TRY(net::Address::Parse(next_address, 0));
    auto connected = net::ConnectTcp(address, deadline_);
    if (!connected) return OfRank(ring_.next(), std::move(connected).error());
    neighbours_.next = std::move(connected).value();
    neighbours_.next->SetLimits({4096, 0});
    FFR_TRY(neighbours_.next->Send({.type = FrameType::kHello}, hello_.Encode(), {}));
    while (!is_welcome_ || !neighbours_.previous) FFR_TRY(Step());
    return {};
  }

  // Does what can be done now, else waits.
  Result<void> Step() {
    FFR_TRY(PollNext());
    for (auto& candidate : candidates_) FFR_TRY(PollCandidate(candidate));
    std::erase(candidates_, nullptr);
    if (auto accepted = FFR_TRY(listener_.Accept())) {
      if (candidates_.size() == kCandidatesMax) candidates_.erase(candidates_.begin());
      candidates_.push_back(std::move(accepted));
      return {};
    }
    if (is_welcome_ && neighbours_.previous) return {};

    // Not for the previous rank: what it says next is not for us but for the operations.
    std::vector<Endpoint*> waited{neighbours_.next.get()};
    for (const auto& candidate : candidates_) waited.push_back(candidate.get());
    if (FFR_TRY(net::WaitReady(waited, deadline_, listener_.fd()))) return {};
    return OfRank(is_welcome_ ? ring_.previous() : ring_.next(),
                  {ErrorCode::kDeadlineExceeded,
                   is_welcome_ ? "did not connect in time" : "did not answer in time"});
  }

  Result<void> PollNext() {
    for (;;) {
      auto event = neighbours_.next->Poll();
      if (!event) return OfRank(ring_.next(), std::move(event).error());
      if (event.value() == Endpoint::Event::kNone) return {};
      if (event.value() == Endpoint::Event::kClosed)
        return OfRank(ring_.next(), {ErrorCode::kUnavailable, "closed the connection"});
      if (neighbours_.next->header().type == FrameType::kError)
        return LastWord(ring_.next(), *neighbours_.next);
      if (neighbours_.next->header().type != net::ReplyTo(FrameType::kHello) || is_welcome_)
        return OfRank(ring_.next(), {ErrorCode::kCorruption, "sent a frame that nobody asked for"});
      is_welcome_ = true;
    }
  }

  // Leaves null if the candidate is gone or has become the previous rank.
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
          neighbours_.previous = std::move(candidate);
      }
    }
    candidate.reset();
    return {};
  }

  static std::optional<RingHello> HelloOf(const Endpoint& candidate,
                                          const Result<Endpoint::Event>& event) {
    if (!event || event.value() != Endpoint::Event::kFrame ||
        candidate.header().type != FrameType::kHello)
      return std::nullopt;
    const auto hello = RingHello::Decode(candidate.body());
    return hello ? std::optional(hello.value()) : std::nullopt;
  }

  // Why this HELLO is not that of our previous rank, if it is not.
  std::optional<Error> Refusal(const RingHello& theirs) {
    const std::string who = "rank " + std::to_string(ring_.rank);
    if (!SecretsEqual(theirs, hello_)) {
      // Not fatal: a stranger must not be able to stop the group from forming. Said at the end.
      refused_ = Error{ErrorCode::kDenied,
                       who + " was reached at " + listener_.address().ToString() +
                           " with a secret that is not the group's; all ranks must pass the same"};
      return Error{ErrorCode::kDenied, who + " has another secret than this group's"};
    }
    if (theirs.world_size == hello_.world_size && theirs.rank == ring_.previous() &&
        theirs.chunk_size_bytes == hello_.chunk_size_bytes && !neighbours_.previous)
      return std::nullopt;
    const auto describe = [](const RingHello& hello) {
      return "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size) +
             " with chunks of " + std::to_string(hello.chunk_size_bytes) + " bytes";
    };
    refused_ = Error{ErrorCode::kInvalidArgument,
                     describe(theirs) + " connected to " + describe(hello_) +
                         ": addresses in rank order, world size and chunk size must be the same"
                         " on all ranks, and each rank may join once"};
    return refused_;
  }

  void TurnAwayAll(const Error& error) {
    for (Endpoint* neighbour : {neighbours_.next.get(), neighbours_.previous.get()}) {
      if (neighbour == nullptr || neighbour->fd() < 0) continue;
      SendLastWord(*neighbour, error);
      (void)neighbour->Poll();
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

  const Ring ring_;
  const RingHello& hello_;
  net::TcpListener& listener_;
  const net::Deadline deadline_;
  Neighbours neighbours_;
  bool is_welcome_ = false;  // The next rank has taken us.
  std::vector<std::unique_ptr<Endpoint>> candidates_;
  std::optional<Error> refused_;  // The last one turned away, if nobody better comes.
};

}  // namespace

Result<Neighbours> JoinRing(const Ring& ring, const RingHello& hello,
                            const std::string& next_address, net::TcpListener& listener,
                            net::Deadline deadline) {
  return Handshake(ring, hello, listener, deadline).Run(next_address);
}

Error OfRank(std::uint32_t rank, Error error) {
  error.message = "rank " + std::to_string(rank) + ": " + error.message;
  return error;
}

Error LastWord(std::uint32_t rank, const Endpoint& neighbour) {
  auto reply = net::ErrorReply::Decode(neighbour.body());
  if (!reply) return OfRank(rank, std::move(reply).error());
  return {reply.value().code, reply.value().message,
          static_cast<int>(reply.value().system_errno & 0x7FFFFFFF)};
}

void SendLastWord(Endpoint& neighbour, const Error& error) {
  (void)neighbour.Send({.type = FrameType::kError}, net::FromError(error).Encode(), {});
}

}  // namespace ffrecord::client
