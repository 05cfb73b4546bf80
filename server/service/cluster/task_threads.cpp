#include "server/service/cluster/task_threads.h"

#include <utility>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {

TaskThreads::TaskThreads(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { Run(); });
}

void TaskThreads::Post(Task task) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  tasks_.push_back(std::move(task));
  posted_.notify_one();
}

bool TaskThreads::is_stopping() const {
  const std::lock_guard lock(mutex_);
  return is_stopping_;
}

void TaskThreads::Stop() {
  BeginStop();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void TaskThreads::BeginStop() {
  std::deque<Task> dropped;  // Goes without the lock.
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  dropped.swap(tasks_);
  posted_.notify_all();
}

bool TaskThreads::AwaitEnd(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return WaitUntil(idle_, lock, deadline, [&] { return running_count_ == 0; });
}

void TaskThreads::Run() {
  const Patience::GiveUp stops = [this] { return is_stopping(); };
  const Patience patience(stops);
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return is_stopping_ || !tasks_.empty(); });
    if (is_stopping_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_count_;
    lock.unlock();
    task();
    task = nullptr;  // Its captures are destroyed without the lock.
    lock.lock();
    if (--running_count_ == 0) idle_.notify_all();
  }
}

}  // namespace ffrecord::server
