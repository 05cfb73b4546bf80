#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ffrecord::server {

// A few threads for what blocks: writing and sealing extents, metadata. Thread-safe.
//
// Each thread is a lane: jobs of one lane run one after another on the same thread, so what is
// thread-bound, such as a file that is being written, stays where it was made. How much may wait
// here is bounded by those who post: each connection has few jobs here at a time.
class JobPool {
 public:
  using Job = std::function<void()>;

  explicit JobPool(std::uint32_t lane_count);
  JobPool(const JobPool&) = delete;
  JobPool& operator=(const JobPool&) = delete;
  ~JobPool();  // Runs what has been posted, and what that posts to its own lane; then joins.

  std::uint32_t lane_count() const noexcept { return static_cast<std::uint32_t>(lanes_.size()); }

  // Requires lane < lane_count().
  void Post(std::uint32_t lane, Job job);

  // Waits until nothing is waiting or running. False at the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

 private:
  struct Lane {
    std::deque<Job> jobs;
    std::condition_variable posted;
    std::thread thread;
  };
  void Run(Lane& lane);

  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint32_t unfinished_count_ = 0;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace ffrecord::server
