#include <ffrecord/client/features.h>

#include "client/dataset/origin_copy.h"

namespace ffrecord::client {

Result<bool> PutOriginObject(const std::string& address, const RangeReader& /*file*/,
                             const SessionOptions& /*options*/, const TellCopied& /*tell*/) {
  return Error{ErrorCode::kInvalidArgument, address + ": " + WhyNoObjectStores()};
}

}  // namespace ffrecord::client
