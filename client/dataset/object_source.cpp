#include "client/dataset/object_source.h"

#include <utility>

#include "libffrecord/object_store/find_objects.h"
#include "libffrecord/object_store/object_files.h"

namespace ffrecord::client {

Result<std::shared_ptr<const RangeReader>> OpenObjects(std::span<const std::string> addresses,
                                                       std::uint32_t requests_at_once,
                                                       const SessionOptions& options) {
  auto objects = FFR_TRY(object_store::FindObjects(addresses, options.timeout));
  return std::shared_ptr<const RangeReader>(
      object_store::OpenObjectFiles(std::move(objects), requests_at_once));
}

}  // namespace ffrecord::client
