#include "client/dataset/published_files.h"

#include <utility>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster.h"
#include "client/dataset/cluster_files.h"

namespace ffrecord::client {
Result<PublishedFiles> OpenPublished(std::span<const net::Location> locations,
                                     const SessionOptions& options) {
  const net::Location& location = locations.front();
  auto cluster = FFR_TRY(Cluster::Find(locations, options));
  const auto deadline = net::Clock::now() + options.timeout;
  auto resolved = FFR_TRY(Catalog(cluster).Resolve(location.name, deadline));
  if (resolved.manifest.files.empty())
    return Error{ErrorCode::kInvalidArgument, location.ToString() + " has no files"};
  return OpenClusterDataset(std::move(cluster), std::move(resolved.manifest), resolved.revision,
                            location);
}

}  // namespace ffrecord::client
