#include "server/service/core/server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <span>
#include <system_error>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"
#include "server/service/catalog/upload_records.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/core/acceptor.h"
#include "server/service/core/admin_pages.h"
#include "server/service/core/server_parts.h"
#include "server/service/core/upkeep.h"
#include "server/service/core/worker.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

// Lines of one kind in the log at start; a further line has the count.
constexpr std::size_t kExamplesMax = 10;

// The soft limit of descriptors is raised to the hard one; half of what there is may be extents.
std::size_t OpenFilesMax(std::size_t worker_count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1024;
  const std::size_t half = std::min<std::size_t>(limit.rlim_cur / 2, 65'536);
  return std::max<std::size_t>(half / worker_count, 16);
}

void LogExamples(const char* event, std::span<const std::string> what) {
  for (const std::string& one : what.first(std::min(what.size(), kExamplesMax)))
    spdlog::warn("event={} count={} example=\"{}\"", event, what.size(), one);
}

void LogFindings(const ExtentStore::ScanReport& scan, const Catalog::Report& catalog) {
  LogExamples("extent_refused", scan.refused);
  LogExamples("extent_unexplained", catalog.unexplained);
  LogExamples("extent_missing", catalog.missing);
  LogExamples("manifest_damaged", catalog.damaged);
  spdlog::info(
      "event=scanned extents={} bytes={} names={} open_uploads={} unpublished_extents={} "
      "deleted_extents={}",
      scan.extent_count, scan.size_bytes, catalog.name_count, catalog.open_upload_count,
      catalog.unpublished_count, catalog.deleted_count);
}

}  // namespace

// Composes a daemon: makes its parts, its workers and its rooms in their order, and ends them in
// the other. Belongs to the thread that starts and stops the server.
struct Server::Impl : ServerParts {
  using ServerParts::ServerParts;
  ~Impl();

  Result<void> StartAdmin();
  Result<void> Open();
  Result<void> OpenCatalog(PublishedNames published);
  Result<void> OpenCluster();
  Result<void> OpenOrigins(ClusterService::Options& node);
  Result<ExtentStore::Disks> OpenDisks();
  void KeepRoomAtHome();
  PlannedDatasets::Source PlannedHere();
  PlannedDatasets::Source PlannedInCluster();
  Result<void> StartWorkers();
  void NoteFailedWorker();
  bool Stop(Clock::time_point deadline);
  bool LeaveCluster(Clock::time_point deadline);

  std::string transports;
  ConnectionContext::IdentitySource identity;  // Set before the workers.
  Upkeep upkeep{*this};
  AdminPages pages{*this, upkeep};
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<AdminServer> admin;
  std::future<void> leaving;  // Once it stops: of the cluster.
  Acceptor acceptor{*this};
};

Result<void> Server::Impl::StartAdmin() {
  if (!options.admin) return {};
  AdminServer::Pages shown = pages.Make();
  shown.token = FFR_TRY(ReadAdminToken(options.admin_token_file));
  admin = FFR_TRY(AdminServer::Start(*options.admin, std::move(shown)));
  return {};
}

Result<void> Server::Impl::Open() {
  if (!options.token_keys.empty()) token_keys = FFR_TRY(TokenKeys::Load(options.token_keys));
  meta = FFR_TRY(
      OpenBlockingStore(home / "metadata.sqlite", [this](const auto& puts, const auto& write) {
        return home_disk->Run(MakesRoom(puts), write);
      }));
  // A node goes on writing what it knows of its cluster while its disk is full: peers have the
  // rest.
  home_disk.emplace(HomeDisk::Options{.folder = home,
                                      .reserve_bytes = options.reserve_bytes,
                                      .yields_to_deletions = !options.cluster,
                                      .answer_time_max = options.answer_time_max});
  auto published = FFR_TRY(ReadPublishedNames(*meta));
  auto disks = FFR_TRY(OpenDisks());
  extents = FFR_TRY(ExtentStore::Open(std::move(disks), published.Extents()));
  KeepRoomAtHome();
  return options.cluster ? OpenCluster() : OpenCatalog(std::move(published));
}

Result<void> Server::Impl::OpenCatalog(PublishedNames published) {
  auto kept = FFR_TRY(ClusterCache(*meta).LoadExtents());
  catalog = FFR_TRY(Catalog::Open(*meta, *extents, *home_disk,
                                  {options.upload_grace, options.quotas, std::move(kept)},
                                  std::move(published)));
  names = std::make_unique<CatalogNames>(*catalog);
  LogFindings(extents->scan_report(), catalog->report());
  return {};
}

Result<void> Server::Impl::OpenCluster() {
  ClusterService::Options node = options.cluster->service;
  const DiskMembers members = FFR_TRY(ReadDiskMembers(*meta));
  if (members.daemon) node.daemon = Hex(*members.daemon);
  if (node.node.empty()) {
    if (!members.daemon)
      return Error{ErrorCode::kIo, "the daemon's id could not be recorded: make room on its disk"};
    node.node = node.daemon;
  }
  if (node.advertise.empty()) node.advertise = listener.address().ToString();
  if (node.domain.empty()) node.domain = node.node;
  node.token_keys = token_keys ? &*token_keys : nullptr;
  node.tls = options.tls;
  node.upload_grace = options.upload_grace;
  LogExamples("extent_refused", extents->scan_report().refused);
  spdlog::info("event=node id={} daemon={} advertise={} domain={} extents={}", node.node,
               node.daemon, node.advertise, node.domain, extents->totals().extent_count);
  FFR_TRY(OpenOrigins(node));
  auto store = FFR_TRY(options.cluster->connect());
  cluster = FFR_TRY(ClusterService::Start(node, std::move(store), *extents, *meta));
  names = std::make_unique<ClusterNames>(*cluster, options.quotas);
  return {};
}

// Beside the extents of each disk, and not among them. A node that may fetch nothing has no cache,
// and knows all the same which extents have an origin: they are none of its uploads.
Result<void> Server::Impl::OpenOrigins(ClusterService::Options& node) {
  OriginCache::Options cache = options.cluster->origins;
  const bool may_fetch = !cache.reader.allowed.empty();
  for (const auto& disk : extents->disks())
    if (may_fetch)
      cache.folders.push_back({disk->folder().parent_path() / "origin-cache", disk.get()});
  cache.grace = node.delete_grace;
  origins = FFR_TRY(OriginCache::Open(cache));
  node.origins_hash = OriginsHash(cache.reader.allowed);
  node.on_name = [this](const DatasetManifest* before, const DatasetManifest* after) {
    origins->Change(before, after);
  };
  node.check_origin = [this](const std::string& address) { return origins->Check(address); };
  return {};
}

// Which folders are this daemon's disks, what is recorded of them, and what is missing.
Result<ExtentStore::Disks> Server::Impl::OpenDisks() {
  const DiskMembers members = FFR_TRY(ReadDiskMembers(*meta));
  const DiskPlan plan = FFR_TRY(PlanDisks(folders, members.daemon, members.members, options.disks));
  ExtentStore::Disks disks;
  disks.missing_count = plan.missing.size();
  disks.missing_count_max = options.disks.missing_count_max;
  for (const std::string& why : plan.missing) spdlog::error("event=disk_missing why=\"{}\"", why);
  for (const std::string& why : plan.ignored) spdlog::warn("event=data_ignored why=\"{}\"", why);
  for (const DiskPlan::Use& use : plan.used) {
    std::error_code ignored;
    if (!fs::equivalent(use.path, home, ignored)) locks.push_back(FFR_TRY(LockFolder(use.path)));
    const auto now = FFR_TRY(ReadDiskIdentity(use.path));
    if (use.is_new == now.has_value() || (now && now->disk != use.id))
      return Error{
          ErrorCode::kConflict,
          use.path.string() + " became another disk while the daemon started; start again"};
  }
  if (const auto recorded = RecordDisks(*meta, members, plan); !recorded) {
    // A full disk is to be emptied through the daemon: one that is all there is can do without.
    const bool can_wait = plan.used.size() == 1 && plan.used.front().is_new;
    if (!can_wait || !WriteHealth::StateOf(recorded.error())) return Error(recorded.error());
    spdlog::warn("event=identity_not_written error=\"{}\"", recorded.error().message);
  }
  for (const DiskPlan::Use& use : plan.used) {
    spdlog::info("event=disk id={} data={} new={}", Hex(use.id), use.path.string(), use.is_new);
    auto disk = Disk::Open(use.path / "extents", use.id);
    if (disk) {
      disks.present.push_back(std::move(disk).value());
      continue;
    }
    if (++disks.missing_count > disks.missing_count_max) return std::move(disk).error();
    spdlog::error("event=disk_missing why=\"{}\"", disk.error().message);
  }
  return disks;
}

// The disk with the metadata also takes extents: so many that names can still be published when it
// is full of them and others are not.
void Server::Impl::KeepRoomAtHome() {
  constexpr std::uint64_t kTimesReserve = 4;
  struct stat at_home {};
  if (::stat(home.c_str(), &at_home) != 0) return;
  for (const auto& disk : extents->disks()) {
    struct stat at_disk {};
    if (::stat(disk->folder().c_str(), &at_disk) != 0 || at_disk.st_dev != at_home.st_dev) continue;
    std::error_code ignored;
    if (fs::equivalent(disk->folder().parent_path(), home, ignored)) home_disk->BeOneWith(*disk);
    if (extents->disks().size() > 1)
      disk->set_kept_bytes(kTimesReserve * home_disk->reserve().size_bytes());
  }
}

PlannedDatasets::Source Server::Impl::PlannedHere() {
  return {
      [&names_here = *catalog](const std::string& name) -> Result<PlannedDatasets::Source::Named> {
        const auto resolved = FFR_TRY(names_here.Resolve(name));
        return PlannedDatasets::Source::Named{FFR_TRY(DecodeDatasetManifest(resolved.manifest)),
                                              resolved.revision};
      },
      {}};
}

PlannedDatasets::Source Server::Impl::PlannedInCluster() {
  return {[&service = *cluster](const std::string& name) -> Result<PlannedDatasets::Source::Named> {
            const ClusterStatePtr known = service.state();
            const ClusterState::Name* const found = known->Find(name);
            if (found == nullptr || !found->manifest)
              return Error{ErrorCode::kUnavailable, name + " is not known to this daemon yet"};
            if (found->manifest->has_origins())
              return Error{ErrorCode::kUnavailable,
                           name + " has an origin, and is fetched as it is read"};
            return PlannedDatasets::Source::Named{*found->manifest, found->revision};
          },
          [&service = *cluster](const DatasetManifest& manifest) {
            return ExtentFiles::Others{
                [ranges = service.MakePeerRanges()](const ExtentId& id, std::uint64_t offset_bytes,
                                                    std::span<std::byte> destination) {
                  return ranges->Read(id, offset_bytes, destination);
                },
                [&service, replicas = std::size_t{manifest.replicas}](const ExtentId& id) {
                  return service.IsPreferredOwner(id, replicas);
                }};
          }};
}

Result<void> Server::Impl::StartWorkers() {
  jobs = std::make_unique<JobPool>(tenant_shares);
  read_ahead = std::make_unique<ReadAhead>(
      options.read_ahead_bytes_max, read_ahead_metrics,
      [&pool = *jobs](std::string_view tenant, JobPool::Job job) {
        pool.Post(pool.StrandOf(tenant, JobPool::Kind::kPlan, 0), tenant, std::move(job));
      });
  planned =
      std::make_unique<PlannedDatasets>(cluster ? PlannedInCluster() : PlannedHere(), *extents);
  const std::uint32_t count = options.core_count > 0
                                  ? options.core_count
                                  : std::max(std::thread::hardware_concurrency(), 1U);
  const std::uint64_t epoch = RandomNumber();
  FFR_TRY(acceptor.Open(epoch));
  transports = std::string(tls ? "tls" : "tcp") + (acceptor.is_local_open() ? ",shm" : "") +
               (rdma ? ",rdma" : "");
  identity = [this] {
    if (options.identity || cluster == nullptr) return options.identity;
    return std::optional(cluster->Identity());
  };
  const DiskReader::Bounds bounds{OpenFilesMax(count), options.mapped_count_max / count,
                                  options.held_bytes_max, extents->disks().size()};
  for (std::uint32_t i = 0; i < count; ++i) metrics.push_back(std::make_unique<WorkerMetrics>());
  acceptor_metrics.held_bytes_max.Set(options.held_bytes_max * count);
  if (!cluster) doubts = std::make_unique<DoubtedExtents>(*extents);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Worker::Context context{.names = *names,
                                  .cluster = cluster.get(),
                                  .identity = identity,
                                  .extents = *extents,
                                  .doubts = doubts.get(),
                                  .origins = origins.get(),
                                  .read_ahead = *read_ahead,
                                  .planned = *planned,
                                  .jobs = *jobs,
                                  .epoch = epoch,
                                  .metrics = *metrics[i],
                                  .local_tickets = local_tickets.get(),
                                  .rdma = rdma.get(),
                                  .token_keys = token_keys ? &*token_keys : nullptr,
                                  .greeting_timeout = options.greeting_timeout,
                                  .stall_timeout = options.stall_timeout,
                                  .upload_grace = options.upload_grace,
                                  .answer_time_max = options.answer_time_max,
                                  .deleted_hold = options.deleted_hold,
                                  .connection_count = connection_count,
                                  .disk_bounds = bounds,
                                  .on_failure = [this] { NoteFailedWorker(); }};
    auto engine = FFR_TRY(options.make_engine(DiskReader::kDepth));
    engine_name = engine->name();
    workers.push_back(FFR_TRY(Worker::Start(context, std::move(engine))));
  }
  FFR_TRY(upkeep.Start());
  if (const auto bad_count = extents->totals().bad_count; bad_count > 0)
    spdlog::error("event=extents_bad count={}", bad_count);
  acceptor.Start(workers, [this] { upkeep.Tick(); });
  state.store(State::kReady, std::memory_order_release);
  return {};
}

void Server::Impl::NoteFailedWorker() {
  const std::uint32_t count = failed_worker_count.fetch_add(1) + 1;
  if (count == metrics.size() && options.on_failure) options.on_failure();
}

bool Server::Impl::Stop(Clock::time_point deadline) {
  auto ready = State::kReady;
  state.compare_exchange_strong(ready, State::kDraining);
  acceptor.Stop();
  for (auto& worker : workers) worker->Drain();
  const bool all_closed = connection_count.WaitNone(deadline);
  for (auto& worker : workers) worker->Stop();
  if (origins) origins->BeginStop();
  const bool has_left = LeaveCluster(deadline);
  // Do not wait for a hanging origin (same as for a disk).
  const bool has_fetched = !origins || origins->AwaitEnd(deadline);
  return (!jobs || jobs->WaitIdle(deadline)) && all_closed && has_left && has_fetched;
}

// Only the destructor waits for threads that hang on a disk.
bool Server::Impl::LeaveCluster(Clock::time_point deadline) {
  constexpr auto kLeaveTime = std::chrono::seconds(2);  // At least, for the lease is given back.
  if (!cluster) return true;
  try {
    if (!leaving.valid()) leaving = std::async(std::launch::async, [this] { cluster->Stop(); });
  } catch (const std::system_error&) {  // There is no thread to be had.
    cluster->Stop();
    return true;
  }
  const auto until = std::max(deadline, Clock::now() + kLeaveTime);
  return WaitUntil(leaving, until);
}

Server::Impl::~Impl() {
  admin.reset();  // It looks at all the others.
  (void)Stop(Clock::now());
  if (leaving.valid()) leaving.wait();
  jobs.reset();  // Waits; its jobs report to workers, which go after it.
}

Server::Server(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Start(const Options& options) {
  std::unique_ptr<net::TlsContext> tls;
  if (!options.tls.certificate.empty())
    tls = FFR_TRY(net::TlsContext::Load(net::TlsContext::Side::kServer, options.tls));
  if (options.data.empty()) return Error{ErrorCode::kInvalidArgument, "no folder for the data"};
  const fs::path home = options.metadata.empty() ? options.data.front() : options.metadata;
  std::vector<FoundFolder> folders;
  for (const fs::path& path : options.data) folders.push_back(LookAtFolder(path));
  FFR_TRY(CheckFolders(LookAtFolder(home), folders));
  auto lock = FFR_TRY(LockFolder(home));
  // Before the scan, which may take long: a port in use is an error at once, and early clients
  // wait.
  auto impl = std::make_unique<Impl>(options, FFR_TRY(net::TcpListener::Listen(options.listen)));
  impl->home = home;
  impl->home_lock = std::move(lock);
  impl->folders = std::move(folders);
  impl->tls = std::move(tls);
  impl->acceptor.RefreshTls();
  FFR_TRY(impl->StartAdmin());
  FFR_TRY(impl->Open());
  FFR_TRY(impl->StartWorkers());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

const net::Address& Server::address() const noexcept { return impl_->listener.address(); }
std::optional<net::Address> Server::admin_address() const {
  if (!impl_->admin) return std::nullopt;
  return impl_->admin->address();
}
std::string_view Server::engine_name() const noexcept { return impl_->engine_name; }
const std::string& Server::transports() const noexcept { return impl_->transports; }
std::string_view Server::authentication() const noexcept { return impl_->pages.Authentication(); }
const Catalog::Report& Server::catalog_report() const noexcept { return impl_->catalog->report(); }
const ExtentStore::ScanReport& Server::scan_report() const noexcept {
  return impl_->extents->scan_report();
}
bool Server::Stop(Clock::time_point deadline) { return impl_->Stop(deadline); }

}  // namespace ffrecord::server
