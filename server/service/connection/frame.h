#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "libffrecord/net/protocol/frame.h"
#include "server/service/access/tokens.h"

namespace ffrecord::server {

// A frame that a client has sent, without its payload, for the handler of its type. Borrowed until
// the handler returns.
struct Frame {
  const net::FrameHeader& header;
  std::span<const std::byte> body;
  std::optional<Right> right;  // The right that frames of this type need; none: they need none.
};

}  // namespace ffrecord::server
