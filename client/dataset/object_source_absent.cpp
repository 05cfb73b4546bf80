#include <ffrecord/client/features.h>

#include "client/dataset/object_source.h"

namespace ffrecord {

std::string WhyNoObjectStores() {
  return "this build has no object stores: install libcurl4-openssl-dev and libssl-dev, then "
         "configure with -Dobject_store=enabled";
}

}  // namespace ffrecord

namespace ffrecord::client {
namespace {

Error NoObjectStores(const std::string& address) {
  return {ErrorCode::kInvalidArgument, address + ": " + WhyNoObjectStores()};
}

}  // namespace

Result<std::shared_ptr<const RangeReader>> OpenObjects(std::span<const std::string> addresses,
                                                       std::uint32_t /*reads_at_once*/,
                                                       const SessionOptions& /*options*/,
                                                       const CacheOptions& /*cache*/) {
  return NoObjectStores(addresses.front());
}

Result<OriginObjects> OpenOriginObjects(std::span<const std::string> addresses,
                                        const SessionOptions& /*options*/) {
  return NoObjectStores(addresses.front());
}

}  // namespace ffrecord::client
