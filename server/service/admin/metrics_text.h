#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/base/clock.h"
#include "server/service/catalog/names.h"
#include "server/service/metrics.h"
#include "server/service/read_ahead/read_ahead.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

// The metrics of one disk.
struct DiskView {
  std::string name;        // Its folder's, without characters that a label escapes.
  std::string_view state;  // One of kDiskStates.
  std::uint64_t free_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t extent_count = 0;
  std::uint64_t extent_bytes = 0;
  std::uint64_t bad_extent_count = 0;
  std::uint64_t read_error_count = 0;
  std::uint64_t slow_count = 0;
  std::chrono::seconds scrub_age{};
};
// Suspect: a moment ago it failed a read, or was slow. Full and failed: it takes no writes.
inline constexpr std::array<std::string_view, 6> kDiskStates{"good",   "suspect",  "full",
                                                             "failed", "draining", "drained"};

// The metrics of the tenants under one prefix.
struct TenantView {
  std::string_view prefix;
  std::uint32_t weight = 1;
  double disk_s = 0;  // Time of the disks' threads, used by all of them together.
};

// The metrics of the cluster that the daemon is a node of.
struct ClusterView {
  bool is_leased = false;
  bool is_leading = false;
  bool is_from_cache = false;
  bool is_moving = false;
  bool is_frozen = false;
  std::uint32_t map_version = 0;
  std::chrono::milliseconds silent_for{};
  std::uint64_t up_count = 0;
  std::uint64_t down_count = 0;
  std::uint64_t waiting_count = 0;
  std::uint64_t lost_name_count = 0;
  std::uint64_t missing_count = 0;
  std::uint64_t missing_bytes = 0;
  std::uint64_t unheld_count = 0;
  std::uint64_t surplus_count = 0;
  std::uint64_t unexplained_count = 0;
  std::uint64_t adopting_count = 0;
  std::uint64_t refused_count = 0;
  std::uint64_t pulled_count = 0;
  std::uint64_t pulled_bytes = 0;
  std::uint64_t rebuilt_count = 0;
  std::uint64_t brought_count = 0;
  std::uint64_t brought_failure_count = 0;
  std::uint64_t dropped_count = 0;
  std::uint64_t doubted_damaged_count = 0;
  std::uint64_t healed_count = 0;
};

// The metrics of the cache of extents that are fetched from origins.
struct OriginView {
  std::uint64_t size_bytes = 0;
  std::uint64_t fetched_count = 0;
  std::uint64_t fetched_bytes = 0;
  std::uint64_t failed_count = 0;
  std::uint64_t evicted_count = 0;
  std::uint64_t damaged_count = 0;
  std::chrono::milliseconds waiting{0};
};

// The metrics of one daemon.
struct MetricsView {
  std::string_view version;
  std::string_view state;   // "starting", "ready" or "draining".
  std::string_view engine;  // Empty while it starts.
  std::chrono::seconds uptime{};
  std::string_view authentication;  // "none", "tokens", "certificates" or both, with a comma.
  WallClock::time_point certificate_expires;  // 1970: there is none.
  std::uint32_t connection_count_max = 0;
  std::uint64_t held_bytes_max = 0;  // Limit over all event loops.
  std::uint64_t connections_refused = 0;
  std::uint32_t failed_worker_count = 0;
  std::uint64_t dataset_count = 0;
  std::uint64_t extent_count = 0;
  std::uint64_t extent_bytes = 0;
  std::uint64_t bad_extent_count = 0;
  std::chrono::duration<double> metadata_wait{};  // For its disk, by the commit that waits now.
  WriteHealth::State writes = WriteHealth::State::kGood;
  std::uint64_t scrub_read_bytes = 0;
  std::uint64_t scrub_pass_count = 0;
  std::uint64_t scrub_bytes_per_s = 0;
  std::chrono::seconds scrub_age{};
  std::vector<Names::Usage> quotas;
  std::vector<TenantView> tenants;  // None: all have the same weight.
  std::vector<DiskView> disks;
  std::optional<ClusterView> cluster;  // None: the daemon is in no cluster.
  std::optional<OriginView> origins;   // None: it may fetch from nowhere.
  std::uint64_t missing_disk_count = 0;
  std::uint64_t disk_free_bytes = 0;  // Free, and in all: of all file systems of the data folders.
  std::uint64_t disk_size_bytes = 0;
  std::span<const std::unique_ptr<WorkerMetrics>> workers;
  const ReadAhead::Metrics* read_ahead = nullptr;  // Null while it starts.
  std::uint64_t read_ahead_bytes_max = 0;
};

// In the text format of Prometheus, version 0.0.4. Times are in seconds, sizes in bytes.
std::string MetricsText(const MetricsView& view);

}  // namespace ffrecord::server
