#include "server/service/core/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/protocol/messages.h"
#include "server/service/access/local_tickets.h"
#include "server/service/access/tokens.h"
#include "server/service/admin/admin_server.h"
#include "server/service/admin/metrics_text.h"
#include "server/service/catalog/disk_members.h"
#include "server/service/core/connection_count.h"
#include "server/service/core/job_pool.h"
#include "server/service/core/worker.h"
#include "server/service/metrics.h"
#include "server/service/read_ahead/read_ahead.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kScrubKey = "scrub";  // In the metadata: how far the scrubber has come.
constexpr auto kCollectInterval = std::chrono::milliseconds(500);
// While descriptors are exhausted: a pause, not a spin.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::uint32_t kRetryAfterMs = 1000;
// Lines of one kind in the log at start; the count is told as well.
constexpr std::size_t kExamplesMax = 10;
// On the dashboard; the count of all is a metric.
constexpr std::uint32_t kDatasetsShown = 200;

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

std::string_view AuthenticationOf(const Server::Options& options) {
  const bool wants_tokens = !options.token_keys.empty();
  if (options.tls.authorities.empty()) return wants_tokens ? "tokens" : "none";
  return wants_tokens ? "certificates,tokens" : "certificates";
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

// Of each file system once, though several folders are on it.
void AddSpace(MetricsView& view, std::span<const fs::path> folders) {
  std::set<dev_t> seen;
  for (const fs::path& folder : folders) {
    struct stat status {};
    struct statvfs disk {};
    if (::stat(folder.c_str(), &status) != 0 || !seen.insert(status.st_dev).second) continue;
    if (::statvfs(folder.c_str(), &disk) != 0) continue;
    view.disk_free_bytes += std::uint64_t{disk.f_bavail} * disk.f_frsize;
    view.disk_size_bytes += std::uint64_t{disk.f_blocks} * disk.f_frsize;
  }
}

std::string_view StateOf(const Disk& disk) {
  switch (disk.writes().report().state) {
    case WriteHealth::State::kFailed:
      return "failed";
    case WriteHealth::State::kFull:
      return "full";
    case WriteHealth::State::kGood:
      break;
  }
  return disk.reads().is_suspect() ? "suspect" : "good";
}

DiskView ViewOf(const Disk& disk, std::span<const DiskView> others) {
  DiskView view;
  view.name = disk.folder().parent_path().string();
  for (char& c : view.name)
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  if (std::ranges::find(others, view.name, &DiskView::name) != others.end())
    view.name = Hex(disk.id());
  view.state = StateOf(disk);
  const Disk::Space space = disk.space();
  view.free_bytes = space.free_bytes;
  view.size_bytes = space.size_bytes;
  view.extent_count = disk.totals().extent_count;
  view.extent_bytes = disk.totals().size_bytes;
  view.bad_extent_count = disk.totals().bad_count;
  view.read_error_count = disk.reads().error_count();
  view.slow_count = disk.reads().slow_count();
  return view;
}

void LogRail(const Result<std::shared_ptr<net::RdmaDevice>>& device) {
  if (!device)
    return spdlog::warn("event=rdma_rail_unavailable error=\"{}\"", device.error().message);
  const net::RdmaPort& port = device.value()->port();
  spdlog::info("event=rdma_offered device={} port={} gid={} mtu={}", port.device, port.port,
               port.gid, port.mtu_bytes);
}

}  // namespace

struct Server::Impl {
  explicit Impl(Options given, net::TcpListener at)
      : options(std::move(given)), listener(std::move(at)) {}
  ~Impl();

  Result<void> StartAdmin();
  MetricsView View() const;
  WriteHealth::Report Writes() const;
  std::string Remark() const;
  Result<std::string> DatasetsJson();
  Result<void> Open();
  Result<ExtentStore::Disks> OpenDisks();
  void KeepRoomAtHome();
  Result<void> StartWorkers();
  Result<void> ListenLocally(std::uint64_t epoch);
  Result<void> OpenRdma();
  void Accept();
  void Take(Result<std::unique_ptr<net::Endpoint>> accepted);
  void RefreshTls();
  void Give(std::unique_ptr<net::Endpoint> endpoint);
  void NoteFailedWorker();
  void TurnAway(net::Endpoint& endpoint);
  Result<void> StartScrubbers();
  void SaveScrub(const std::string& key, const Scrubber::Position& position);
  void Collect();
  bool Stop(Clock::time_point deadline);

  const Options options;
  net::TcpListener listener;
  std::optional<net::LocalListener> local_listener;
  std::unique_ptr<LocalTickets> local_tickets;  // With the listener.
  std::unique_ptr<net::RdmaRails> rdma;         // Null: not offered.
  std::string transports;
  std::unique_ptr<net::TlsContext> tls;  // The acceptor's, once that runs.
  std::atomic<std::chrono::system_clock::time_point> certificate_expires{};
  fs::path home;  // Where the metadata is.
  UniqueFd home_lock;
  std::vector<FoundFolder> folders;  // As they were found before any was written to.
  std::vector<UniqueFd> locks;       // Of the others.
  WriteHealth own_home_writes;
  // Of the home's disk: that one's, if it holds extents too.
  WriteHealth* home_writes = &own_home_writes;
  EventFd stop_accepting;
  std::optional<TokenKeys> token_keys;
  std::unique_ptr<MetaStore> meta;
  std::unique_ptr<ExtentStore> extents;
  std::optional<DiskReserve> reserve;
  std::unique_ptr<Catalog> catalog;
  std::vector<std::unique_ptr<Scrubber>> scrubbers;  // One for each disk.
  ReadAhead::Metrics read_ahead_metrics;
  std::unique_ptr<ReadAhead> read_ahead;
  std::unique_ptr<PlannedDatasets> planned;
  std::string engine_name;
  // What is above is there, and stays, once this is not kStarting: the admin server's word.
  enum class State : std::uint8_t { kStarting, kReady, kDraining };
  std::atomic<State> state{State::kStarting};
  const Clock::time_point started = Clock::now();
  std::vector<std::unique_ptr<WorkerMetrics>> metrics;  // One for each worker.
  std::atomic<std::uint32_t> failed_worker_count{0};
  Counter connections_refused;
  ConnectionCount connection_count;
  std::atomic<bool> is_collecting{false};
  std::unique_ptr<JobPool> jobs;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<AdminServer> admin;
  std::thread acceptor;
  // The acceptor's own:
  std::size_t next_worker = 0;
  bool is_paused = false;  // Descriptors are exhausted.
};

// --- What operators look at ----------------------------------------------------------------------

Result<void> Server::Impl::StartAdmin() {
  if (!options.admin) return {};
  AdminServer::Pages pages;
  pages.metrics = [this] { return MetricsText(View()); };
  pages.datasets = [this] { return DatasetsJson(); };
  pages.token = FFR_TRY(ReadAdminToken(options.admin_token_file));
  pages.remark = [this]() -> std::string {
    if (state.load(std::memory_order_acquire) == State::kStarting) return "";
    return Remark();
  };
  pages.not_ready = [this]() -> std::string {
    switch (state.load(std::memory_order_acquire)) {
      case State::kStarting:
        return "starting";
      case State::kDraining:
        return "draining";
      case State::kReady:
        break;
    }
    const std::uint32_t failed_count = failed_worker_count.load();
    if (failed_count == 0) return "";
    return fmt::format(
        "{} of {} event loops have failed; see event=engine_failed in the log, and "
        "start the daemon again",
        failed_count, metrics.size());
  };
  admin = FFR_TRY(AdminServer::Start(*options.admin, std::move(pages)));
  return {};
}

// Of the daemon: as that of the metadata, and while that is good, as the best of the disks.
WriteHealth::Report Server::Impl::Writes() const {
  WriteHealth::Report report = home_writes->report();
  if (report.state != WriteHealth::State::kGood) return report;
  for (const auto& disk : extents->disks()) {
    auto of_disk = disk->writes().report();
    if (of_disk.state == WriteHealth::State::kGood) return of_disk;
    const bool is_better =
        report.why.empty() || static_cast<int>(of_disk.state) < static_cast<int>(report.state);
    if (is_better) report = std::move(of_disk);
  }
  return report;
}

std::string Server::Impl::Remark() const {
  std::vector<std::string> remarks;
  const auto add = [&](const WriteHealth::Report& writes) {
    if (writes.state == WriteHealth::State::kFull) remarks.push_back("disk full: " + writes.why);
    if (writes.state == WriteHealth::State::kFailed) remarks.push_back("read-only: " + writes.why);
  };
  if (home_writes == &own_home_writes) add(own_home_writes.report());
  for (const auto& disk : extents->disks()) add(disk->writes().report());
  if (const std::uint64_t count = extents->missing_disk_count(); count > 0)
    remarks.push_back("missing disks: " + std::to_string(count));
  if (const std::uint64_t count = extents->totals().bad_count; count > 0)
    remarks.push_back("damaged extents: " + std::to_string(count));
  std::string text;
  for (const std::string& remark : remarks) text += (text.empty() ? "" : "; ") + remark;
  return text;
}

MetricsView Server::Impl::View() const {
  MetricsView view;
  view.version = options.version;
  view.uptime = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started);
  view.authentication = AuthenticationOf(options);
  view.certificate_expires = certificate_expires.load(std::memory_order_relaxed);
  view.connection_count_max = options.connection_count_max;
  AddSpace(view, options.data);
  const State now = state.load(std::memory_order_acquire);
  view.state = now == State::kReady ? "ready" : now == State::kDraining ? "draining" : "starting";
  if (now == State::kStarting) return view;
  view.engine = engine_name;
  view.failed_worker_count = failed_worker_count.load();
  view.held_bytes_max = options.held_bytes_max * workers.size();
  view.connections_refused = connections_refused.value();
  view.dataset_count = catalog->name_count();
  const auto totals = extents->totals();
  view.extent_count = totals.extent_count;
  view.extent_bytes = totals.size_bytes;
  view.bad_extent_count = totals.bad_count;
  view.writes = Writes().state;
  view.missing_disk_count = extents->missing_disk_count();
  view.scrub_pass_count = UINT64_MAX;
  for (std::size_t i = 0; i < scrubbers.size(); ++i) {
    const Scrubber& scrubber = *scrubbers[i];
    view.scrub_read_bytes += scrubber.read_bytes();
    view.scrub_bytes_per_s += scrubber.bytes_per_s();
    // Of all disks: as that with the fewest, and the oldest.
    view.scrub_pass_count = std::min(view.scrub_pass_count, scrubber.pass_count());
    view.scrub_age = std::max(view.scrub_age, scrubber.age());
    view.disks.push_back(ViewOf(*extents->disks()[i], view.disks));
    view.disks.back().scrub_age = scrubber.age();
  }
  // Prefixes are names, or nearly so.
  if (!token_keys || !options.admin_token_file.empty()) view.quotas = catalog->Usages();
  view.workers = metrics;
  view.read_ahead = &read_ahead_metrics;
  view.read_ahead_bytes_max = options.read_ahead_bytes_max;
  return view;
}

// Names have no characters that JSON would want escaped.
Result<std::string> Server::Impl::DatasetsJson() {
  if (state.load(std::memory_order_acquire) == State::kStarting)
    return Error{ErrorCode::kUnavailable, "starting"};
  // What names there are only a token tells.
  if (token_keys && options.admin_token_file.empty())
    return Error{ErrorCode::kDenied, "names are shown only to clients with a token"};
  const auto listed = FFR_TRY(catalog->List({kDatasetsShown, "", ""}));
  std::string json = "{\"datasets\": [";
  for (const auto& entry : listed.entries)
    json += fmt::format("{}{{\"name\": \"{}\", \"size_bytes\": {}, \"file_count\": {}}}",
                        json.ends_with('[') ? "" : ", ", entry.name, entry.size_bytes,
                        entry.file_count);
  return json + (listed.more ? "], \"more\": true}" : "], \"more\": false}");
}

// --- Start and stop ------------------------------------------------------------------------------

Result<void> Server::Impl::Open() {
  if (!options.token_keys.empty()) token_keys = FFR_TRY(TokenKeys::Load(options.token_keys));
  auto database = FFR_TRY(OpenSqliteStore(home / "metadata.sqlite"));
  meta = FFR_TRY(MakeCachedStore(std::move(database)));
  reserve.emplace(home / "reserve", options.reserve_bytes);
  auto published = FFR_TRY(ReadPublishedNames(*meta));
  auto disks = FFR_TRY(OpenDisks());
  extents = FFR_TRY(ExtentStore::Open(std::move(disks), published.Extents()));
  KeepRoomAtHome();
  catalog = FFR_TRY(Catalog::Open(*meta, *extents,
                                  {options.upload_grace, options.quotas, &*reserve, home_writes},
                                  std::move(published)));
  LogFindings(extents->scan_report(), catalog->report());
  stop_accepting = FFR_TRY(EventFd::Make());
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
    if (fs::equivalent(disk->folder().parent_path(), home, ignored)) home_writes = &disk->writes();
    if (extents->disks().size() > 1) disk->set_kept_bytes(kTimesReserve * reserve->size_bytes());
  }
}

Result<void> Server::Impl::StartWorkers() {
  jobs = std::make_unique<JobPool>();
  read_ahead = std::make_unique<ReadAhead>(options.read_ahead_bytes_max, read_ahead_metrics);
  planned = std::make_unique<PlannedDatasets>(*catalog, *extents);
  const std::uint32_t count = options.core_count > 0
                                  ? options.core_count
                                  : std::max(std::thread::hardware_concurrency(), 1U);
  const std::uint64_t epoch = RandomNumber();
  FFR_TRY(ListenLocally(epoch));
  FFR_TRY(OpenRdma());
  transports =
      std::string(tls ? "tls" : "tcp") + (local_listener ? ",shm" : "") + (rdma ? ",rdma" : "");
  const DiskReader::Bounds bounds{OpenFilesMax(count), options.mapped_count_max / count,
                                  options.held_bytes_max, extents->disks().size()};
  for (std::uint32_t i = 0; i < count; ++i) metrics.push_back(std::make_unique<WorkerMetrics>());
  for (std::uint32_t i = 0; i < count; ++i) {
    const Worker::Context context{.catalog = *catalog,
                                  .extents = *extents,
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
                                  .connection_count = connection_count,
                                  .disk_bounds = bounds,
                                  .on_failure = [this] { NoteFailedWorker(); }};
    auto engine = FFR_TRY(options.make_engine(DiskReader::kDepth));
    engine_name = engine->name();
    workers.push_back(FFR_TRY(Worker::Start(context, std::move(engine))));
  }
  FFR_TRY(StartScrubbers());
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
  return {};
}

Result<void> Server::Impl::ListenLocally(std::uint64_t epoch) {
  const bool is_wanted = options.transport == Options::Transport::kAuto ||
                         options.transport == Options::Transport::kShm;
  if (!is_wanted) return {};
  const auto machine = MachineIdentity();
  auto local = machine ? net::LocalListener::Listen(net::LocalSocketName(epoch))
                       : Error{ErrorCode::kIo, "cannot tell this machine from others; mount /proc"};
  if (local) {
    local_listener = std::move(local).value();
    local_tickets = std::make_unique<LocalTickets>(*machine);
    return {};
  }
  if (options.transport == Options::Transport::kShm) return std::move(local).error();
  spdlog::warn("event=shm_unavailable error=\"{}\"", local.error().message);
  return {};
}

Result<void> Server::Impl::OpenRdma() {
  const bool is_demanded = options.transport == Options::Transport::kRdma;
  if (!is_demanded && options.transport != Options::Transport::kAuto) return {};
  if (tls) {
    if (!is_demanded) return {};
    return Error{ErrorCode::kInvalidArgument,
                 "RDMA does not work with TLS, because it is not encrypted: leave out one of them"};
  }
  auto rails = net::RdmaRails::Open(options.rdma);
  if (!rails) {
    if (is_demanded) return std::move(rails).error();
    // That there is none is the rule, and nothing to warn of.
    spdlog::info("event=rdma_unavailable reason=\"{}\"", rails.error().message);
    return {};
  }
  rdma = std::move(rails).value();
  for (std::size_t i = 0; i < rdma->count(); ++i) LogRail((*rdma)[i].Device());
  return {};
}

void Server::Impl::Accept() {
  auto next_collect = Clock::now();
  for (;;) {
    // A connection may bring descriptors that block: none while too many of those wait.
    const bool takes_local = local_listener && !ForeignFd::is_congested();
    const int local_fd = takes_local ? local_listener->fd() : -1;
    std::array<pollfd, 3> waited{pollfd{stop_accepting.fd(), POLLIN, 0},
                                 pollfd{is_paused ? -1 : listener.fd(), POLLIN, 0},
                                 pollfd{is_paused ? -1 : local_fd, POLLIN, 0}};
    const auto wait = is_paused ? kAcceptPause : kCollectInterval;
    (void)::poll(waited.data(), waited.size(), static_cast<int>(wait.count()));
    if (waited[0].revents != 0) return;
    if (Clock::now() >= next_collect) {
      Collect();
      RefreshTls();
      next_collect = Clock::now() + kCollectInterval;
    }
    is_paused = false;
    if (waited[1].revents != 0) Take(listener.Accept(tls.get()));
    if (waited[2].revents != 0) Take(local_listener->Accept());
  }
}

void Server::Impl::Take(Result<std::unique_ptr<net::Endpoint>> accepted) {
  if (!accepted) {
    spdlog::warn("event=accept_failed error=\"{}\"", accepted.error().message);
    is_paused = true;
  } else if (!accepted.value()) {
    return;
  } else if (!connection_count.Add(options.connection_count_max)) {
    connections_refused.Add();
    TurnAway(*accepted.value());
  } else {
    Give(std::move(accepted).value());
  }
}

void Server::Impl::Give(std::unique_ptr<net::Endpoint> endpoint) {
  for (std::size_t i = 0; i < workers.size(); ++i)
    if (workers[next_worker++ % workers.size()]->Adopt(endpoint)) return;
  TurnAway(*endpoint);
  connection_count.Remove();
}

void Server::Impl::NoteFailedWorker() {
  const std::uint32_t count = failed_worker_count.fetch_add(1) + 1;
  if (count == metrics.size() && options.on_failure) options.on_failure();
}

void Server::Impl::RefreshTls() {
  if (!tls) return;
  const auto refreshed = tls->Refresh();
  certificate_expires.store(tls->expires(), std::memory_order_relaxed);
  if (!refreshed)
    spdlog::error("event=tls_refused error=\"{}\"", refreshed.error().message);
  else if (refreshed.value())
    spdlog::info("event=tls_renewed certificate={}", options.tls.certificate.string());
}

void Server::Impl::TurnAway(net::Endpoint& endpoint) {
  // To break its handshake off says the same.
  if (endpoint.transport() == "tls") return;
  // One frame into an empty socket: sent at once, or not at all.
  if (endpoint.Send(MakeHeader(net::FrameType::kBusy, 1), net::Busy{kRetryAfterMs}.Encode(), {}))
    (void)endpoint.Poll();
}

// Not where it could take the room of a deletion: what is read twice then is no harm.
void Server::Impl::SaveScrub(const std::string& key, const Scrubber::Position& position) {
  if (!reserve->is_whole() || !home_writes->CheckWritable()) return;
  const auto saved = home_writes->Noted(meta->TryCommit({{}, {{key, position.Encode()}}, {}}));
  if (!saved) spdlog::warn("event=scrub_not_saved error=\"{}\"", saved.error().message);
}

void Server::Impl::Collect() {
  // One at a time: the disk may be slower than the clock.
  if (is_collecting.exchange(true)) return;
  jobs->Post(jobs->upkeep(), [this] {
    const auto unlinked = catalog->Collect(Catalog::Clock::now());
    if (!unlinked)
      spdlog::error("event=collect_failed error=\"{}\"", unlinked.error().message);
    else if (unlinked.value() > 0)
      spdlog::info("event=collected extents={}", unlinked.value());
    is_collecting = false;
  });
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
  return (!jobs || jobs->WaitIdle(deadline)) && all_closed;
}

Server::Impl::~Impl() {
  admin.reset();  // It looks at all the others.
  (void)Stop(Clock::now());
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
  // Before the scan, which may take long: a port in use is told at once, and early clients wait.
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
std::string_view Server::authentication() const noexcept {
  return AuthenticationOf(impl_->options);
}
const Catalog::Report& Server::catalog_report() const noexcept { return impl_->catalog->report(); }
const ExtentStore::ScanReport& Server::scan_report() const noexcept {
  return impl_->extents->scan_report();
}
bool Server::Stop(Clock::time_point deadline) { return impl_->Stop(deadline); }

}  // namespace ffrecord::server
