#include "server/service/core/server_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <set>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/json_text.h"

namespace ffrecord::server {
namespace {

// On the dashboard; the count of all is a metric.
constexpr std::uint32_t kDatasetsShown = 200;

// Counts each file system once, though several disks are on it.
void AddSpace(MetricsView& view, std::span<const std::unique_ptr<Disk>> disks) {
  std::set<std::uint64_t> seen;
  for (const auto& disk : disks) {
    if (!seen.insert(disk->device()).second) continue;
    const Disk::Space space = disk->space();
    view.disk_free_bytes += space.unused_bytes;
    view.disk_size_bytes += space.size_bytes;
  }
}

std::string_view StateOf(const Disk& disk) {
  if (disk.drain() == Disk::Drain::kDrained) return "drained";
  switch (disk.writes().report().state) {
    case WriteHealth::State::kFailed:
      return "failed";
    case WriteHealth::State::kFull:
      return "full";
    case WriteHealth::State::kGood:
      break;
  }
  if (disk.is_draining()) return "draining";
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

}  // namespace

Result<void> Server::Impl::StartAdmin() {
  if (!options.admin) return {};
  AdminServer::Pages pages;
  pages.metrics = [this] { return MetricsText(View()); };
  pages.datasets = [this] { return DatasetsJson(); };
  pages.cluster = [this] { return ClusterJson(); };
  pages.cluster_slots = [this] { return ClusterSlotsJson(); };
  pages.cluster_plan = [this](const AdminServer::PlannedChange& change) {
    return ClusterPlanJson({change.are_down_lost, change.without});
  };
  pages.cluster_lost = [this] { return ClusterLostJson(); };
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

std::string_view Server::Impl::Authentication() const {
  const bool wants_tokens = !options.token_keys.empty();
  if (options.tls.authorities.empty()) return wants_tokens ? "tokens" : "none";
  return wants_tokens ? "certificates,tokens" : "certificates";
}

// The daemon's report: that of the metadata, and while that is good, the best of the disks.
WriteHealth::Report Server::Impl::Writes() const {
  WriteHealth::Report report = home_disk->writes().report();
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
  if (home_disk->is_apart()) add(home_disk->writes().report());
  for (const auto& disk : extents->disks()) add(disk->writes().report());
  if (const auto answers = home_disk->CheckAnswers(); !answers)
    remarks.push_back(answers.error().message);
  if (const std::uint64_t count = extents->missing_disk_count(); count > 0)
    remarks.push_back("missing disks: " + std::to_string(count));
  if (const std::uint64_t count = extents->totals().bad_count; count > 0)
    remarks.push_back("damaged extents: " + std::to_string(count));
  std::string text;
  for (const std::string& remark : remarks) text += (text.empty() ? "" : "; ") + remark;
  return text;
}

void Server::Impl::AddCluster(MetricsView& view) const {
  const auto status = cluster->GetStatus();
  if (!status) return;
  view.cluster = {.is_leased = status.value().is_leased,
                  .is_leading = status.value().is_leading,
                  .is_from_cache = status.value().state->is_from_cache,
                  .is_moving = status.value().is_moving,
                  .is_frozen = status.value().is_frozen,
                  .map_version = status.value().state->map_version(),
                  .silent_for = status.value().silent_for.value_or(std::chrono::milliseconds(0)),
                  .lost_name_count = status.value().lost_name_count,
                  .missing_count = status.value().extents.missing_count,
                  .missing_bytes = status.value().extents.missing_bytes,
                  .unheld_count = status.value().unheld_count,
                  .surplus_count = status.value().extents.surplus_count,
                  .unexplained_count = status.value().extents.unexplained_count,
                  .adopting_count = status.value().adopting_count,
                  .refused_count = status.value().refused_count,
                  .pulled_count = status.value().pulled_count,
                  .pulled_bytes = status.value().pulled_bytes,
                  .rebuilt_count = status.value().rebuilt_count,
                  .brought_count = status.value().stripe_reads.brought_count,
                  .brought_failure_count = status.value().stripe_reads.failed_count,
                  .dropped_count = status.value().dropped_count,
                  .doubted_damaged_count = status.value().stripe_reads.damaged_count,
                  .healed_count = status.value().healed_count};
  for (const auto& node : status.value().state->nodes) {
    if (node.state == net::MemberState::kWaiting)
      ++view.cluster->waiting_count;
    else if (node.state != net::MemberState::kOut)
      ++(node.is_up ? view.cluster->up_count : view.cluster->down_count);
  }
}

MetricsView Server::Impl::View() const {
  MetricsView view;
  view.version = options.version;
  view.uptime = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started);
  view.authentication = Authentication();
  view.certificate_expires = certificate_expires.load(std::memory_order_relaxed);
  view.connection_count_max = options.connection_count_max;
  const State now = state.load(std::memory_order_acquire);
  view.state = now == State::kReady ? "ready" : now == State::kDraining ? "draining" : "starting";
  if (now == State::kStarting) return view;
  AddSpace(view, extents->disks());
  view.engine = engine_name;
  view.failed_worker_count = failed_worker_count.load();
  view.held_bytes_max = options.held_bytes_max * workers.size();
  view.connections_refused = connections_refused.value();
  view.dataset_count = names->name_count();
  const auto totals = extents->totals();
  view.extent_count = totals.extent_count;
  view.extent_bytes = totals.size_bytes;
  view.bad_extent_count = totals.bad_count;
  view.writes = Writes().state;
  view.metadata_wait = std::chrono::duration<double>(home_disk->waiting_time());
  view.missing_disk_count = extents->missing_disk_count();
  view.scrub_pass_count = UINT64_MAX;
  for (std::size_t i = 0; i < scrubbers.size(); ++i) {
    const Scrubber& scrubber = *scrubbers[i];
    view.scrub_read_bytes += scrubber.read_bytes();
    view.scrub_bytes_per_s += scrubber.bytes_per_s();
    // Over all disks: the fewest passes, and the oldest.
    view.scrub_pass_count = std::min(view.scrub_pass_count, scrubber.pass_count());
    view.scrub_age = std::max(view.scrub_age, scrubber.age());
    view.disks.push_back(ViewOf(*extents->disks()[i], view.disks));
    view.disks.back().scrub_age = scrubber.age();
  }
  // Prefixes are names, or nearly so.
  if (!token_keys || !options.admin_token_file.empty()) {
    view.quotas = names->Usages();
    if (!options.tenant_weights.empty())
      for (const auto& [prefix, share] : tenant_shares.all())
        view.tenants.push_back(
            {prefix, share.weight, static_cast<double>(share.disk_us.value()) / 1e6});
  }
  if (cluster) AddCluster(view);
  if (origins && !options.cluster->origins.reader.allowed.empty()) {
    const OriginCache::Counts counts = origins->counts();
    view.origins = {counts.size_bytes,   counts.fetched_count, counts.fetched_bytes,
                    counts.failed_count, counts.evicted_count, counts.damaged_count,
                    counts.waiting};
  }
  view.workers = metrics;
  view.read_ahead = &read_ahead_metrics;
  view.read_ahead_bytes_max = options.read_ahead_bytes_max;
  return view;
}

// Only a client with a token may see which names there are.
Result<void> Server::Impl::MayShowNames() const {
  if (!token_keys || !options.admin_token_file.empty()) return {};
  return Error{ErrorCode::kDenied, "names are shown only to clients with a token"};
}

// Names have no characters that JSON would want escaped.
Result<std::string> Server::Impl::DatasetsJson() {
  if (state.load(std::memory_order_acquire) == State::kStarting)
    return Error{ErrorCode::kUnavailable, "starting"};
  FFR_TRY(MayShowNames());
  std::promise<Result<net::ListReply>> promise;
  names->List({kDatasetsShown, "", "", /*accepts_old=*/true},
              [&](Result<net::ListReply> reply) { promise.set_value(std::move(reply)); });
  const auto listed = FFR_TRY(promise.get_future().get());
  std::string json = "{\"datasets\": [";
  for (const auto& entry : listed.entries)
    json += fmt::format("{}{{\"name\": \"{}\", \"size_bytes\": {}, \"file_count\": {}}}",
                        json.ends_with('[') ? "" : ", ", entry.name, entry.size_bytes,
                        entry.file_count);
  return json + (listed.more ? "], \"more\": true}" : "], \"more\": false}");
}

Result<ClusterService*> Server::Impl::ClusterOrError() const {
  if (state.load(std::memory_order_acquire) == State::kStarting)
    return Error{ErrorCode::kUnavailable, "starting"};
  if (!cluster) return Error{ErrorCode::kNotFound, "this daemon is not one of a cluster"};
  return cluster.get();
}

// To those who may see metrics: names are not in it.
Result<std::string> Server::Impl::ClusterJson() { return StatusJson(*FFR_TRY(ClusterOrError())); }

Result<std::string> Server::Impl::ClusterSlotsJson() {
  return SlotsJson(*FFR_TRY(ClusterOrError()));
}

Result<std::string> Server::Impl::ClusterPlanJson(const cluster::PlannedChange& change) {
  return PlanJson(*FFR_TRY(ClusterOrError()), change);
}

Result<std::string> Server::Impl::ClusterLostJson() {
  ClusterService* const service = FFR_TRY(ClusterOrError());
  FFR_TRY(MayShowNames());
  return LostJson(*service);
}

}  // namespace ffrecord::server
