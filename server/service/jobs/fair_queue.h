#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ffrecord::server {

// Jobs that wait for one thread, which tenants share by weight: the next job is that of the tenant
// whose jobs have used the least time for its weight. A tenant with a thousand jobs delays another
// of the same weight by the one that runs; with n times the other's weight, by as many of its jobs
// as take n times as long as one of the other's. Nobody waits for ever, whatever the weights.
//
// Time that was not asked for is not saved up: a tenant without jobs starts, when it comes back,
// where the others are. Jobs of one tenant keep their order. Not thread-safe.
class FairQueue {
 public:
  using Job = std::function<void()>;
  using Duration = std::chrono::nanoseconds;

  // A job costs at least this: else one that takes no time that the clock shows would come first
  // for ever.
  static constexpr Duration kCostMin = std::chrono::microseconds(1);
  // Beyond it, the least cost would be nothing.
  static constexpr std::uint32_t kWeightMax = 1000;

  bool empty() const noexcept { return job_count_ == 0; }
  // `weight`: from 1 to kWeightMax, and the same for all jobs of a tenant.
  void Push(std::string_view tenant, Job job, std::uint32_t weight = 1);
  // The job that is next. Requires that there is one, and that the last one has been charged for.
  Job Pop();
  // How long the job of the last Pop() took.
  void Charge(Duration took);
  // Whose job the last Pop() returned. Requires that it has not been charged for.
  const std::string& served() const noexcept { return served_->first; }

 private:
  struct Tenant {
    std::uint32_t weight;
    std::deque<Job> jobs = {};
    Duration used{};  // By its weight, and counted on from where it came in.
  };
  using Tenants = std::map<std::string, Tenant, std::less<>>;

  Tenants tenants_;  // That have jobs, or have used more than the one that was served last.
  Tenants::iterator served_ = tenants_.end();
  Duration now_{};  // Time used, before this job, by the tenant that is served.
  std::size_t job_count_ = 0;
};

}  // namespace ffrecord::server
