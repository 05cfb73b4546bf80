#pragma once

#include <mutex>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/per_process.h"

namespace ffrecord {

// The message of the last failed range, for RangeReader::Trouble: a status is only a code.
// Thread-safe; a forked child begins without one.
class LastFailure {
 public:
  void Note(Error error) {
    Kept& kept = kept_.Get();
    const std::lock_guard lock(kept.mutex);
    kept.error = std::move(error);
  }

  // The message of the last failure if it had this status; else empty.
  std::string Of(ErrorCode status) {
    Kept& kept = kept_.Get();
    const std::lock_guard lock(kept.mutex);
    return kept.error.code == status ? kept.error.message : std::string();
  }

 private:
  struct Kept {
    std::mutex mutex;
    Error error{ErrorCode::kOk, {}};
  };
  PerProcess<Kept> kept_{[] { return new Kept; }};
};

}  // namespace ffrecord
