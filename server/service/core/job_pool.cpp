#include "server/service/core/job_pool.h"

#include <deque>
#include <system_error>
#include <thread>
#include <utility>

namespace ffrecord::server {

class JobPool::Strand {
 public:
  std::deque<Job> jobs;
  std::condition_variable posted;
  std::thread thread;
};

JobPool::JobPool() : upkeep_(MakeStrand()) {}

JobPool::~JobPool() {
  std::vector<Strand*> strands{upkeep_.get()};
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const StrandPtr& strand : more_upkeep_) strands.push_back(strand.get());
    for (const auto& tenant : tenants_)
      for (const auto& kind : tenant->strands)
        for (const StrandPtr& strand : kind)
          if (strand) strands.push_back(strand.get());
    for (Strand* const strand : strands) strand->posted.notify_one();
  }
  for (Strand* const strand : strands) strand->thread.join();
}

JobPool::StrandPtr JobPool::MakeStrand() {
  auto strand = std::make_unique<Strand>();
  strand->thread = std::thread([this, &made = *strand] { Run(made); });
  return strand;
}

JobPool::Tenant& JobPool::TenantOf(std::string_view name) {
  if (const auto found = tenant_of_.find(name); found != tenant_of_.end()) return *found->second;
  // Not remembered: there may be any number of them.
  if (tenants_.size() >= kTenantCountMax)
    return *tenants_[std::hash<std::string_view>()(name) % tenants_.size()];
  tenants_.push_back(std::make_unique<Tenant>());
  for (std::size_t i = 0; i < kStrandCounts.size(); ++i)
    tenants_.back()->strands[i].resize(kStrandCounts[i]);
  return *tenant_of_.emplace(name, tenants_.back().get()).first->second;
}

JobPool::Strand& JobPool::StrandOf(std::string_view tenant, Kind kind, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto& strands = TenantOf(tenant).strands[static_cast<std::size_t>(kind)];
  StrandPtr& strand = strands[number % strands.size()];
  if (strand) return *strand;
  try {
    strand = MakeStrand();
  } catch (const std::system_error&) {
    return *upkeep_;  // The system has no more threads: slower, and not the end.
  }
  return *strand;
}

JobPool::Strand& JobPool::AddUpkeep() {
  const std::lock_guard lock(mutex_);
  try {
    more_upkeep_.push_back(MakeStrand());
  } catch (const std::system_error&) {
    return *upkeep_;
  }
  return *more_upkeep_.back();
}

void JobPool::Post(Strand& strand, Job job) {
  const std::lock_guard lock(mutex_);
  strand.jobs.push_back(std::move(job));
  strand.posted.notify_one();
  ++unfinished_count_;
}

bool JobPool::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [&] { return unfinished_count_ == 0; });
}

void JobPool::Run(Strand& strand) {
  std::unique_lock lock(mutex_);
  for (;;) {
    strand.posted.wait(lock, [&] { return is_ending_ || !strand.jobs.empty(); });
    if (strand.jobs.empty()) return;
    Job job = std::move(strand.jobs.front());
    strand.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // What it holds goes without the lock.
    lock.lock();
    if (--unfinished_count_ == 0) idle_.notify_all();
  }
}

}  // namespace ffrecord::server
