#include <string>

#include "client/checkpoint/target.h"

namespace ffrecord::client {

Result<std::unique_ptr<CheckpointTarget>> OpenObjectTarget(std::string_view address,
                                                           const SessionOptions& /*options*/) {
  return Error{ErrorCode::kInvalidArgument,
               "checkpoint: " + std::string(address) +
                   ": this build knows no object stores; build it with libcurl and OpenSSL 3"};
}

}  // namespace ffrecord::client
