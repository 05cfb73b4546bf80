#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/event_log.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/daemon_connection.h"

namespace ffrecord::net {

// Asks over a channel for room for an extent, and says why it is uploaded, if the daemon takes
// that. Marks what the channel sends from now on. Returns the request.
Result<std::uint64_t> SendPutBegin(Channel& channel, PutBegin begin, TrafficClass traffic);

// Brings the pieces of an open extent to a daemon, in their order: as payloads, or, if the
// connection has memory for uploads, through that memory, which the daemon reads.
//
// While pacing is on, pieces wait for their turn as checkpoint traffic, payloads in parts.
//
// Thread-bound. Borrows the channel, which it breaks if it ends with pieces under way. Fails as
// Channel does.
class ExtentSender {
 public:
  ExtentSender(Connection& connection, const ExtentId& id, Deadline deadline)
      : connection_(connection), id_(id), deadline_(deadline), held_until_(HalfWayTo(deadline)) {}
  ExtentSender(const ExtentSender&) = delete;
  ExtentSender& operator=(const ExtentSender&) = delete;
  ~ExtentSender();

  // Where the next piece may be put, so that it need not be copied there; as large as a piece may
  // be. Its bytes are the caller's until Send(). Fails also with kIo (ENOMEM).
  Result<std::span<std::byte>> Room();

  // Sends the next piece, from that room or borrowed from anywhere for the call. Requires that
  // Room() was called for it.
  Result<void> Send(std::span<const std::byte> piece);

  // Waits until the daemon has taken all pieces.
  Result<void> Finish();

 private:
  bool is_pulled() const noexcept { return connection_.upload_slab_id() != 0; }
  static Deadline HalfWayTo(Deadline deadline);
  Result<void> SendPaced(std::span<const std::byte> piece);
  Result<void> SendPayload(std::span<const std::byte> piece, Clock::duration held);
  Result<void> SendPulled(std::span<const std::byte> piece);
  void Profile(const ProfiledSpan& span, std::uint64_t size_bytes, Clock::duration held);
  Result<void> AwaitOldest();

  Connection& connection_;
  const ExtentId id_;
  const Deadline deadline_;
  const Deadline held_until_;       // Pacing takes no more of the time than half.
  PooledBuffer buffer_;             // The room, if pieces go as payloads.
  std::uint32_t piece_number_ = 0;  // Number of the next piece.
  std::uint64_t sent_bytes_ = 0;
  std::deque<std::uint64_t> under_way_;  // Requests to take pieces, the oldest first.
  ProfiledName name_;                    // The daemon's.
};

}  // namespace ffrecord::net
