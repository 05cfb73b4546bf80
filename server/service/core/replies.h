#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/service/core/connection.h"

namespace ffrecord::server {

// Names that the files that implement Connection share.

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

// The answer comes when `begin` calls the function that it is given; `make_answer` makes it from
// the function's argument.
template <class T, class Begin, class MakeAnswer>
Reply Later(Begin begin, MakeAnswer make_answer) {
  Reply reply;
  reply.later = [begin = std::move(begin),
                 make_answer = std::move(make_answer)](std::function<void(Result<Reply>)> tell) {
    begin([tell = std::move(tell), make_answer](Result<T> result) {
      if (!result) return tell(std::move(result).error());
      if constexpr (std::is_void_v<T>)
        tell(make_answer());
      else
        tell(make_answer(std::move(result).value()));
    });
  };
  return reply;
}

}  // namespace ffrecord::server
