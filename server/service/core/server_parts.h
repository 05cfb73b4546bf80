#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/service/access/local_tickets.h"
#include "server/service/access/tokens.h"
#include "server/service/catalog/catalog_names.h"
#include "server/service/catalog/disk_members.h"
#include "server/service/cluster/cluster_names.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/cluster/doubted_extents.h"
#include "server/service/core/connection_count.h"
#include "server/service/core/server.h"
#include "server/service/jobs/job_pool.h"
#include "server/service/origin/origin_cache.h"
#include "server/service/read_ahead/planned_records.h"
#include "server/service/read_ahead/read_ahead.h"
#include "server/service/worker_metrics.h"
#include "server/storage/home_disk.h"

namespace ffrecord::server {

// The objects of a daemon that its rooms share: those that take connections, serve them, keep its
// disks, and show it to operators.
//
// Server::Impl makes them in this order, each with those before it, before it starts threads that
// use them; the admin server alone is there earlier, and looks at `state` first. They are destroyed
// after all of those threads have ended.
struct ServerParts {
  enum class State : std::uint8_t { kStarting, kReady, kDraining };

  ServerParts(Server::Options given, net::TcpListener at)
      : options(std::move(given)), listener(std::move(at)) {
    acceptor_metrics.connections_max.Set(options.connection_count_max);
  }

  const Server::Options options;
  net::TcpListener listener;
  std::unique_ptr<LocalTickets> local_tickets;  // With a local socket.
  std::unique_ptr<net::RdmaRails> rdma;         // Null: not offered.
  std::unique_ptr<net::TlsContext> tls;         // The acceptor's, once that runs.
  std::filesystem::path home;                   // Where the metadata is.
  UniqueFd home_lock;
  std::vector<FoundFolder> folders;  // As they were found before any was written to.
  std::vector<UniqueFd> locks;       // Locks of the others.
  std::optional<TokenKeys> token_keys;
  std::unique_ptr<ExtentStore> extents;
  std::optional<HomeDisk> home_disk;        // May be one of the disks of `extents`.
  std::unique_ptr<BlockingStore> meta;      // Writes through home_disk.
  std::unique_ptr<Catalog> catalog;         // Null in a cluster.
  std::unique_ptr<OriginCache> origins;     // Null without a cluster.
  std::unique_ptr<DoubtedExtents> doubts;   // Null in one.
  std::unique_ptr<ClusterService> cluster;  // Null without one.
  std::unique_ptr<Names> names;             // The catalog's or the cluster's.
  ReadAhead::Metrics read_ahead_metrics;
  std::unique_ptr<ReadAhead> read_ahead;
  std::unique_ptr<PlannedDatasets> planned;
  std::string engine_name;
  // All members are there, and stay, once this is not kStarting.
  std::atomic<State> state{State::kStarting};
  const Clock::time_point started = Clock::now();
  std::vector<std::unique_ptr<WorkerMetrics>> metrics;  // One for each worker.
  std::atomic<std::uint32_t> failed_worker_count{0};
  WorkerMetrics acceptor_metrics;
  ConnectionCount connection_count;
  TenantShares tenant_shares{options.tenant_weights};
  std::unique_ptr<JobPool> jobs;
};

}  // namespace ffrecord::server
