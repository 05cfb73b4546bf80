#include "server/service/job_pool.h"

#include <utility>

namespace ffrecord::server {

JobPool::JobPool(std::uint32_t lane_count) {
  for (std::uint32_t i = 0; i < lane_count; ++i) lanes_.push_back(std::make_unique<Lane>());
  for (const auto& lane : lanes_) lane->thread = std::thread([this, &lane = *lane] { Run(lane); });
}

JobPool::~JobPool() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const auto& lane : lanes_) lane->posted.notify_one();
  }
  for (const auto& lane : lanes_) lane->thread.join();
}

void JobPool::Post(std::uint32_t lane, Job job) {
  const std::lock_guard lock(mutex_);
  lanes_[lane]->jobs.push_back(std::move(job));
  lanes_[lane]->posted.notify_one();
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
