#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/service/catalog/catalog.h"
#include "server/service/metrics.h"
#include "server/service/read_ahead/read_ahead.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

// What the metrics tell of one disk.
struct DiskView {
  std::string name;        // Of its folder, without characters that a label would have to escape.
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

// What the metrics tell of the tenants under one prefix.
struct TenantView {
  std::string_view prefix;
  std::uint32_t weight = 1;
  double disk_s = 0;  // Of the disks' threads, used by all of them together.
};

// What the metrics tell of one daemon.
struct MetricsView {
  std::string_view version;
  std::string_view state;   // "starting", "ready" or "draining".
  std::string_view engine;  // Empty while it starts.
  std::chrono::seconds uptime{};
  std::string_view authentication;  // "none", "tokens", "certificates" or both, with a comma.
  std::chrono::system_clock::time_point certificate_expires;  // 1970: there is none.
  std::uint32_t connection_count_max = 0;
  std::uint64_t held_bytes_max = 0;  // Of all event loops.
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
  std::vector<Catalog::Usage> quotas;
  std::vector<TenantView> tenants;  // None: all have the same weight.
  std::vector<DiskView> disks;
  std::uint64_t missing_disk_count = 0;
  std::uint64_t disk_free_bytes = 0;  // Of all file systems of the data folders, likewise the size.
  std::uint64_t disk_size_bytes = 0;
  std::span<const std::unique_ptr<WorkerMetrics>> workers;
  const ReadAhead::Metrics* read_ahead = nullptr;  // Null while it starts.
  std::uint64_t read_ahead_bytes_max = 0;
};

// In the text format of Prometheus, version 0.0.4. Times are in seconds, sizes in bytes.
std::string MetricsText(const MetricsView& view);

}  // namespace ffrecord::server
