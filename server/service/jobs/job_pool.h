#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/base/clock.h"
#include "server/service/jobs/tenant_shares.h"
#include "server/storage/disk.h"

namespace ffrecord::server {

// Threads for what blocks: writing and sealing extents, metadata, the indexes of plans.
// Thread-safe.
//
// Each thread is a strand: its jobs run one after another, those of one tenant in the order in
// which they came, and what is thread-bound, such as a file that is being written, stays where it
// was made. Extents are written in strands of their disk, which all tenants share by time and
// weight: a disk that hangs holds up what is written to it, and a tenant with many uploads delays
// no other. For the rest each tenant has strands of its own, for each kind of work: look-ups wait
// for nobody who writes, and names are published and removed while extents are written. How much
// may wait here is bounded by those who post: each connection has few jobs here at a time.
class JobPool {
 public:
  using Job = std::function<void()>;
  class Strand;

  enum class Kind : std::uint8_t {
    kLookUp,    // Reads metadata that is in memory.
    kMetadata,  // Writes metadata, and waits for its disk.
    kPlan,      // Reads indexes for the read-ahead.
  };
  // Threads of each kind that a tenant may have; they are started when they are first needed.
  static constexpr std::array<std::size_t, 3> kStrandCounts{2, 2, 1};
  // Threads of each disk: while one waits for a sync, others write.
  static constexpr std::size_t kDiskStrandCount = 4;
  // Tenants with strands of their own; those beyond share the strands of others.
  static constexpr std::size_t kTenantCountMax = 64;

  // `shares` outlives the pool, and counts what tenants use of the disks' strands.
  explicit JobPool(TenantShares& shares);
  JobPool(const JobPool&) = delete;
  JobPool& operator=(const JobPool&) = delete;
  ~JobPool();  // Runs what has been posted, and what that posts; then joins.

  // The strand of `tenant` for jobs of this kind and `number`: the same for the same three. It
  // lives as long as the pool.
  Strand& StrandOf(std::string_view tenant, Kind kind, std::uint64_t number);
  // A strand for what waits for `disk`, which outlives the pool: one of them after the other.
  Strand& StrandOf(const Disk& disk);
  // The strand for what opens files of `disk`, which outlives the pool: no open waits for what is
  // written.
  Strand& OpeningStrandOf(const Disk& disk);
  // The daemon's own, for upkeep such as collecting.
  Strand& upkeep() noexcept { return *upkeep_; }
  // One more of the daemon's own, for upkeep that may wait for one disk. It lives as long as the
  // pool.
  Strand& AddUpkeep();

  // `tenant` is who has it run; none: the daemon itself.
  void Post(Strand& strand, std::string_view tenant, Job job);
  void Post(Strand& strand, Job job) { Post(strand, {}, std::move(job)); }

  // Waits until nothing is waiting or running. False at the deadline.
  bool WaitIdle(Clock::time_point deadline);

 private:
  using StrandPtr = std::unique_ptr<Strand>;
  using Strands = std::vector<StrandPtr>;  // Null: not yet needed.
  struct Tenant {
    std::array<Strands, kStrandCounts.size()> strands;  // By kind.
  };
  struct DiskStrands {
    Strands strands;  // None before the first job.
    std::uint64_t next = 0;
    Strands opening;  // One, or none before the first job.
  };
  StrandPtr MakeStrand();
  // That of `number`, which is made if need be, or another one if the system has no more threads.
  Strand& StrandIn(Strands& strands, std::uint64_t number);
  Tenant& TenantOf(std::string_view name);
  void Run(Strand& strand);

  TenantShares& shares_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint32_t unfinished_count_ = 0;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  std::map<std::string, Tenant*, std::less<>> tenant_of_;
  std::map<const Disk*, DiskStrands> disks_;
  StrandPtr upkeep_;
  Strands more_upkeep_;
};

}  // namespace ffrecord::server
