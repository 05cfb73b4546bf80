#include "server/service/core/server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <span>
#include <system_error>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/core/server_impl.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScrubKey = "scrub";  // In the metadata: how far the scrubber has come.
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

Result<void> Server::Impl::Open() {
  if (!options.token_keys.empty()) token_keys = FFR_TRY(TokenKeys::Load(options.token_keys));
  auto database = FFR_TRY(OpenSqliteStore(home / "metadata.sqlite"));
  meta = FFR_TRY(MakeCachedStore(MakeBlockingStore(std::move(database))));
  // A node goes on writing what it knows of its cluster while its disk is full: peers have the
  // rest.
  home_disk.emplace(HomeDisk::Options{.folder = home,
                                      .reserve_bytes = options.reserve_bytes,
                                      .yields_to_deletions = !options.cluster,
                                      .answer_time_max = options.answer_time_max});
  guarded_meta = MakeGuardedStore(*meta, *home_disk);
  auto published = FFR_TRY(ReadPublishedNames(*meta));
  auto disks = FFR_TRY(OpenDisks());
  extents = FFR_TRY(ExtentStore::Open(std::move(disks), published.Extents()));
  KeepRoomAtHome();
  stop_accepting = FFR_TRY(EventFd::Make());
  return options.cluster ? OpenCluster() : OpenCatalog(std::move(published));
}

Result<void> Server::Impl::OpenCatalog(PublishedNames published) {
  auto kept = FFR_TRY(ClusterCache(*meta).LoadExtents());
  catalog = FFR_TRY(Catalog::Open(*guarded_meta, *extents, *home_disk,
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
  cluster = FFR_TRY(ClusterService::Start(node, std::move(store), *extents, *guarded_meta));
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
  FFR_TRY(ListenLocally(epoch));
  FFR_TRY(OpenRdma());
  transports =
      std::string(tls ? "tls" : "tcp") + (local_listener ? ",shm" : "") + (rdma ? ",rdma" : "");
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
  FFR_TRY(StartScrubbers());
  FFR_TRY(StartDrains());
  StartUpkeep();
  if (const auto bad_count = extents->totals().bad_count; bad_count > 0)
    spdlog::error("event=extents_bad count={}", bad_count);
  acceptor = std::thread([this] { Accept(); });
  state.store(State::kReady, std::memory_order_release);
  return {};
}

// The first one goes on where that of a daemon with one disk stood.
Result<void> Server::Impl::StartScrubbers() {
  for (const auto& disk : extents->disks()) {
    const bool is_only = extents->disks().size() == 1 && extents->missing_disk_count() == 0;
    const std::string key = is_only ? kScrubKey : kScrubKey + ("/" + Hex(disk->id()));
    auto from = FFR_TRY(meta->Get(key));
    if (!from && disk == extents->disks().front()) from = FFR_TRY(meta->Get(kScrubKey));
    scrubbers.push_back(std::make_unique<Scrubber>(
        *extents, *disk, options.scrub,
        from ? Scrubber::Position::Decode(from->value) : Scrubber::Position{},
        [this, key](const Scrubber::Position& position) { SaveScrub(key, position); },
        [](const Extent& extent, const std::string& why_bad) {
          if (why_bad.empty())
            spdlog::info("event=extent_good extent={}", extent.disk->PathOf(extent.id).string());
          else
            spdlog::error("event=extent_bad error=\"{}\"", why_bad);
        }));
  }
  if (origins) ScrubOrigins();
  return {};
}

// Cached extents that are damaged are removed, and fetched again at the next read.
void Server::Impl::ScrubOrigins() {
  for (const auto& disk : origins->store().disks())
    cache_scrubbers.push_back(std::make_unique<Scrubber>(
        origins->store(), *disk, options.scrub, Scrubber::Position{},
        [](const Scrubber::Position&) {},
        [&cache = *origins](const Extent& extent, const std::string& why_bad) {
          if (why_bad.empty()) return;
          spdlog::warn("event=cached_extent_bad error=\"{}\"", why_bad);
          cache.Discard(extent);
        }));
}

Result<void> Server::Impl::StartDrains() {
  const auto& wanted = options.disks.drained;
  std::vector<Disk*> disks;
  for (const DiskId& id : wanted) {
    const auto found = std::ranges::find(
        extents->disks(), id, [](const auto& disk) -> const DiskId& { return disk->id(); });
    if (found == extents->disks().end())
      return Error{ErrorCode::kConflict, "--drain-disk " + Hex(id) +
                                             ": no such disk of this daemon is there; the log "
                                             "names the ids of those that are (event=disk)"};
    disks.push_back(found->get());
  }
  if (disks.size() >= extents->disks().size())
    return disks.empty() ? Result<void>()
                         : Error{ErrorCode::kConflict,
                                 "--drain-disk: no disk is left that takes the extents; add one "
                                 "with --data"};
  for (Disk* const disk : disks) {
    spdlog::info("event=disk_draining id={} extents={}", Hex(disk->id()),
                 disk->totals().extent_count.load());
    drains.push_back(std::make_unique<DiskDrain>(
        *extents, *disk, DiskDrain::Options{},
        DiskDrain::Told{[](const Extent& extent, const Error& why) {
                          spdlog::error("event=extent_not_moved extent={} error=\"{}\"",
                                        extent.disk->PathOf(extent.id).string(), why.message);
                        },
                        [](const Disk& drained) {
                          spdlog::info("event=disk_drained id={} data={}", Hex(drained.id()),
                                       drained.folder().parent_path().string());
                        }}));
  }
  return {};
}

void Server::Impl::NoteFailedWorker() {
  const std::uint32_t count = failed_worker_count.fetch_add(1) + 1;
  if (count == metrics.size() && options.on_failure) options.on_failure();
}

// Not where it could take the room of a deletion: what is read twice then is no harm.
void Server::Impl::SaveScrub(const std::string& key, const Scrubber::Position& position) {
  if (!home_disk->reserve().is_whole() || !home_disk->writes().CheckWritable()) return;
  const auto saved = guarded_meta->TryCommit({{}, {{key, position.Encode()}}, {}});
  if (!saved) spdlog::warn("event=scrub_not_saved error=\"{}\"", saved.error().message);
}

// A disk that was full may have room again, which others have made.
void Server::Impl::LookForRoom(Disk& disk) {
  disk.RefreshSpace();
  if (disk.space().free_bytes >= kExtentSizeMax && &disk.writes() != &home_disk->writes())
    disk.writes().NoteSuccess();
}

// A disk that hangs keeps its own extents, and none of another disk.
void Server::Impl::StartUpkeep() {
  const auto add = [this](JobPool::Strand& strand, std::function<Result<std::uint64_t>()> work) {
    upkeep.push_back(std::make_unique<Upkeep>(strand, std::move(work)));
  };
  if (origins)
    add(jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
      origins->Tend();
      return 0;
    });
  for (const auto& disk : extents->disks())
    add(jobs->AddUpkeep(), [this, &disk = *disk]() -> Result<std::uint64_t> {
      LookForRoom(disk);
      if (!catalog) return 0;
      return catalog->UnlinkOn(disk);
    });
  add(jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
    home_disk->Look();
    return 0;
  });
  if (!catalog) return;
  add(jobs->upkeep(), [this]() -> Result<std::uint64_t> {
    FFR_TRY(catalog->GiveUpUploads(Clock::now()));
    return 0;
  });
  add(jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
    FFR_TRY(catalog->ForgetUnlinked());
    return 0;
  });
}

// Also of a node, which keeps there what it knows of its cluster.
void Server::Impl::LogWhetherMetadataAnswers() {
  const auto answers = home_disk->CheckAnswers();
  if (std::exchange(metadata_answers, bool{answers}) == bool{answers}) return;
  if (answers)
    spdlog::info("event=metadata_answers");
  else
    spdlog::error("event=metadata_hangs error=\"{}\"", answers.error().message);
}

void Server::Impl::Collect() {
  LogWhetherMetadataAnswers();
  for (const auto& part : upkeep) {
    // One at a time: the disk may be slower than the clock.
    if (part->is_running.exchange(true)) continue;
    jobs->Post(part->strand, [&part = *part] {
      const auto unlinked = part.work();
      if (!unlinked)
        spdlog::error("event=collect_failed error=\"{}\"", unlinked.error().message);
      else if (unlinked.value() > 0)
        spdlog::info("event=collected extents={}", unlinked.value());
      part.is_running = false;
    });
  }
}

bool Server::Impl::Stop(Clock::time_point deadline) {
  auto ready = State::kReady;
  state.compare_exchange_strong(ready, State::kDraining);
  if (acceptor.joinable()) {
    stop_accepting.Ring();
    acceptor.join();
  }
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
  impl->RefreshTls();
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
std::string_view Server::authentication() const noexcept { return impl_->Authentication(); }
const Catalog::Report& Server::catalog_report() const noexcept { return impl_->catalog->report(); }
const ExtentStore::ScanReport& Server::scan_report() const noexcept {
  return impl_->extents->scan_report();
}
bool Server::Stop(Clock::time_point deadline) { return impl_->Stop(deadline); }

}  // namespace ffrecord::server
