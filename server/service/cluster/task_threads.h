#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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

 private:
  void Run();

  mutable std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Task> tasks_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ffrecord::server
