#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libffrecord/object_store/object_store.h"
#include "libffrecord/object_store/s3_bucket.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::object_store {

// One version of one object.
struct StoredObject {
  std::shared_ptr<const ObjectStore> store;
  std::string key;
  ObjectVersion version;

  std::string name() const { return store->Describe(key); }
};

inline constexpr std::uint32_t kObjectRequestsAtOnce = 64;

// Objects as files: each range is one request, and many of them travel at once; range_fetch.h says
// how they fail. For half a second after a range of an object could not be read in time, a single
// range of it fails at once. A forked child may go on using it.
std::unique_ptr<RangeReader> OpenObjectFiles(
    std::vector<StoredObject> objects, std::uint32_t requests_at_once = kObjectRequestsAtOnce);

// Objects of one bucket. Those without an ETag are read whatever their version is.
std::unique_ptr<RangeReader> OpenObjectFiles(std::shared_ptr<const S3Bucket> bucket,
                                             std::vector<S3Bucket::Object> objects);

}  // namespace ffrecord::object_store
