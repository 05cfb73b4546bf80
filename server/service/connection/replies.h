#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/frame.h"
#include "server/service/jobs/job_pool.h"

namespace ffrecord::server {

// Names that the files of this room share.

using net::FrameHeader;
using net::FrameType;
using Kind = JobPool::Kind;

// The answer to a request that succeeded, made on any thread; or how the request goes on.
struct Reply {
  using Work = std::function<Result<Reply>()>;

  net::FrameType type = net::FrameType::kPing;
  std::vector<std::byte> body;
  std::vector<std::byte> payload;
  bool is_silent = false;  // Nothing is sent.
  // There is no answer yet: `next` makes it, in that strand.
  Work next = {};
  JobPool::Strand* next_strand = nullptr;
  // There is no answer yet: this is called, and gives it to its argument once, on any thread.
  std::function<void(std::function<void(Result<Reply>)>)> later = {};
};

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
