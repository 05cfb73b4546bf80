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
  Reply reply;
  reply.type = net::ReplyTo(request);
  reply.body = std::move(body);
  reply.payload = std::move(payload);
  return reply;
}

}  // namespace ffrecord::server
