#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/service/core/connection.h"

namespace ffrecord::server {

// What the files that implement Connection share.

using net::FrameHeader;
using net::FrameType;
using Kind = JobPool::Kind;

// Ends the connection: the client does not speak the protocol.
inline Error OutOfPlace(const char* what) {
  return Error{ErrorCode::kCorruption, std::string("protocol fault: ") + what};
}

inline Reply Answer(FrameType request, std::vector<std::byte> body = {},
                    std::vector<std::byte> payload = {}) {
  return {net::ReplyTo(request), std::move(body), std::move(payload), false};
}

}  // namespace ffrecord::server
