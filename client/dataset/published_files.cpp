#include "client/dataset/published_files.h"

#include <algorithm>
#include <utility>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster.h"
#include "client/dataset/cluster_files.h"
#include "client/dataset/prefetch_hint.h"
#include "client/dataset/replicas.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

net::Deadline After(const SessionOptions& options) { return net::Clock::now() + options.timeout; }

Error NoFiles(const net::Location& location) {
  return {ErrorCode::kInvalidArgument, location.ToString() + " has no files"};
}

Result<PublishedFiles> OpenAtCluster(std::shared_ptr<Cluster> cluster,
                                     const net::Location& location, const SessionOptions& options) {
  auto resolved = FFR_TRY(Catalog(cluster).Resolve(location.name, After(options)));
  if (resolved.manifest.files.empty()) return NoFiles(location);
  return OpenClusterDataset(std::move(cluster), std::move(resolved.manifest), resolved.revision,
                            location);
}

Result<PublishedFiles> OpenAtDaemon(const net::Location& location, const SessionOptions& options) {
  const auto session = net::Session::Get(location, options);
  auto resolved = FFR_TRY(Catalog(session).Resolve(location.name, After(options)));
  if (resolved.manifest.files.empty()) return NoFiles(location);
  auto files = std::make_shared<const net::RemoteFiles>(session, resolved.manifest,
                                                        location.ToString(), options);
  auto hinter = [=, revision = resolved.revision](const EpochPlan& plan) {
    const auto wait = std::min(options.timeout, kHintTimeout);
    return SendPrefetchHint(*session, location.name, revision, plan, net::Clock::now() + wait);
  };
  return PublishedFiles{std::move(files), std::move(hinter), std::move(resolved.manifest)};
}

}  // namespace

Result<PublishedFiles> OpenPublished(std::span<const net::Location> locations,
                                     const SessionOptions& options) {
  if (auto cluster = FFR_TRY(Cluster::Find(locations, options)))
    return OpenAtCluster(std::move(cluster), locations.front(), options);
  if (locations.size() > 1) return OpenReplicas(locations, options);
  return OpenAtDaemon(locations.front(), options);
}

}  // namespace ffrecord::client
