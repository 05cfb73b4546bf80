#include "server/service/jobs/job_pool.h"

#include <system_error>
#include <thread>
#include <utility>

#include "libffrecord/base/timed_waits.h"
#include "server/service/jobs/fair_queue.h"

namespace ffrecord::server {

class JobPool::Strand {
 public:
  FairQueue jobs;
  bool is_of_disk = false;
  std::condition_variable posted;
  std::thread thread;
};

JobPool::JobPool(TenantShares& shares) : shares_(shares), upkeep_(MakeStrand()) {}

JobPool::~JobPool() {
  std::vector<Strand*> strands{upkeep_.get()};
  const auto add = [&](const Strands& more) {
    for (const StrandPtr& strand : more)
      if (strand) strands.push_back(strand.get());
  };
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return unfinished_count_ == 0; });
    is_ending_ = true;
    add(more_upkeep_);
    for (const auto& [disk, of_disk] : disks_) {
      add(of_disk.strands);
      add(of_disk.opening);
    }
    for (const auto& tenant : tenants_)
      for (const Strands& of_kind : tenant->strands) add(of_kind);
    for (Strand* const strand : strands) strand->posted.notify_one();
  }
  for (Strand* const strand : strands) strand->thread.join();
}

JobPool::StrandPtr JobPool::MakeStrand() {
  auto strand = std::make_unique<Strand>();
  strand->thread = std::thread([this, &made = *strand] { Run(made); });
  return strand;
}

JobPool::Strand& JobPool::StrandIn(Strands& strands, std::uint64_t number) {
  StrandPtr& strand = strands[number % strands.size()];
  if (strand) return *strand;
  try {
    strand = MakeStrand();
  } catch (const std::system_error&) {
    return *upkeep_;  // The system has no more threads: slower, and not the end.
  }
  return *strand;
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
  return StrandIn(TenantOf(tenant).strands[static_cast<std::size_t>(kind)], number);
}

JobPool::Strand& JobPool::StrandOf(const Disk& disk) {
  const std::lock_guard lock(mutex_);
  DiskStrands& of_disk = disks_[&disk];
  of_disk.strands.resize(kDiskStrandCount);
  Strand& strand = StrandIn(of_disk.strands, of_disk.next++);
  strand.is_of_disk = &strand != upkeep_.get();
  return strand;
}

JobPool::Strand& JobPool::OpeningStrandOf(const Disk& disk) {
  const std::lock_guard lock(mutex_);
  DiskStrands& of_disk = disks_[&disk];
  of_disk.opening.resize(1);
  return StrandIn(of_disk.opening, 0);
}

JobPool::Strand& JobPool::AddUpkeep() {
  const std::lock_guard lock(mutex_);
  more_upkeep_.emplace_back();
  return StrandIn(more_upkeep_, more_upkeep_.size() - 1);
}

void JobPool::Post(Strand& strand, std::string_view tenant, Job job) {
  const std::lock_guard lock(mutex_);
  strand.jobs.Push(tenant, std::move(job), shares_.Of(tenant).weight);
  strand.posted.notify_one();
  ++unfinished_count_;
}

bool JobPool::WaitIdle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return WaitUntil(idle_, lock, deadline, [&] { return unfinished_count_ == 0; });
}

void JobPool::Run(Strand& strand) {
  std::unique_lock lock(mutex_);
  for (;;) {
    strand.posted.wait(lock, [&] { return is_ending_ || !strand.jobs.empty(); });
    if (strand.jobs.empty()) return;
    Job job = strand.jobs.Pop();
    lock.unlock();
    const auto begin = Clock::now();
    job();
    job = nullptr;  // Its captures are destroyed without the lock.
    const auto took = Clock::now() - begin;
    lock.lock();
    if (strand.is_of_disk)
      shares_.Of(strand.jobs.served())
          .disk_us.Add(static_cast<std::uint64_t>(
              std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    strand.jobs.Charge(took);
    if (--unfinished_count_ == 0) idle_.notify_all();
  }
}

}  // namespace ffrecord::server
