#include <ffrecord/client/features.h>

#include <string>

#include "client/checkpoint/target.h"

namespace ffrecord::client {

Result<std::unique_ptr<CheckpointTarget>> OpenObjectTarget(std::string_view address,
                                                           const SessionOptions& /*options*/) {
  return Error{ErrorCode::kInvalidArgument,
               "checkpoint: " + std::string(address) + ": " + WhyNoObjectStores()};
}

}  // namespace ffrecord::client
