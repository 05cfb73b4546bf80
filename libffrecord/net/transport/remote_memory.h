#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/protocol/rdma_messages.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// The interface of an endpoint whose transport lets one end write into memory of the other, and
// read it, without work for that other: Endpoint::remote_memory().
//
// Thread-bound with its endpoint, and fails as it: any error but kInvalidArgument, or those that a
// function names, closes the endpoint, and a closed one is kUnavailable.
class RemoteMemory {
 public:
  enum class Reach : std::uint8_t { kWrite, kRead };
  // Lets the peer write into, or read, `bytes` until the endpoint is closed: the peer reaches
  // nothing there any more when Close() returns. The bytes are borrowed until then. Their pages may
  // be replaced meanwhile, by mremap(2) or the like, which takes them out of the peer's reach. The
  // key is a bearer capability: give it to the peer only. Fails with kIo, naming the remedy, if the
  // bytes cannot be locked in memory, which changes nothing; with kInvalidArgument on the end that
  // accepted the connection.
  virtual Result<RemoteRegion> Expose(std::span<std::byte> bytes, Reach reach) = 0;

  // Mapped bytes are read from their file: if it was cut, that is an error (kIo), where touching
  // them would be a signal.
  struct PlacedPiece {
    Endpoint::MappedPiece source;
    RemoteRegion place;  // Where they go, in memory that the peer has exposed.
  };
  // Endpoint::Send() of a frame without payload: once it has arrived, the pieces lie in their
  // places. Until they leave they are borrowed, and counted, as payload. A peer that has not
  // exposed such a place breaks the connection (kCorruption).
  virtual Result<void> SendPlaced(FrameHeader header, std::span<const std::byte> body,
                                  std::span<const PlacedPiece> pieces) = 0;

  // A staging buffer for FetchPayload(). The caller may keep it as long as it likes; it is locked
  // in memory until the endpoint is closed. To be called once. Fails as Expose.
  virtual Result<PooledBuffer> MakeStaging(std::size_t size_bytes) = 0;
  // Reads what the peer has exposed at `source` as the payload of the current frame, which has none
  // of its own: kPayload then says that it is in `place`, a part of the staging buffer. Memory that
  // the peer has not exposed to be read breaks the connection (kCorruption).
  virtual Result<void> FetchPayload(const RemoteRegion& source, std::span<std::byte> place) = 0;

 protected:
  ~RemoteMemory() = default;
};

}  // namespace ffrecord::net
