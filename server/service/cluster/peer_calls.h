#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/cluster/machine.h"
#include "server/service/access/tokens.h"

namespace ffrecord::server {

// How this node makes itself known to the others: with a token that it signs itself, where tokens
// are wanted, and with its own certificate over TLS. Thread-safe.
class PeerDialer {
 public:
  // `keys`: null where everybody may do everything; outlives the dialer. `tls`: the daemon's own
  // files; without a certificate there is no TLS.
  PeerDialer(std::string node, const TokenKeys* keys, net::TlsFiles tls)
      : node_(std::move(node)), keys_(keys), tls_(std::move(tls)) {}

  // Fails as Channel::Connect, and with kInvalidArgument if `address` is none.
  Result<std::unique_ptr<net::Channel>> Dial(const std::string& address,
                                             net::Deadline deadline) const;

 private:
  const std::string node_;
  const TokenKeys* const keys_;
  const net::TlsFiles tls_;
};

// A node's questions to another, over a channel to it. Each fails as Channel does; the channel may
// be used again while it says so.

Result<cluster::Holdings> CallPeer(net::Channel& peer, const cluster::AskHoldings& question,
                                   net::Deadline deadline);
Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskHeard& question,
                                net::Deadline deadline);
Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskBuried& question,
                                net::Deadline deadline);
Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskFilled& question,
                                net::Deadline deadline);

Result<cluster::Known> CallPeer(net::Channel& peer, const cluster::AskKnown& question,
                                net::Deadline deadline);

// Fails with kDenied if the peer is not that node of that cluster: an address may be another's by
// now, and its word would be taken for the node's. With kUnavailable if it does not know yet what
// it is of. `known_map_version`: of the newest slot map here, which then need not be sent.
Result<void> CheckIsNode(net::Channel& peer, const std::string& node, const net::ClusterId& cluster,
                         std::uint32_t known_map_version, net::Deadline deadline);

// The bytes of an extent, in order, piece by piece to `take`; each piece has to come within
// `piece_patience`. Calls `pause`, if given, with the size of each piece before it is asked for; it
// may wait. Fails with kNotFound if the peer does not have it, with kIo if its disk fails, and as
// `take` and `pause`. The bytes are not verified.
using TakePiece = std::function<Result<void>(std::span<const std::byte>)>;
using PauseBefore = std::function<Result<void>(std::uint64_t size_bytes)>;
Result<void> ReadExtent(net::Channel& peer, const ManifestExtent& extent, net::Deadline deadline,
                        std::chrono::milliseconds piece_patience, const TakePiece& take,
                        const PauseBefore& pause = {});

// Tells a peer that the extent that was read over this connection last has other bytes than the
// right ones: it verifies a member of a stripe, and what is damaged it no longer counts as held.
// Does not wait for that.
void DoubtExtent(net::Channel& peer, net::Deadline deadline);

// Bytes of an extent that the peer holds, from an offset on. Fails as ReadExtent. The bytes are not
// verified.
Result<void> ReadExtentPart(net::Channel& peer, const ExtentId& id, std::uint64_t offset_bytes,
                            std::span<std::byte> destination, net::Deadline deadline);

// Has the peer store these bytes as that extent, sealed and durable.
Result<void> StoreExtent(net::Channel& peer, const ManifestExtent& extent,
                         std::span<const std::byte> bytes, net::Deadline deadline);

}  // namespace ffrecord::server
