#include "server/service/jobs/fair_queue.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {

static_assert(FairQueue::kCostMin / FairQueue::kWeightMax > FairQueue::Duration(0));

void FairQueue::Push(std::string_view tenant, Job job, std::uint32_t weight) {
  FFR_ASSERT(weight >= 1);
  FFR_ASSERT(weight <= kWeightMax);
  auto found = tenants_.find(tenant);
  if (found == tenants_.end())
    found = tenants_.emplace(tenant, Tenant{.weight = weight, .used = now_}).first;
  found->second.jobs.push_back(std::move(job));
  ++job_count_;
}

FairQueue::Job FairQueue::Pop() {
  FFR_ASSERT(!empty());
  served_ = tenants_.end();
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    if (tenant->second.jobs.empty()) continue;
    if (served_ == tenants_.end() || tenant->second.used < served_->second.used) served_ = tenant;
  }
  now_ = served_->second.used;
  std::erase_if(tenants_, [this](const auto& one) {
    return one.second.jobs.empty() && one.second.used <= now_;
  });
  Job job = std::move(served_->second.jobs.front());
  served_->second.jobs.pop_front();
  --job_count_;
  return job;
}

void FairQueue::Charge(Duration took) {
  served_->second.used += std::max(took, kCostMin) / served_->second.weight;
  served_ = tenants_.end();
  // Nobody waits: the next ones begin as equals.
  if (empty()) tenants_.clear();
}

}  // namespace ffrecord::server
