#pragma once

#include <string>

#include "libffrecord/net/protocol/messages.h"
#include "server/service/core/connection.h"

namespace ffrecord::server {

// What the parts of a connection answer with.

// Ends the connection: the client does not speak the protocol.
inline Error OutOfPlace(const char* what) {
  return Error{ErrorCode::kCorruption, std::string("protocol fault: ") + what};
}

inline Reply ErrorReplyOf(const Error& error) {
  return {net::FrameType::kError, net::FromError(error).Encode(), {}, false};
}

inline Reply EmptyReply(net::FrameType request) { return {net::ReplyTo(request), {}, {}, false}; }

}  // namespace ffrecord::server
