#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/object_store/object_files.h"

namespace ffrecord::object_store {

// The objects that addresses stand for, in their order, with their versions of this moment:
//
//   s3://BUCKET/KEY          an object, or, if there is none, the folder KEY/
//   s3://BUCKET/FOLDER/      its own *.ffr objects, sorted
//   s3://BUCKET/a*/b?[cd].ffr  the objects that match, sorted; ** also matches slashes
//   http(s)://HOST/PATH      a file
//
// `timeout` is for each request, retries included. Fails with kNotFound if an address stands for
// nothing, kInvalidArgument for a malformed one, kDeadlineExceeded once the thread's patience is
// over, and as FetchRanges.
Result<std::vector<StoredObject>> FindObjects(std::span<const std::string> addresses,
                                              std::chrono::milliseconds timeout);

}  // namespace ffrecord::object_store
