#pragma once

#include <cstdint>
#include <vector>

#include <ffrecord/result.h>

#include "client/runtime/slab_pool.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"

namespace ffrecord::client {

// Of what the daemon takes uploads from: one piece is being filled, one is under way, two are being
// written.
inline constexpr std::uint32_t kUploadPieceBytes = net::PutPull::kSizeBytesMax;
inline constexpr std::uint32_t kUploadPieceCount = 4;

// The number by which the daemon knows `slab` on this connection, over which it writes_slabs(). If
// it has to be told, that is sent without waiting, and `requests` are then to be received. Over
// RDMA the slab stays locked in memory, and within the daemon's reach, as long as the connection
// lives.
//
// Fails with kUnavailable, and breaks the connection, if a connection may know no more slabs; with
// kIo, naming the remedy, if the slab cannot be locked in memory.
Result<std::uint32_t> SlabIdOf(net::Channel& channel, const SharedSlab& slab,
                               std::vector<std::uint64_t>& requests);

// Makes the slab known that the next block would be taken from; for connections over RDMA, which
// so find out early what may not be locked. Fails as SlabIdOf, and breaks the connection.
Result<void> ExposeSlab(net::Channel& channel, net::Deadline deadline);

// Makes known what the daemon takes uploads from, over a connection that pulls() and knows none
// yet. While reusable() after a failure, uploads go over it as payloads.
Result<void> ExposeUploads(net::Channel& channel, net::Deadline deadline);

}  // namespace ffrecord::client
