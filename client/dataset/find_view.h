#pragma once

#include <optional>
#include <span>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "client/dataset/cluster_view.h"
#include "libffrecord/net/rpc/daemon_connection.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::client {

// Whether the daemon has names that the other nodes do not have yet, as it said last.
bool HasOwnNames(const net::Connection& connection);

// Asks a node for its view, which follows `before` (null: the first). Fails as a call and as
// NextView().
Result<ClusterView> AskView(net::Connection& connection, const ClusterView* before,
                            const net::Location& seed, net::Deadline deadline);

// Asks all daemons at `locations` at once which cluster they are of, until ClusterVote is sure or
// nobody has contradicted a likely result for a moment. Returns as ClusterVote::Decide(). Waits at
// most `options.timeout`, and as long as the thread's patience.
Result<std::optional<ClusterView>> FindView(std::span<const net::Location> locations,
                                            const SessionOptions& options);

}  // namespace ffrecord::client
