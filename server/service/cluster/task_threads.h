#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {

// A few threads for what waits for other nodes and for disks. Thread-safe.
//
// While they stop, waits for other nodes end within 50 ms (Patience), and tasks that have not begun
// are dropped.
class TaskThreads {
 public:
  using Task = std::function<void()>;

  explicit TaskThreads(std::size_t count);
  ~TaskThreads() { Stop(); }
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  void Post(Task task);  // Dropped once it stops.
  bool is_stopping() const;
  void Stop();  // Joins. Belongs to the thread that made it.

  // The two halves of a stop that does not wait for ever: for tasks that may hang.
  void BeginStop();
  // Waits until no task runs. False at the deadline; then only the end of the process ends it.
  bool AwaitEnd(Clock::time_point deadline);

 private:
  void Run();

  mutable std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  bool is_stopping_ = false;
  std::size_t running_count_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace ffrecord::server
