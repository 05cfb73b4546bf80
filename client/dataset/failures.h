#pragma once

#include <cerrno>

#include <ffrecord/result.h>

namespace ffrecord::client {

// Whether a failure of one daemon, or of one place of a checkpoint, says anything about the others.

// It does not answer, or not in time: the question is open.
inline bool IsAway(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded;
}

// It cannot read what it has: another one may.
inline bool IsIll(const Error& error) {
  return error.code == ErrorCode::kIo || error.code == ErrorCode::kCorruption;
}

// A quota is that of the whole cluster: each of its nodes says the same. A disk that is full, for
// whatever reason, says ENOSPC.
inline bool IsOfQuota(const Error& error) {
  return error.code == ErrorCode::kIo && error.system_errno == EDQUOT;
}

}  // namespace ffrecord::client
