#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/unique_fd.h"
#include "server/service/access/local_tickets.h"
#include "server/service/access/tokens.h"
#include "server/service/admin/admin_server.h"
#include "server/service/catalog/catalog_names.h"
#include "server/service/catalog/disk_members.h"
#include "server/service/catalog/guarded_store.h"
#include "server/service/cluster/cluster_names.h"
#include "server/service/cluster/cluster_reports.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/cluster/doubted_extents.h"
#include "server/service/core/connection_count.h"
#include "server/service/core/job_pool.h"
#include "server/service/core/server.h"
#include "server/service/core/worker.h"
#include "server/service/metrics_page.h"
#include "server/service/origin/origin_cache.h"
#include "server/service/read_ahead/read_ahead.h"
#include "server/service/worker_metrics.h"
#include "server/storage/disk_drain.h"
#include "server/storage/home_disk.h"

namespace ffrecord::server {

// The parts of a server. It starts and stops in server.cpp, takes connections in server_accept.cpp,
// and shows itself to operators in server_pages.cpp.
struct Server::Impl {
  explicit Impl(Options given, net::TcpListener at)
      : options(std::move(given)), listener(std::move(at)) {
    acceptor_metrics.connections_max.Set(options.connection_count_max);
  }
  ~Impl();

  // Start and stop.
  Result<void> Open();
  Result<void> OpenCatalog(PublishedNames published);
  Result<void> OpenCluster();
  Result<void> OpenOrigins(ClusterService::Options& node);
  Result<ExtentStore::Disks> OpenDisks();
  void KeepRoomAtHome();
  PlannedDatasets::Source PlannedHere();
  PlannedDatasets::Source PlannedInCluster();
  Result<void> StartWorkers();
  Result<void> StartScrubbers();
  void ScrubOrigins();
  Result<void> StartDrains();
  void StartUpkeep();
  void LookForRoom(Disk& disk);
  void SaveScrub(const std::string& key, const Scrubber::Position& position);
  void NoteFailedWorker();
  void Collect();
  void LogWhetherMetadataAnswers();
  bool Stop(Clock::time_point deadline);
  bool LeaveCluster(Clock::time_point deadline);

  // Connections.
  Result<void> ListenLocally(std::uint64_t epoch);
  Result<void> OpenRdma();
  void Accept();
  void Take(Result<std::unique_ptr<net::Endpoint>> accepted);
  void Give(std::unique_ptr<net::Endpoint> endpoint);
  void TurnAway(net::Endpoint& endpoint);
  void RefreshTls();

  // Operators.
  Result<void> StartAdmin();
  std::string_view Authentication() const;
  WriteHealth::Report Writes() const;
  std::string Remark() const;
  std::string MetricsText() const;
  void ShowDaemon(MetricsPage& page, bool is_open) const;
  void ShowDisks(MetricsPage& page, bool is_open) const;
  Result<void> MayShowNames() const;
  Result<std::string> DatasetsJson();
  Result<ClusterService*> ClusterOrError() const;
  Result<std::string> ClusterJson();
  Result<std::string> ClusterSlotsJson();
  Result<std::string> ClusterPlanJson(const cluster::PlannedChange& change);
  Result<std::string> ClusterLostJson();

  const Options options;
  net::TcpListener listener;
  std::optional<net::LocalListener> local_listener;
  std::unique_ptr<LocalTickets> local_tickets;  // With the listener.
  std::unique_ptr<net::RdmaRails> rdma;         // Null: not offered.
  std::string transports;
  std::unique_ptr<net::TlsContext> tls;  // The acceptor's, once that runs.
  std::filesystem::path home;            // Where the metadata is.
  UniqueFd home_lock;
  std::vector<FoundFolder> folders;  // As they were found before any was written to.
  std::vector<UniqueFd> locks;       // Locks of the others.
  EventFd stop_accepting;
  std::optional<TokenKeys> token_keys;
  std::unique_ptr<BlockingStore> meta;
  std::unique_ptr<ExtentStore> extents;
  std::optional<HomeDisk> home_disk;
  std::unique_ptr<BlockingStore> guarded_meta;             // For all, once disks are known.
  std::unique_ptr<Catalog> catalog;                        // Null in a cluster.
  std::unique_ptr<OriginCache> origins;                    // Null without a cluster.
  std::unique_ptr<DoubtedExtents> doubts;                  // Null in one.
  std::unique_ptr<ClusterService> cluster;                 // Null without one.
  std::unique_ptr<Names> names;                            // The catalog's or the cluster's.
  Connection::IdentitySource identity;                     // Set before the workers.
  std::vector<std::unique_ptr<Scrubber>> scrubbers;        // One for each disk.
  std::vector<std::unique_ptr<Scrubber>> cache_scrubbers;  // For data fetched from origins.
  std::vector<std::unique_ptr<DiskDrain>> drains;
  ReadAhead::Metrics read_ahead_metrics;
  std::unique_ptr<ReadAhead> read_ahead;
  std::unique_ptr<PlannedDatasets> planned;
  std::string engine_name;
  // The members above are there, and stay, once this is not kStarting: the admin server's word.
  enum class State : std::uint8_t { kStarting, kReady, kDraining };
  std::atomic<State> state{State::kStarting};
  const Clock::time_point started = Clock::now();
  std::vector<std::unique_ptr<WorkerMetrics>> metrics;  // One for each worker.
  std::atomic<std::uint32_t> failed_worker_count{0};
  WorkerMetrics acceptor_metrics;
  ConnectionCount connection_count;
  TenantShares tenant_shares{options.tenant_weights};
  std::unique_ptr<JobPool> jobs;
  // Work that is done now and then, each in its own strand.
  struct Upkeep {
    Upkeep(JobPool::Strand& in, std::function<Result<std::uint64_t>()> what)
        : strand(in), work(std::move(what)) {}
    JobPool::Strand& strand;
    const std::function<Result<std::uint64_t>()> work;  // Returns how much was unlinked.
    std::atomic<bool> is_running{false};
  };
  std::vector<std::unique_ptr<Upkeep>> upkeep;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<AdminServer> admin;
  std::future<void> leaving;  // Once it stops: of the cluster.
  std::thread acceptor;
  // The acceptor's own:
  std::size_t next_worker = 0;
  bool is_paused = false;        // Descriptors are exhausted.
  bool metadata_answers = true;  // As the log says.
};

}  // namespace ffrecord::server
