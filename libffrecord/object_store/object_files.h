#pragma once

#include <memory>
#include <vector>

#include "libffrecord/object_store/s3_bucket.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::object_store {

// Objects of one bucket as files: each range is one request, and a few of them travel at once. A
// forked child may go on using it.
std::unique_ptr<RangeReader> OpenObjectFiles(std::shared_ptr<const S3Bucket> bucket,
                                             std::vector<S3Bucket::Object> objects);

}  // namespace ffrecord::object_store
