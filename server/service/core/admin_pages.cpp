#include "server/service/core/admin_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/json_text.h"
#include "server/service/cluster/cluster_reports.h"

namespace ffrecord::server {
namespace {

using State = ServerParts::State;

// On the dashboard; the count of all is a metric.
constexpr std::uint32_t kDatasetsShown = 200;

// The space of the disks' file systems. Each of these counts once, though several disks are on it.
Disk::Space SpaceOf(std::span<const std::unique_ptr<Disk>> disks) {
  Disk::Space sum;
  std::set<std::uint64_t> seen;
  for (const auto& disk : disks) {
    if (!seen.insert(disk->device()).second) continue;
    const Disk::Space space = disk->space();
    sum.unused_bytes += space.unused_bytes;
    sum.size_bytes += space.size_bytes;
  }
  return sum;
}

// Suspect: a moment ago it failed a read, or was slow. Full and failed: it takes no writes.
constexpr std::array<std::string_view, 6> kDiskStates{"good",   "suspect",  "full",
                                                      "failed", "draining", "drained"};

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

// The label of each disk: its name, or its id if another disk has that name.
std::vector<std::string> LabelsOf(std::span<const std::unique_ptr<Disk>> disks) {
  std::vector<std::string> labels;
  for (const auto& disk : disks) {
    std::string label = Label("disk", disk->name());
    if (std::ranges::find(labels, label) != labels.end()) label = Label("disk", Hex(disk->id()));
    labels.push_back(std::move(label));
  }
  return labels;
}

// The scrubbing of all disks together: the fewest passes, and the oldest.
struct Scrubbing {
  std::uint64_t read_bytes = 0, bytes_per_s = 0, pass_count = UINT64_MAX;
  std::chrono::seconds age{};
};

Scrubbing SumOf(std::span<const std::unique_ptr<Scrubber>> scrubbers) {
  Scrubbing sum;
  for (const auto& scrubber : scrubbers) {
    sum.read_bytes += scrubber->read_bytes();
    sum.bytes_per_s += scrubber->bytes_per_s();
    sum.pass_count = std::min(sum.pass_count, scrubber->pass_count());
    sum.age = std::max(sum.age, scrubber->age());
  }
  return sum;
}

void ShowQuotas(std::span<const Names::Usage> quotas, MetricsPage& page) {
  if (quotas.empty()) return;
  page.Family("ffrecord_quota_bytes", "Maximum size of all names under a prefix.");
  for (const auto& one : quotas) page.Row(Label("prefix", one.prefix), one.quota_bytes);
  page.Family("ffrecord_quota_used_bytes", "Size of all names under a prefix.");
  for (const auto& one : quotas) page.Row(Label("prefix", one.prefix), one.used_bytes);
}

void ShowTenants(const TenantShares& shares, MetricsPage& page) {
  page.Family("ffrecord_tenant_weight",
              "Share of a disk's time that each tenant under a prefix gets.");
  for (const auto& [prefix, share] : shares.all()) page.Row(Label("prefix", prefix), share.weight);
  page.Family("ffrecord_tenant_disk_seconds_total",
              "Time of disks' threads that tenants under a prefix used.");
  for (const auto& [prefix, share] : shares.all())
    page.Row(Label("prefix", prefix), static_cast<double>(share.disk_us.value()) / 1e6);
}

}  // namespace

AdminServer::Pages AdminPages::Make() const {
  AdminServer::Pages pages;
  pages.metrics = [this] { return Metrics(); };
  pages.datasets = [this] { return Datasets(); };
  // To those who may see metrics: names are not in these.
  pages.cluster = [this]() -> Result<std::string> {
    return StatusJson(*FFR_TRY(ClusterOrError()));
  };
  pages.cluster_slots = [this]() -> Result<std::string> {
    return SlotsJson(*FFR_TRY(ClusterOrError()));
  };
  pages.cluster_plan = [this](const AdminServer::PlannedChange& change) -> Result<std::string> {
    return PlanJson(*FFR_TRY(ClusterOrError()), {change.are_down_lost, change.without});
  };
  pages.cluster_lost = [this] { return Lost(); };
  pages.remark = [this] { return is_starting() ? std::string() : Remark(); };
  pages.not_ready = [this] { return WhyNotReady(); };
  return pages;
}

bool AdminPages::is_starting() const {
  return parts_.state.load(std::memory_order_acquire) == State::kStarting;
}

std::string AdminPages::WhyNotReady() const {
  switch (parts_.state.load(std::memory_order_acquire)) {
    case State::kStarting:
      return "starting";
    case State::kDraining:
      return "draining";
    case State::kReady:
      break;
  }
  const std::uint32_t failed_count = parts_.failed_worker_count.load();
  if (failed_count == 0) return "";
  return fmt::format(
      "{} of {} event loops have failed; see event=engine_failed in the log, and "
      "start the daemon again",
      failed_count, parts_.metrics.size());
}

std::string_view AdminPages::Authentication() const {
  const bool wants_tokens = !parts_.options.token_keys.empty();
  if (parts_.options.tls.authorities.empty()) return wants_tokens ? "tokens" : "none";
  return wants_tokens ? "certificates,tokens" : "certificates";
}

// The daemon's report: that of the metadata, and while that is good, the best of the disks.
WriteHealth::Report AdminPages::Writes() const {
  WriteHealth::Report report = parts_.home_disk->writes().report();
  if (report.state != WriteHealth::State::kGood) return report;
  for (const auto& disk : parts_.extents->disks()) {
    auto of_disk = disk->writes().report();
    if (of_disk.state == WriteHealth::State::kGood) return of_disk;
    const bool is_better =
        report.why.empty() || static_cast<int>(of_disk.state) < static_cast<int>(report.state);
    if (is_better) report = std::move(of_disk);
  }
  return report;
}

std::string AdminPages::Remark() const {
  std::vector<std::string> remarks;
  const auto add = [&](const WriteHealth::Report& writes) {
    if (writes.state == WriteHealth::State::kFull) remarks.push_back("disk full: " + writes.why);
    if (writes.state == WriteHealth::State::kFailed) remarks.push_back("read-only: " + writes.why);
  };
  if (parts_.home_disk->is_apart()) add(parts_.home_disk->writes().report());
  for (const auto& disk : parts_.extents->disks()) add(disk->writes().report());
  if (const auto answers = parts_.home_disk->CheckAnswers(); !answers)
    remarks.push_back(answers.error().message);
  if (const std::uint64_t count = parts_.extents->missing_disk_count(); count > 0)
    remarks.push_back("missing disks: " + std::to_string(count));
  if (const std::uint64_t count = parts_.extents->totals().bad_count; count > 0)
    remarks.push_back("damaged extents: " + std::to_string(count));
  std::string text;
  for (const std::string& remark : remarks) text += (text.empty() ? "" : "; ") + remark;
  return text;
}

void AdminPages::ShowDaemon(MetricsPage& page, bool is_open) const {
  const auto since =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - parts_.started);
  const auto totals = is_open ? parts_.extents->totals() : ExtentStore::Totals{};
  const Scrubbing scrubbing = is_open ? SumOf(upkeep_.scrubbers()) : Scrubbing{.pass_count = 0};
  const auto writes = is_open ? Writes().state : WriteHealth::State::kGood;
  page.Family("ffrecord_build_info", "The version of the daemon.");
  page.Row(Label("version", parts_.options.version) + "," +
               Label("engine", is_open ? parts_.engine_name : "") + "," +
               Label("auth", Authentication()),
           1);
  page.Family("ffrecord_state", "1 for the current state.");
  const State now = is_open ? parts_.state.load(std::memory_order_acquire) : State::kStarting;
  page.Row(Label("state", "starting"), now == State::kStarting);
  page.Row(Label("state", "ready"), now == State::kReady);
  page.Row(Label("state", "draining"), now == State::kDraining);
  page.Value("ffrecord_workers_failed", "Event loops that have failed.",
             parts_.failed_worker_count.load());
  page.Value("ffrecord_uptime_seconds", "Time since start.", since.count());
  page.Value("ffrecord_datasets", "Published names.", is_open ? parts_.names->name_count() : 0);
  page.Value("ffrecord_extents", "Sealed extents.", totals.extent_count);
  page.Value("ffrecord_extent_bytes", "Bytes of sealed extents.", totals.size_bytes);
  page.Value("ffrecord_extents_bad", "Extents that failed their checksum.", totals.bad_count);
  page.Value("ffrecord_scrub_bytes_total", "Bytes checked by the scrubber.", scrubbing.read_bytes);
  page.Value("ffrecord_scrub_passes_total", "Complete passes of the scrubber.",
             scrubbing.pass_count);
  page.Value("ffrecord_scrub_rate_bytes", "Bytes per second that this pass of the scrubber checks.",
             scrubbing.bytes_per_s);
  page.Value("ffrecord_scrub_age_seconds",
             "Time since the last complete pass of the scrubber, or since the first began.",
             scrubbing.age.count());
  page.Family("ffrecord_read_only", "1 if no disk takes writes, by reason.");
  page.Row(Label("reason", "full"), writes == WriteHealth::State::kFull);
  page.Row(Label("reason", "failed"), writes == WriteHealth::State::kFailed);
  // Prefixes are names, or nearly so.
  const bool may_show_names =
      is_open && (!parts_.token_keys || !parts_.options.admin_token_file.empty());
  if (may_show_names) ShowQuotas(parts_.names->Usages(), page);
  page.Value(
      "ffrecord_metadata_wait_seconds", "How long the disk of the metadata has not answered.",
      is_open ? std::chrono::duration<double>(parts_.home_disk->waiting_time()).count() : 0.0);
  if (may_show_names && !parts_.options.tenant_weights.empty())
    ShowTenants(parts_.tenant_shares, page);
  const auto space = is_open ? SpaceOf(parts_.extents->disks()) : Disk::Space{};
  page.Value("ffrecord_disk_free_bytes", "Free space on the disks of the data folders.",
             space.unused_bytes);
  page.Value("ffrecord_disk_size_bytes", "Size of the disks of the data folders.",
             space.size_bytes);
}

void AdminPages::ShowDisks(MetricsPage& page, bool is_open) const {
  page.Value("ffrecord_disks_missing", "Disks of the daemon that are not there.",
             is_open ? parts_.extents->missing_disk_count() : 0);
  using Disks = std::span<const std::unique_ptr<Disk>>;
  const Disks disks = is_open ? Disks(parts_.extents->disks()) : Disks();
  const std::vector<std::string> labels = LabelsOf(disks);
  page.Family("ffrecord_disk_state", "1 for the current state of a disk.");
  for (std::size_t i = 0; i < disks.size(); ++i)
    for (const std::string_view one : kDiskStates)
      page.Row(labels[i] + "," + Label("state", one), one == StateOf(*disks[i]));
  const auto family = [&](const char* name, const char* help, auto of) {
    page.Family(name, help);
    for (std::size_t i = 0; i < disks.size(); ++i) page.Row(labels[i], of(*disks[i]));
  };
  family("ffrecord_data_free_bytes", "Space for extents on a disk.",
         [](const Disk& disk) { return disk.space().free_bytes; });
  family("ffrecord_data_size_bytes", "Size of a disk.",
         [](const Disk& disk) { return disk.space().size_bytes; });
  family("ffrecord_data_extents", "Sealed extents on a disk.",
         [](const Disk& disk) { return disk.totals().extent_count.load(); });
  family("ffrecord_data_extent_bytes", "Bytes of sealed extents on a disk.",
         [](const Disk& disk) { return disk.totals().size_bytes.load(); });
  family("ffrecord_data_extents_bad", "Extents on a disk that failed their checksum.",
         [](const Disk& disk) { return disk.totals().bad_count.load(); });
  family("ffrecord_data_read_errors_total", "Reads that a disk failed.",
         [](const Disk& disk) { return disk.reads().error_count(); });
  family("ffrecord_data_slow_total", "Reads and writes that took a disk 2 s or more.",
         [](const Disk& disk) { return disk.reads().slow_count(); });
  page.Family(
      "ffrecord_data_scrub_age_seconds",
      "Time since the last complete pass of the scrubber over a disk, or since the first began.");
  for (std::size_t i = 0; i < disks.size(); ++i)
    page.Row(labels[i], upkeep_.scrubbers()[i]->age().count());
}

std::string AdminPages::Metrics() const {
  // The disks, the names and the workers exist only once the daemon has started.
  const bool is_open = !is_starting();
  MetricsPage page;
  ShowDaemon(page, is_open);
  ShowDisks(page, is_open);
  if (is_open && parts_.cluster) ShowCluster(*parts_.cluster, page);
  if (is_open && parts_.origins && !parts_.options.cluster->origins.reader.allowed.empty())
    parts_.origins->Show(page);
  std::vector<const MetricSet*> counters{&parts_.acceptor_metrics},
      times{&parts_.acceptor_metrics.times};
  if (is_open)
    for (const auto& worker : parts_.metrics) {
      counters.push_back(worker.get());
      times.push_back(&worker->times);
    }
  page.Sums(counters);
  if (is_open) page.Sums(parts_.read_ahead_metrics);
  page.Sums(times);
  return std::move(page).text();
}

// Only a client with a token may see which names there are.
Result<void> AdminPages::MayShowNames() const {
  if (!parts_.token_keys || !parts_.options.admin_token_file.empty()) return {};
  return Error{ErrorCode::kDenied, "names are shown only to clients with a token"};
}

// Names have no characters that JSON would want escaped.
Result<std::string> AdminPages::Datasets() const {
  if (is_starting()) return Error{ErrorCode::kUnavailable, "starting"};
  FFR_TRY(MayShowNames());
  std::promise<Result<net::ListReply>> promise;
  parts_.names->List({kDatasetsShown, "", "", /*accepts_old=*/true},
                     [&](Result<net::ListReply> reply) { promise.set_value(std::move(reply)); });
  const auto listed = FFR_TRY(promise.get_future().get());
  std::string json = "{\"datasets\": [";
  for (const auto& entry : listed.entries)
    json += fmt::format("{}{{\"name\": \"{}\", \"size_bytes\": {}, \"file_count\": {}}}",
                        json.ends_with('[') ? "" : ", ", entry.name, entry.size_bytes,
                        entry.file_count);
  return json + (listed.more ? "], \"more\": true}" : "], \"more\": false}");
}

Result<ClusterService*> AdminPages::ClusterOrError() const {
  if (is_starting()) return Error{ErrorCode::kUnavailable, "starting"};
  if (!parts_.cluster) return Error{ErrorCode::kNotFound, "this daemon is not one of a cluster"};
  return parts_.cluster.get();
}

Result<std::string> AdminPages::Lost() const {
  ClusterService* const service = FFR_TRY(ClusterOrError());
  FFR_TRY(MayShowNames());
  return LostJson(*service);
}

}  // namespace ffrecord::server
