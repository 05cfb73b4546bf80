#include "client/dataset/origin_copy.h"

namespace ffrecord::client {

Result<bool> PutOriginObject(const std::string& address, const RangeReader& /*file*/,
                             const SessionOptions& /*options*/, const TellCopied& /*tell*/) {
  return Error{ErrorCode::kInvalidArgument,
               address + ": this build has no object stores; build it with libcurl and OpenSSL 3"};
}

}  // namespace ffrecord::client
