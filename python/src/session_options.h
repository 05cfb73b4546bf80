#pragma once

#include <chrono>
#include <string>

#include <ffrecord/client/dataset.h>

#include "python/src/errors.h"

namespace ffrecord::python {

// How to reach a daemon, from what Python says. Raises ValueError unless 0 < timeout_s <= one day.
inline client::SessionOptions SessionOptionsOf(double timeout_s) {
  constexpr double kTimeoutMaxS = 86'400.0;
  if (!(timeout_s > 0.0 && timeout_s <= kTimeoutMaxS))
    Raise({ErrorCode::kInvalidArgument,
           "timeout_s is " + std::to_string(timeout_s) + "; it must be above 0 and at most 86400"});
  return {.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000.0) + 1)};
}

}  // namespace ffrecord::python
