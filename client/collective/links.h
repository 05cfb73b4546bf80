#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/collective/messages.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

struct Link {
  std::uint32_t rank = 0;  // The other end.
  std::unique_ptr<net::Endpoint> endpoint;
};

// The connections of a rank, in the order of ranks. Data flows one way on each, so two ranks that
// exchange have two.
struct Links {
  std::vector<Link> to;
  std::vector<Link> from;
};

// Connects to all ranks that this one sends to, and takes the connections of those that send to it
// at `listener`, all proven by the secret in `hello`. Strangers who connect are turned away.
//
// Fails with kDenied if a peer has another secret, kInvalidArgument if it belongs to another group
// size or chunk size, kUnavailable or kDeadlineExceeded; names the rank. Requires as many addresses
// as ranks.
Result<Links> JoinGroup(const GroupHello& hello, std::span<const std::string> addresses,
                        net::TcpListener& listener, net::Deadline deadline);

// `error` with the rank that it is about before its message.
Error OfRank(std::uint32_t rank, Error error);
// The last word of a peer, as our own error. It names a rank itself, unless it is malformed.
Error LastWord(const Link& link);
// Queues `error` as our last word; whether it arrives is not our concern.
void SendLastWord(net::Endpoint& peer, const Error& error);

}  // namespace ffrecord::client
