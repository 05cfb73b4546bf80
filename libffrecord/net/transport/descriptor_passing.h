#pragma once

#include <cstddef>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::net {

// The interface of an endpoint whose peer is on the same machine: Endpoint::descriptors().
// Thread-bound with its endpoint, and fails as it.
class DescriptorPassing {
 public:
  // Endpoint::Send() without a payload, with a duplicate of `descriptor`.
  virtual Result<void> SendDescriptor(FrameHeader header, std::span<const std::byte> body,
                                      int descriptor) = 0;
  // The oldest descriptor that has arrived and was not taken; it is there when its frame is. None:
  // the peer sent none. A peer that sends more than SetLimits() allows is cut off (kCorruption).
  virtual ForeignFd TakeDescriptor() noexcept = 0;

 protected:
  ~DescriptorPassing() = default;
};

}  // namespace ffrecord::net
