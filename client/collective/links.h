#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/collective/group_messages.h"
#include "client/collective/machines.h"
#include "client/collective/shared_ring.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/slab.h"

namespace ffrecord::client {

struct Link {
  Link() = default;
  Link(Link&&) = default;
  // The old connection ends before the memory that its peer writes into.
  Link& operator=(Link&& other) noexcept;

  std::uint32_t rank = 0;    // The other end.
  std::uint16_t stream = 0;  // Which of the connections to or from it this is.
  // Over RDMA, one of the two, by the direction of the data: memory that the other end writes
  // pieces into, and where it has such memory for ours.
  net::Slab ring_here;
  std::optional<GroupRing> ring_there;
  std::unique_ptr<net::Endpoint> endpoint;
  bool has_frame = false;  // That has come with our reply under way, and was not looked at.
  // Where both ranks share memory data goes through it, and the endpoint, a local socket, carries
  // but words about waiting and the last word. One of the two, by the direction of the data.
  std::unique_ptr<RingSender> ring_out;
  std::unique_ptr<RingReceiver> ring_in;
};

// The connections of a rank, in the order of ranks, and of streams. Data flows one way on each, so
// two ranks that exchange have two, or as many times the streams of the group; those that share
// memory have one stream.
struct Links {
  std::vector<Link> to;
  std::vector<Link> from;
};

// Where a rank is met by others, and what those of its machine ring to wake it.
struct Meeting {
  net::TcpListener& listener;
  net::LocalListener* local_listener = nullptr;  // Null: this rank shares no memory.
  int wake_fd = -1;                              // An eventfd.
  // Rails: stream i takes number i modulo their count. Null: TCP.
  std::deque<net::RdmaLinks>* rails = nullptr;
};

// Connects to all ranks that this one sends to, and takes the connections of those that send to it,
// all proven by the secret in `hello`. Strangers who connect are turned away. Ranks that share a
// machine by `machines` share memory, or fail.
//
// Fails with kDenied if a peer has another secret, kInvalidArgument if it belongs to another group
// size or chunk size, kUnavailable or kDeadlineExceeded; names the rank. Requires as many addresses
// as ranks.
Result<Links> JoinGroup(const GroupHello& hello, std::span<const std::string> addresses,
                        const Machines& machines, const Meeting& meeting, net::Deadline deadline);

// The rings of a group.
RingShape RingsOf(const GroupHello& hello, const Machines& machines);

// Whether both know the group's secret, in constant time: how much of it was guessed right must not
// show.
bool SecretsEqual(const GroupHello& a, const GroupHello& b);

// `error` with the rank that it is about before its message.
Error OfRank(std::uint32_t rank, Error error);
// The last word of a peer, as our own error. It names a rank itself, unless it is malformed.
Error LastWord(const Link& link);
// Queues `error` as our last word; whether it arrives is not our concern.
void SendLastWord(net::Endpoint& peer, const Error& error);

}  // namespace ffrecord::client
