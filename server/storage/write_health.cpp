#include "server/storage/write_health.h"

#include <cerrno>

namespace ffrecord::server {

void WriteHealth::Note(const Error& error) {
  if (error.code != ErrorCode::kIo) return;
  State state = State::kGood;
  switch (error.system_errno) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      state = State::kFull;
      break;
    case EIO:
    case EROFS:
    case ENXIO:
    case ENODEV:
    case ESTALE:
      state = State::kFailed;
      break;
    default:
      return;
  }
  const std::lock_guard lock(mutex_);
  if (report_.state == State::kFailed) return;
  report_ = {state, error.message};
  system_errno_ = error.system_errno;
}

void WriteHealth::NoteSuccess() {
  const std::lock_guard lock(mutex_);
  if (report_.state == State::kFull) report_ = {};
}

Result<void> WriteHealth::CheckWritable() const {
  const std::lock_guard lock(mutex_);
  if (report_.state != State::kFailed) return {};
  return Error{ErrorCode::kIo,
               "the daemon is read-only since a write failed (" + report_.why +
                   "); look at its disk, then start it again",
               system_errno_};
}

WriteHealth::Report WriteHealth::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace ffrecord::server
