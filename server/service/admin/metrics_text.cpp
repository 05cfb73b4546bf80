#include "server/service/admin/metrics_text.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::server {
namespace {

using Worker = WorkerMetrics;

constexpr std::array kEntryStatuses{"ok",        "not_here", "corrupt",      "busy",    "denied",
                                    "cancelled", "io_error", "out_of_range", "deadline"};
constexpr std::array kErrorCodes{"ok",     "invalid_argument", "not_found",         "corruption",
                                 "io",     "unavailable",      "deadline_exceeded", "conflict",
                                 "denied", "out_of_range"};
constexpr std::array kRequestTypes{
    std::pair{net::FrameType::kHello, "hello"},
    std::pair{net::FrameType::kPing, "ping"},
    std::pair{net::FrameType::kLocalOpen, "local_open"},
    std::pair{net::FrameType::kResolve, "resolve"},
    std::pair{net::FrameType::kSlabRegister, "slab_register"},
    std::pair{net::FrameType::kExtentBind, "extent_bind"},
    std::pair{net::FrameType::kBatchRead, "batch_read"},
    std::pair{net::FrameType::kCancel, "cancel"},
    std::pair{net::FrameType::kPlanSet, "plan_set"},
    std::pair{net::FrameType::kPlanCancel, "plan_cancel"},
    std::pair{net::FrameType::kPutBegin, "put_begin"},
    std::pair{net::FrameType::kPutData, "put_data"},
    std::pair{net::FrameType::kPutPull, "put_pull"},
    std::pair{net::FrameType::kPutSeal, "put_seal"},
    std::pair{net::FrameType::kDelete, "delete"},
    std::pair{net::FrameType::kPublish, "publish"},
    std::pair{net::FrameType::kList, "list"},
    std::pair{net::FrameType::kCheckRoom, "check_room"},
    std::pair{net::FrameType::kClusterMap, "cluster_map"},
    std::pair{net::FrameType::kSetMember, "set_member"},
    std::pair{net::FrameType::kSetLevel, "set_level"},
    std::pair{net::FrameType::kMetadataHistory, "metadata_history"},
    std::pair{net::FrameType::kMetadataList, "metadata_list"},
    std::pair{net::FrameType::kMetadataPut, "metadata_put"},
    std::pair{net::FrameType::kAskHoldings, "ask_holdings"},
    std::pair{net::FrameType::kAskHeard, "ask_heard"},
    std::pair{net::FrameType::kAskBuried, "ask_buried"},
    std::pair{net::FrameType::kAskFilled, "ask_filled"},
    std::pair{net::FrameType::kAskKnown, "ask_known"},
};

// Writes one family after another. Labels are ours, and need no escapes.
class Writer {
 public:
  explicit Writer(const MetricsView& view) : view_(view) {}

  void Family(const char* name, const char* type, const char* help) {
    name_ = name;
    Append("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  void Value(std::uint64_t value) { Append("{} {}\n", name_, value); }
  void Value(const char* label, std::string_view which, std::uint64_t value) {
    Append("{}{{{}=\"{}\"}} {}\n", name_, label, which, value);
  }
  // The sum over all workers of what `of` picks.
  template <class Of>
  std::uint64_t Sum(Of of) const {
    std::uint64_t sum = 0;
    for (const auto& worker : view_.workers) sum += of(*worker).value();
    return sum;
  }
  void Gauge(const char* name, const char* help, std::uint64_t value) {
    Family(name, "gauge", help);
    Value(value);
  }
  void Count(const char* name, const char* help, std::uint64_t value) {
    Family(name, "counter", help);
    Value(value);
  }
  // One value for each place of an array of counters.
  template <class Names, class Of>
  void Each(const char* label, const Names& names, Of of, std::size_t first = 0) {
    for (std::size_t i = first; i < names.size(); ++i)
      Value(label, names[i],
            Sum([&](const Worker& worker) -> const Counter& { return of(worker)[i]; }));
  }
  template <class Of>
  void Times(const std::string& labels, Of of) {
    Histogram::Sum sum;
    for (const auto& worker : view_.workers) sum.Add(of(*worker));
    std::uint64_t count = 0;
    for (std::size_t i = 0; i + 1 < sum.buckets.size(); ++i) {
      count += sum.buckets[i];
      const double bound_s = static_cast<double>(Histogram::BoundUs(i)) / 1e6;
      Append("{}_bucket{{{},le=\"{}\"}} {}\n", name_, labels, bound_s, count);
    }
    count += sum.buckets.back();
    Append("{}_bucket{{{},le=\"+Inf\"}} {}\n", name_, labels, count);
    Append("{}_sum{{{}}} {}\n", name_, labels, static_cast<double>(sum.sum_us) / 1e6);
    Append("{}_count{{{}}} {}\n", name_, labels, count);
  }
  template <class... Arguments>
  void Append(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  std::string text() && { return std::move(text_); }

 private:
  const MetricsView& view_;
  const char* name_ = "";
  std::string text_;
};

void WriteTenants(const MetricsView& view, Writer& out) {
  if (view.tenants.empty()) return;
  out.Family("ffrecord_tenant_weight", "gauge",
             "Share of a disk's time that each tenant under a prefix gets.");
  for (const TenantView& one : view.tenants) out.Value("prefix", one.prefix, one.weight);
  out.Family("ffrecord_tenant_disk_seconds_total", "counter",
             "Time of disks' threads that tenants under a prefix used.");
  for (const TenantView& one : view.tenants)
    out.Append("ffrecord_tenant_disk_seconds_total{{prefix=\"{}\"}} {}\n", one.prefix, one.disk_s);
}

void WriteDaemon(const MetricsView& view, Writer& out) {
  out.Family("ffrecord_build_info", "gauge", "The version of the daemon.");
  out.Append("ffrecord_build_info{{version=\"{}\",engine=\"{}\",auth=\"{}\"}} 1\n", view.version,
             view.engine, view.authentication);
  out.Family("ffrecord_state", "gauge", "1 for the current state.");
  for (const std::string_view state : {"starting", "ready", "draining"})
    out.Value("state", state, state == view.state ? 1 : 0);
  out.Gauge("ffrecord_workers_failed", "Event loops that have failed.", view.failed_worker_count);
  out.Gauge("ffrecord_uptime_seconds", "Time since start.",
            static_cast<std::uint64_t>(view.uptime.count()));
  out.Gauge("ffrecord_datasets", "Published names.", view.dataset_count);
  out.Gauge("ffrecord_extents", "Sealed extents.", view.extent_count);
  out.Gauge("ffrecord_extent_bytes", "Bytes of sealed extents.", view.extent_bytes);
  out.Gauge("ffrecord_extents_bad", "Extents that failed their checksum.", view.bad_extent_count);
  out.Count("ffrecord_scrub_bytes_total", "Bytes checked by the scrubber.", view.scrub_read_bytes);
  out.Count("ffrecord_scrub_passes_total", "Complete passes of the scrubber.",
            view.scrub_pass_count);
  out.Gauge("ffrecord_scrub_rate_bytes", "Bytes per second that this pass of the scrubber checks.",
            view.scrub_bytes_per_s);
  out.Gauge("ffrecord_scrub_age_seconds",
            "Time since the last complete pass of the scrubber, or since the first began.",
            static_cast<std::uint64_t>(view.scrub_age.count()));
  out.Family("ffrecord_read_only", "gauge", "1 if no disk takes writes, by reason.");
  out.Value("reason", "full", view.writes == WriteHealth::State::kFull ? 1 : 0);
  out.Value("reason", "failed", view.writes == WriteHealth::State::kFailed ? 1 : 0);
  if (!view.quotas.empty()) {
    out.Family("ffrecord_quota_bytes", "gauge", "Maximum size of all names under a prefix.");
    for (const auto& one : view.quotas) out.Value("prefix", one.prefix, one.quota_bytes);
    out.Family("ffrecord_quota_used_bytes", "gauge", "Size of all names under a prefix.");
    for (const auto& one : view.quotas) out.Value("prefix", one.prefix, one.used_bytes);
  }
  out.Family("ffrecord_metadata_wait_seconds", "gauge",
             "How long the disk of the metadata has not answered.");
  out.Append("ffrecord_metadata_wait_seconds {}\n", view.metadata_wait.count());
  WriteTenants(view, out);
  out.Gauge("ffrecord_disk_free_bytes", "Free space on the disks of the data folders.",
            view.disk_free_bytes);
  out.Gauge("ffrecord_disk_size_bytes", "Size of the disks of the data folders.",
            view.disk_size_bytes);
}

void WriteDisks(const MetricsView& view, Writer& out) {
  out.Gauge("ffrecord_disks_missing", "Disks of the daemon that are not there.",
            view.missing_disk_count);
  const auto family = [&](const char* name, const char* type, const char* help, auto of) {
    out.Family(name, type, help);
    for (const DiskView& disk : view.disks) out.Value("disk", disk.name, of(disk));
  };
  out.Family("ffrecord_disk_state", "gauge", "1 for the current state of a disk.");
  for (const DiskView& disk : view.disks)
    for (const std::string_view state : kDiskStates)
      out.Append("ffrecord_disk_state{{disk=\"{}\",state=\"{}\"}} {}\n", disk.name, state,
                 state == disk.state ? 1 : 0);
  family("ffrecord_data_free_bytes", "gauge", "Space for extents on a disk.",
         [](const DiskView& disk) { return disk.free_bytes; });
  family("ffrecord_data_size_bytes", "gauge", "Size of a disk.",
         [](const DiskView& disk) { return disk.size_bytes; });
  family("ffrecord_data_extents", "gauge", "Sealed extents on a disk.",
         [](const DiskView& disk) { return disk.extent_count; });
  family("ffrecord_data_extent_bytes", "gauge", "Bytes of sealed extents on a disk.",
         [](const DiskView& disk) { return disk.extent_bytes; });
  family("ffrecord_data_extents_bad", "gauge", "Extents on a disk that failed their checksum.",
         [](const DiskView& disk) { return disk.bad_extent_count; });
  family("ffrecord_data_read_errors_total", "counter", "Reads that a disk failed.",
         [](const DiskView& disk) { return disk.read_error_count; });
  family("ffrecord_data_slow_total", "counter", "Reads and writes that took a disk 2 s or more.",
         [](const DiskView& disk) { return disk.slow_count; });
  family("ffrecord_data_scrub_age_seconds", "gauge",
         "Time since the last complete pass of the scrubber over a disk, or since the first began.",
         [](const DiskView& disk) { return static_cast<std::uint64_t>(disk.scrub_age.count()); });
}

void WriteCluster(const ClusterView& view, Writer& out) {
  out.Gauge("ffrecord_cluster_leased", "1 while the node holds its lease at the coordinator.",
            view.is_leased ? 1 : 0);
  out.Gauge("ffrecord_cluster_leading", "1 if the node leads the cluster.",
            view.is_leading ? 1 : 0);
  out.Gauge("ffrecord_cluster_stale", "1 while names and slot map are those of before the start.",
            view.is_from_cache ? 1 : 0);
  out.Gauge("ffrecord_cluster_coordinator_silent_seconds",
            "Time since the coordinator answered; 0 while it does.",
            static_cast<std::uint64_t>(view.silent_for.count() / 1000));
  out.Gauge("ffrecord_cluster_map_version", "Version of the slot map.", view.map_version);
  out.Gauge("ffrecord_cluster_moving", "1 while extents follow a change of the slot map.",
            view.is_moving ? 1 : 0);
  out.Family("ffrecord_cluster_nodes", "gauge", "Nodes of the cluster.");
  out.Value("state", "up", view.up_count);
  out.Value("state", "down", view.down_count);
  out.Value("state", "waiting", view.waiting_count);
  out.Gauge("ffrecord_cluster_frozen",
            "1 while nothing is removed, as the metadata was put back to an older state.",
            view.is_frozen);
  out.Gauge("ffrecord_cluster_names_lost",
            "Names that the node has known and that the older state lacks.", view.lost_name_count);
  out.Gauge("ffrecord_cluster_extents_missing", "Extents that the node should hold and does not.",
            view.missing_count);
  out.Gauge("ffrecord_cluster_extents_missing_bytes", "Bytes of them.", view.missing_bytes);
  out.Gauge("ffrecord_cluster_extents_unheld",
            "Missing extents that no node that answers holds undamaged.", view.unheld_count);
  out.Gauge("ffrecord_cluster_extents_surplus", "Extents that other nodes should hold instead.",
            view.surplus_count);
  out.Gauge("ffrecord_cluster_extents_unexplained", "Extents that no record of the cluster names.",
            view.unexplained_count);
  out.Gauge("ffrecord_cluster_names_adopting",
            "Names of its own that this node has not taken into the cluster yet.",
            view.adopting_count);
  out.Gauge("ffrecord_cluster_extents_refused", "Missing extents for which there is no room.",
            view.refused_count);
  out.Count("ffrecord_cluster_pulled_total", "Extents copied from other nodes.", view.pulled_count);
  out.Count("ffrecord_cluster_pulled_bytes_total", "Bytes of them.", view.pulled_bytes);
  out.Count("ffrecord_cluster_rebuilt_total", "Of them, members of stripes that were computed.",
            view.rebuilt_count);
  out.Count("ffrecord_cluster_brought_total",
            "Members of stripes that readers wanted here, copied or computed.", view.brought_count);
  out.Count("ffrecord_cluster_brought_failures_total", "Tries to bring one that failed.",
            view.brought_failure_count);
  out.Count("ffrecord_cluster_dropped_total", "Extents that the cluster had the node remove.",
            view.dropped_count);
  out.Count("ffrecord_cluster_doubted_damaged_total",
            "Extents that readers reported, and that were damaged.", view.doubted_damaged_count);
  out.Count("ffrecord_cluster_healed_total", "Damaged extents replaced from other nodes.",
            view.healed_count);
}

void WriteOrigins(const OriginView& view, Writer& out) {
  out.Gauge("ffrecord_origin_cached_bytes", "Extents of origins on the disks of the node.",
            view.size_bytes);
  out.Count("ffrecord_origin_fetched_total", "Extents fetched from their origin.",
            view.fetched_count);
  out.Count("ffrecord_origin_fetched_bytes_total", "Bytes of them.", view.fetched_bytes);
  out.Count("ffrecord_origin_failed_total", "Fetches that have failed.", view.failed_count);
  out.Count("ffrecord_origin_evicted_total", "Cached extents removed to make room.",
            view.evicted_count);
  out.Count("ffrecord_origin_damaged_total",
            "Cached extents that readers found damaged, and that are fetched again.",
            view.damaged_count);
  out.Gauge("ffrecord_origin_wait_seconds", "How long the oldest fetch under way has lasted.",
            static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::seconds>(view.waiting).count()));
}

void WriteConnections(const MetricsView& view, Writer& out) {
  out.Family("ffrecord_connections", "gauge", "Open connections.");
  out.Each(
      "transport", Worker::kTransportNames,
      [](const Worker& worker) -> auto& { return worker.connections; });
  out.Gauge("ffrecord_connections_max", "Maximum number of open connections.",
            view.connection_count_max);
  out.Family("ffrecord_connections_opened_total", "counter", "Accepted connections.");
  out.Each(
      "transport", Worker::kTransportNames,
      [](const Worker& worker) -> auto& { return worker.connections_opened; });
  out.Count("ffrecord_connections_refused_total", "Connections rejected with BUSY.",
            view.connections_refused);
  out.Count("ffrecord_connection_faults_total",
            "Connections closed for a fault of the client or the network.",
            out.Sum([](const Worker& worker) -> auto& { return worker.connection_faults; }));
  out.Gauge("ffrecord_certificate_expires_timestamp_seconds",
            "Unix time at which the TLS certificate expires; 0 without one.",
            static_cast<std::uint64_t>(WallClock::to_time_t(view.certificate_expires)));
  out.Count("ffrecord_kernel_tls_connections_total", "TLS connections encrypted by the kernel.",
            out.Sum([](const Worker& worker) -> auto& { return worker.kernel_tls; }));
  out.Count("ffrecord_tokens_refused_total", "Connection attempts without a valid token.",
            out.Sum([](const Worker& worker) -> auto& { return worker.tokens_refused; }));
}

void WriteRequests(Writer& out) {
  out.Family("ffrecord_requests_total", "counter", "Requests received.");
  for (const auto& [type, name] : kRequestTypes)
    out.Value("type", name,
              out.Sum([index = static_cast<std::size_t>(type)](const Worker& worker) -> auto& {
                return worker.requests.at(index);
              }));
  out.Family("ffrecord_errors_total", "counter", "Requests answered with an error.");
  out.Each(
      "code", kErrorCodes, [](const Worker& worker) -> auto& { return worker.errors; }, 1);
  out.Family("ffrecord_busy_total", "counter", "Requests answered with BUSY.");
  out.Value("request", "read",
            out.Sum([](const Worker& worker) -> auto& { return worker.busy_batches; }));
  out.Value("request", "other",
            out.Sum([](const Worker& worker) -> auto& { return worker.busy_jobs; }));
  out.Family("ffrecord_entries_total", "counter",
             "Pieces of records requested by batches, by status.");
  out.Each(
      "status", kEntryStatuses, [](const Worker& worker) -> auto& { return worker.entries; });
  out.Family("ffrecord_read_bytes_total", "counter", "Bytes read for clients.");
  out.Each(
      "transport", Worker::kTransportNames,
      [](const Worker& worker) -> auto& { return worker.read_bytes; });
  out.Count("ffrecord_written_bytes_total", "Bytes of extents written.",
            out.Sum([](const Worker& worker) -> auto& { return worker.written_bytes; }));
}

void WriteQueues(const MetricsView& view, Writer& out) {
  out.Family("ffrecord_queue_depth", "gauge", "Operations in progress.");
  out.Value("queue", "batches",
            out.Sum([](const Worker& worker) -> auto& { return worker.batches; }));
  out.Value("queue", "disk_reads",
            out.Sum([](const Worker& worker) -> auto& { return worker.disk_reads; }));
  out.Value("queue", "jobs", out.Sum([](const Worker& worker) -> auto& { return worker.jobs; }));
  out.Gauge("ffrecord_inflight_bytes", "Bytes being read, or read and not yet sent.",
            out.Sum([](const Worker& worker) -> auto& { return worker.held_bytes; }));
  out.Gauge("ffrecord_inflight_bytes_max", "Limit of bytes in flight.", view.held_bytes_max);
}

void WriteReadAhead(const MetricsView& view, Writer& out) {
  if (view.read_ahead == nullptr) return;
  const ReadAhead::Metrics& found = *view.read_ahead;
  out.Gauge("ffrecord_read_ahead_plans", "Epoch plans being followed.", found.plans.value());
  out.Gauge("ffrecord_read_ahead_held_bytes", "Bytes read ahead and not yet requested.",
            found.held_bytes.value());
  out.Gauge("ffrecord_read_ahead_held_bytes_max", "Limit of bytes held by read-ahead.",
            view.read_ahead_bytes_max);
  out.Count("ffrecord_read_ahead_bytes_total", "Bytes read ahead.", found.read_bytes.value());
  out.Family(
      "ffrecord_read_ahead_outcome_bytes_total", "counter",
      "Planned bytes by outcome: hit (in memory when requested), late (requested before they "
      "arrived), lost (dropped by the kernel before the request), unused.");
  out.Value("outcome", "hit", found.hit_bytes.value());
  out.Value("outcome", "late", found.late_bytes.value());
  out.Value("outcome", "lost", found.lost_bytes.value());
  out.Value("outcome", "unused", found.unused_bytes.value());
}

void WriteTimes(Writer& out) {
  out.Family("ffrecord_stage_seconds", "histogram", "Time of requests by stage.");
  const auto stage = [&](const char* request, const char* name, auto of) {
    out.Times(fmt::format("request=\"{}\",stage=\"{}\"", request, name), of);
  };
  stage(
      "read", "queue", [](const Worker& worker) -> auto& { return worker.read.queue; });
  stage(
      "read", "disk", [](const Worker& worker) -> auto& { return worker.read.disk; });
  stage(
      "read", "grant", [](const Worker& worker) -> auto& { return worker.read.grant; });
  stage(
      "read", "network", [](const Worker& worker) -> auto& { return worker.read.network; });
  stage(
      "write", "queue", [](const Worker& worker) -> auto& { return worker.write.queue; });
  stage(
      "write", "disk", [](const Worker& worker) -> auto& { return worker.write.disk; });
  stage(
      "write", "checksum", [](const Worker& worker) -> auto& { return worker.write.checksum; });
  out.Family("ffrecord_request_seconds", "histogram",
             "Time from a request to the end of its answer.");
  out.Times(
      "request=\"read\"", [](const Worker& worker) -> auto& { return worker.read.whole; });
  out.Times(
      "request=\"write\"", [](const Worker& worker) -> auto& { return worker.write.whole; });
}

}  // namespace

std::string MetricsText(const MetricsView& view) {
  Writer out(view);
  WriteDaemon(view, out);
  WriteDisks(view, out);
  if (view.cluster) WriteCluster(*view.cluster, out);
  if (view.origins) WriteOrigins(*view.origins, out);
  WriteConnections(view, out);
  WriteRequests(out);
  WriteQueues(view, out);
  WriteReadAhead(view, out);
  WriteTimes(out);
  return std::move(out).text();
}

}  // namespace ffrecord::server
