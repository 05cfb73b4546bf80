#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ffrecord::server {

// Jobs that wait for one thread, which tenants share: the next job is that of the tenant whose jobs
// have used the least time. A tenant with a thousand jobs delays another's by the one that runs.
//
// Time that was not asked for is not saved up: a tenant without jobs starts, when it comes back,
// where the others are. Jobs of one tenant keep their order. Not thread-safe.
class FairQueue {
 public:
  using Job = std::function<void()>;
  using Duration = std::chrono::nanoseconds;

  bool empty() const noexcept { return job_count_ == 0; }
  void Push(std::string_view tenant, Job job);
  // The job that is next. Requires that there is one, and that the last one has been charged for.
  Job Pop();
  // How long the job of the last Pop() took.
  void Charge(Duration took);

 private:
  struct Tenant {
    std::deque<Job> jobs = {};
    Duration used{};  // Counted on from where it came in.
  };
  using Tenants = std::map<std::string, Tenant, std::less<>>;

  Tenants tenants_;  // That have jobs, or have used more than the one that was served last.
  Tenants::iterator served_ = tenants_.end();
  Duration now_{};  // What the one that is served had used before.
  std::size_t job_count_ = 0;
};

}  // namespace ffrecord::server
