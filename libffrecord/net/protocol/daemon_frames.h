#pragma once

#include <cstdint>

#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::net {

// The map version of a single daemon: its map never moves.
inline constexpr std::uint32_t kMapVersion = 1;

// Makes the header of a frame that a daemon sends.
inline FrameHeader MakeHeader(FrameType type, std::uint64_t request_id,
                              std::uint32_t map_version = kMapVersion) {
  FrameHeader header;
  header.type = type;
  header.request_id = request_id;
  header.map_version = map_version;
  return header;
}

}  // namespace ffrecord::net
