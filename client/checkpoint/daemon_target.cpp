#include "client/checkpoint/target.h"

namespace ffrecord::client {

Result<std::unique_ptr<CheckpointTarget>> OpenDaemonTarget(std::string_view address,
                                                           const SessionOptions& /*options*/) {
  return Error{ErrorCode::kInvalidArgument,
               "checkpoint: " + std::string(address) + ": give a folder instead"};
}

}  // namespace ffrecord::client
