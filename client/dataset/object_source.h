#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// Whether a location is an object's: s3://, http:// or https://.
bool IsObjectAddress(std::string_view location) noexcept;

// The objects at `addresses`, which object_store/find_objects.h explains. `reads_at_once` is for
// one call. Fails with kInvalidArgument if this build has no object stores, and as FindObjects.
Result<std::shared_ptr<const RangeReader>> OpenObjects(std::span<const std::string> addresses,
                                                       std::uint32_t reads_at_once,
                                                       const SessionOptions& options,
                                                       const CacheOptions& cache);

// Objects whose bytes the nodes of a cluster are to fetch, each with its own address and the
// version of this moment, as which they are read. Fails as OpenObjects().
struct OriginObjects {
  std::shared_ptr<const RangeReader> files;
  std::vector<FileOrigin> origins;
};
Result<OriginObjects> OpenOriginObjects(std::span<const std::string> addresses,
                                        const SessionOptions& options);

}  // namespace ffrecord::client
