#include "client/dataset/change_tries.h"

#include <algorithm>

#include "libffrecord/net/protocol/begun_request.h"

namespace ffrecord::client {

std::uint32_t ChangeTries::PatienceFor(const net::Connection& connection, net::Deadline until) {
  if ((connection.hello().capabilities & net::kCapabilityPatience) == 0) return 0;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - net::Clock::now());
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, UINT32_MAX));
}

void ChangeTries::Note(const net::Connection& connection, const Error& error) {
  const bool was_answered = connection.reusable();
  if (connection.retry_after()) return;  // It has not begun.
  const bool is_begun =
      error.code == ErrorCode::kUnavailable && error.system_errno == net::kBegunErrno;
  if (!was_answered || is_begun || error.code == ErrorCode::kDeadlineExceeded) may_be_done_ = true;
  if (was_answered && error.code == ErrorCode::kDeadlineExceeded) was_told_ = true;
}

Error ChangeTries::Explain(Error last) const {
  const bool says_so = was_told_ && last.code == ErrorCode::kDeadlineExceeded;
  if (may_be_done_ && !says_so)
    last.message += "; a try that got no answer may have taken effect, or may still take effect";
  return last;
}

}  // namespace ffrecord::client
