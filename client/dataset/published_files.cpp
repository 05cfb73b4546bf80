#include "client/dataset/published_files.h"

#include <algorithm>
#include <utility>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster_files.h"
#include "client/dataset/daemons.h"
#include "client/dataset/prefetch_hint.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

net::Deadline After(const SessionOptions& options) { return net::Clock::now() + options.timeout; }

PublishedFiles FilesAtDaemon(const std::shared_ptr<net::Session>& session,
                             Catalog::Resolved resolved, const net::Location& location,
                             const SessionOptions& options) {
  auto files = std::make_shared<const net::RemoteFiles>(session, resolved.manifest,
                                                        location.ToString(), options);
  auto hinter = [=, name = location.name, revision = resolved.revision](const EpochPlan& plan) {
    const auto wait = std::min(options.timeout, kHintTimeout);
    return SendPrefetchHint(*session, name, revision, plan, net::Clock::now() + wait);
  };
  return {std::move(files), std::move(hinter), std::move(resolved.manifest)};
}

}  // namespace

Result<PublishedFiles> OpenPublished(std::span<const net::Location> locations,
                                     const SessionOptions& options) {
  const net::Location& location = locations.front();
  Daemons daemons = FFR_TRY(FindDaemons(locations, options));
  auto resolved = FFR_TRY(Catalog(daemons).Resolve(location.name, After(options)));
  if (resolved.manifest.files.empty())
    return Error{ErrorCode::kInvalidArgument, location.ToString() + " has no files"};
  if (daemons.cluster == nullptr)
    return FilesAtDaemon(daemons.session, std::move(resolved), location, options);
  return OpenClusterDataset(std::move(daemons.cluster), std::move(resolved.manifest),
                            resolved.revision, location);
}

}  // namespace ffrecord::client
