#include <ffrecord/client/features.h>

#include "client/dataset/object_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/find_objects.h"
#include "libffrecord/object_store/object_files.h"
#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/cached_files.h"

namespace ffrecord {

std::string WhyNoObjectStores() {
  const auto client = net::HttpClient::Create();  // Loads libcurl.
  return client ? std::string() : client.error().message;
}

}  // namespace ffrecord

namespace ffrecord::client {
namespace {

// A store answers many more requests at a time than a disk does reads, each of them later.
constexpr std::uint32_t kRequestsPerRead = 2;

// All that tells this version from any other object.
std::string IdentityOf(const object_store::StoredObject& object) {
  const auto& version = object.version;
  return object.store->Identify(object.key) + "\n" + std::to_string(version.size_bytes) + "\n" +
         version.etag + "\n" + (version.etag.empty() ? version.last_modified : "");
}

bool IsKnown(const object_store::StoredObject& object) {
  return !object.version.etag.empty() || !object.version.last_modified.empty();
}

}  // namespace

Result<std::shared_ptr<const RangeReader>> OpenObjects(std::span<const std::string> addresses,
                                                       std::uint32_t reads_at_once,
                                                       const SessionOptions& options,
                                                       const CacheOptions& cache) {
  auto objects = FFR_TRY(object_store::FindObjects(addresses, options.timeout));
  std::vector<std::string> identities;
  for (const auto& object : objects) identities.push_back(IdentityOf(object));
  const bool are_known = std::ranges::all_of(objects, IsKnown);
  std::shared_ptr<const RangeReader> files =
      object_store::OpenObjectFiles(std::move(objects), kRequestsPerRead * reads_at_once);
  if (cache.folder.empty()) return files;
  if (!are_known)
    return Error{
        ErrorCode::kInvalidArgument,
        files->file_name(0) +
            ": a cache needs a server that sends ETag or Last-Modified: nothing else tells "
            "what was replaced"};
  auto blocks = FFR_TRY(BlockCache::Open(cache.folder, cache.size_bytes_max));
  return std::shared_ptr<const RangeReader>(
      OpenCachedFiles(std::move(files), std::move(blocks), identities));
}

Result<OriginObjects> OpenOriginObjects(std::span<const std::string> addresses,
                                        const SessionOptions& options) {
  auto objects = FFR_TRY(object_store::FindObjects(addresses, options.timeout));
  OriginObjects opened;
  for (const auto& object : objects) opened.origins.push_back({object.name(), object.version.etag});
  opened.files = object_store::OpenObjectFiles(std::move(objects));
  return opened;
}

}  // namespace ffrecord::client
