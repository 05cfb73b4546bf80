#include "client/dataset/object_source.h"

namespace ffrecord::client {

Result<std::shared_ptr<const RangeReader>> OpenObjects(std::span<const std::string> addresses,
                                                       std::uint32_t /*reads_at_once*/,
                                                       const SessionOptions& /*options*/,
                                                       const CacheOptions& /*cache*/) {
  return Error{
      ErrorCode::kInvalidArgument,
      addresses.front() + ": this build has no object stores; build it with libcurl and OpenSSL 3"};
}

}  // namespace ffrecord::client
