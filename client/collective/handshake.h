#pragma once

#include <memory>
#include <string>

#include "client/collective/messages.h"
#include "client/collective/ring.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

// The connections of a rank in the ring: data is sent to the next and comes from the previous.
struct Neighbours {
  std::unique_ptr<net::Endpoint> next;
  std::unique_ptr<net::Endpoint> previous;
};

// Connects to the next rank at `next_address` and takes the previous one's connection at
// `listener`, both proven by the secret in `hello`. Strangers who connect are turned away.
//
// Fails with kDenied if a neighbour has another secret, kInvalidArgument if it belongs to another
// group size or chunk size, kUnavailable or kDeadlineExceeded; names the rank.
Result<Neighbours> JoinRing(const Ring& ring, const RingHello& hello,
                            const std::string& next_address, net::TcpListener& listener,
                            net::Deadline deadline);

// `error` with the rank that it is about before its message.
Error OfRank(std::uint32_t rank, Error error);
// The last word of a neighbour, as our own error. It names a rank itself, unless it is malformed.
Error LastWord(std::uint32_t rank, const net::Endpoint& neighbour);
// Queues `error` as our last word; whether it arrives is not our concern.
void SendLastWord(net::Endpoint& neighbour, const Error& error);

}  // namespace ffrecord::client
