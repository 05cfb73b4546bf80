#include "server/service/core/job_pool.h"

#include <system_error>
#include <utility>

namespace ffrecord::server {

class JobPool::Lane {
 public:
  std::deque<Job> jobs;
  std::condition_variable posted;
  std::thread thread;
};

JobPool::JobPool() : upkeep_(MakeLane()) {}

JobPool::~JobPool() {
  std::vector<Lane*> lanes{upkeep_.get()};
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const auto& tenant : tenants_)
      for (const auto& kind : tenant->lanes)
        for (const LanePtr& lane : kind)
          if (lane) lanes.push_back(lane.get());
    for (Lane* const lane : lanes) lane->posted.notify_one();
  }
  for (Lane* const lane : lanes) lane->thread.join();
}

JobPool::LanePtr JobPool::MakeLane() {
  auto lane = std::make_unique<Lane>();
  lane->thread = std::thread([this, &made = *lane] { Run(made); });
  return lane;
}

JobPool::Tenant& JobPool::TenantOf(std::string_view name) {
  if (const auto found = tenant_of_.find(name); found != tenant_of_.end()) return *found->second;
  // Not remembered: there may be any number of them.
  if (tenants_.size() >= kTenantCountMax)
    return *tenants_[std::hash<std::string_view>()(name) % tenants_.size()];
  tenants_.push_back(std::make_unique<Tenant>());
  for (std::size_t i = 0; i < kLaneCounts.size(); ++i)
    tenants_.back()->lanes[i].resize(kLaneCounts[i]);
  return *tenant_of_.emplace(name, tenants_.back().get()).first->second;
}

JobPool::Lane& JobPool::LaneOf(std::string_view tenant, Kind kind, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto& lanes = TenantOf(tenant).lanes[static_cast<std::size_t>(kind)];
  LanePtr& lane = lanes[number % lanes.size()];
  if (lane) return *lane;
  try {
    lane = MakeLane();
  } catch (const std::system_error&) {
    return *upkeep_;  // The system has no more threads: slower, and not the end.
  }
  return *lane;
}

void JobPool::Post(Lane& lane, Job job) {
  const std::lock_guard lock(mutex_);
  lane.jobs.push_back(std::move(job));
  lane.posted.notify_one();
  ++unfinished_count_;
}

bool JobPool::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [&] { return unfinished_count_ == 0; });
}

void JobPool::Run(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    lane.posted.wait(lock, [&] { return is_ending_ || !lane.jobs.empty(); });
    if (lane.jobs.empty()) return;
    Job job = std::move(lane.jobs.front());
    lane.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // What it holds goes without the lock.
    lock.lock();
    if (--unfinished_count_ == 0) idle_.notify_all();
  }
}

}  // namespace ffrecord::server
