#include "server/cluster/unanswered_commits.h"

namespace ffrecord::server::cluster {

Error UnansweredCommits::Explain(Error refusal) const {
  const bool is_late =
      refusal.code == ErrorCode::kUnavailable || refusal.code == ErrorCode::kDeadlineExceeded;
  if (!any_) {
    if (is_late) refusal.code = ErrorCode::kUnavailable;
    return refusal;
  }
  // Clients ask other nodes after these codes, and have to know what they ask them about.
  if (is_late || refusal.code == ErrorCode::kDenied) refusal.code = ErrorCode::kDeadlineExceeded;
  refusal.message +=
      "; a try that got no answer may have taken effect, or may still take effect: look before you "
      "repeat it";
  return refusal;
}

}  // namespace ffrecord::server::cluster
