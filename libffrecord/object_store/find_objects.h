#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// The object of each address, s3://BUCKET/KEY or http(s)://HOST/PATH, with its version of this
// moment; nothing where there is none. A key is never a folder or a pattern. Fails as FindObjects.
Result<std::vector<std::optional<StoredObject>>> LookForObjects(
    std::span<const std::string> addresses, std::chrono::milliseconds timeout);

// All objects in the folder s3://BUCKET/FOLDER and the folders in it, by their keys; none if there
// is no such folder. A key that ends in a slash is no object but a folder's mark. Fails as
// FindObjects, and with kInvalidArgument for an address of a server, which has no listings.
Result<std::vector<StoredObject>> ListObjects(const std::string& folder,
                                              std::chrono::milliseconds timeout);

}  // namespace ffrecord::object_store
