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

namespace ffrecord::server {

// Threads for what blocks: writing and sealing extents, metadata, the indexes of plans.
// Thread-safe.
//
// Each thread is a strand: jobs of one strand run one after another on the same thread, so what is
// thread-bound, such as a file that is being written, stays where it was made. Each tenant has
// strands of its own, and each kind of work among them: a tenant whose writes wait for the disk
// delays neither other tenants nor its own look-ups. How much may wait here is bounded by those who
// post: each connection has few jobs here at a time.
class JobPool {
 public:
  using Job = std::function<void()>;
  class Strand;

  enum class Kind : std::uint8_t {
    kLookUp,  // Reads metadata that is in memory.
    kWrite,   // Writes extents and metadata.
    kPlan,    // Reads indexes for the read-ahead.
  };
  // Threads of each kind that a tenant may have; they are started when they are first needed.
  static constexpr std::array<std::size_t, 3> kStrandCounts{2, 4, 1};
  // Tenants with strands of their own; those beyond share the strands of others.
  static constexpr std::size_t kTenantCountMax = 64;

  JobPool();
  JobPool(const JobPool&) = delete;
  JobPool& operator=(const JobPool&) = delete;
  ~JobPool();  // Runs what has been posted, and what that posts to its own strand; then joins.

  // The strand of `tenant` for jobs of this kind and `number`: the same for the same three. It
  // lives as long as the pool.
  Strand& StrandOf(std::string_view tenant, Kind kind, std::uint64_t number);
  // The daemon's own, for upkeep such as collecting.
  Strand& upkeep() noexcept { return *upkeep_; }
  // One more of the daemon's own, for upkeep that may wait for one disk. It lives as long as the
  // pool.
  Strand& AddUpkeep();

  void Post(Strand& strand, Job job);

  // Waits until nothing is waiting or running. False at the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

 private:
  using StrandPtr = std::unique_ptr<Strand>;
  struct Tenant {
    std::array<std::vector<StrandPtr>, kStrandCounts.size()> strands;  // By kind.
  };
  StrandPtr MakeStrand();
  Tenant& TenantOf(std::string_view name);
  void Run(Strand& strand);

  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint32_t unfinished_count_ = 0;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  std::map<std::string, Tenant*, std::less<>> tenant_of_;
  StrandPtr upkeep_;
  std::vector<StrandPtr> more_upkeep_;
};

}  // namespace ffrecord::server
