#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::server {

// Owners of the payloads that an endpoint has been given and may still read. Payloads leave in the
// order in which they were queued. Thread-bound.
class OutgoingPayload {
 public:
  using Owner = std::shared_ptr<const void>;

  // `size_bytes` more of payload were queued, which live in `owner`.
  void Add(Owner owner, std::uint64_t size_bytes) {
    queued_bytes_ += size_bytes;
    owners_.push_back({std::move(owner), queued_bytes_});
  }

  // Drops the owners of bytes that `endpoint` has sent.
  void Release(const net::Endpoint& endpoint) {
    const std::uint64_t sent_bytes = queued_bytes_ - endpoint.payload_bytes_queued();
    while (!owners_.empty() && owners_.front().end_bytes <= sent_bytes) owners_.pop_front();
  }

 private:
  struct Owned {
    Owner owner;
    std::uint64_t end_bytes;  // Counted from the first byte of payload ever queued.
  };
  std::deque<Owned> owners_;
  std::uint64_t queued_bytes_ = 0;
};

}  // namespace ffrecord::server
