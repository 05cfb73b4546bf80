#pragma once

namespace ffrecord::net {

// ErrorReply::system_errno with kUnavailable, if the request was begun and may still take effect:
// EINPROGRESS on Linux. A change that is repeated after it may find that it is done.
inline constexpr int kBegunErrno = 115;

}  // namespace ffrecord::net
