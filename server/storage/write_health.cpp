#include "server/storage/write_health.h"

#include <cerrno>

namespace ffrecord::server {

std::optional<WriteHealth::State> WriteHealth::StateOf(const Error& error) {
  if (error.code != ErrorCode::kIo) return std::nullopt;
  switch (error.system_errno) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return State::kFull;
    case EIO:
    case EROFS:
    case ENXIO:
    case ENODEV:
    case ESTALE:
      return State::kFailed;
    default:
      return std::nullopt;
  }
}

void WriteHealth::Note(const Error& error) {
  const auto state = StateOf(error);
  const std::lock_guard lock(mutex_);
  if (!state || report_.state == State::kFailed) return;
  report_ = {*state, error.message};
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
               "the disk is read-only for the daemon since a write failed (" + report_.why +
                   "); look at the disk, then start the daemon again",
               system_errno_};
}

WriteHealth::Report WriteHealth::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace ffrecord::server
