#include "server/service/origin/origin_reader.h"

namespace ffrecord::server {

class OriginStores {};

std::shared_ptr<OriginStores> MakeOriginStores(std::chrono::milliseconds /*timeout*/) {
  return std::make_shared<OriginStores>();
}

Result<void> ReadOriginObject(OriginStores& /*stores*/, const OriginFile& file,
                              std::uint64_t /*offset_bytes*/, std::uint64_t /*size_bytes*/,
                              const OriginReader::TakePiece& /*take*/) {
  return Error{ErrorCode::kInvalidArgument,
               file.origin.address +
                   ": this daemon was built without object stores; build it with "
                   "libcurl and OpenSSL 3"};
}

}  // namespace ffrecord::server
