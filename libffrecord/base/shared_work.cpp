#include "libffrecord/base/shared_work.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>
#include <vector>

#include "libffrecord/base/process_threads.h"

namespace ffrecord {
namespace {

// Processors beside that of the calling thread; what may change later does not change the pool.
std::uint32_t SpareProcessors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // More processors than the set has room for: then there are plenty.
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return SharedWork::kWorkerCountMax;
  const auto count = static_cast<std::uint32_t>(CPU_COUNT(&allowed));
  return std::min(std::max(count, 1U) - 1, SharedWork::kWorkerCountMax);
}

}  // namespace

// The workers of the process.
class WorkerPool {
 public:
  std::uint32_t thread_count_max() const noexcept { return thread_count_max_; }

  void Ready(SharedWork& work, std::size_t count);
  void Finish(SharedWork& work);
  void WaitForWorkers(SharedWork& work);
  void EndThreads();

 private:
  using Lock = std::unique_lock<std::mutex>;
  static void* Work(void* pool);
  SharedWork* WorkToDo() const;
  void StartThreads(std::size_t waiting);
  void DoPieceOf(SharedWork& work, std::uint32_t slot, Lock& lock);
  void WorkOn(SharedWork& work, Lock& lock);

  const std::uint32_t thread_count_max_ = SpareProcessors();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<SharedWork*> offers_;
  std::vector<pthread_t> threads_;
  std::size_t idle_ = 0;
  bool ending_ = false;
};

// The work that has the fewest workers. Requires the lock.
SharedWork* WorkerPool::WorkToDo() const {
  SharedWork* found = nullptr;
  int workers_min = static_cast<int>(SharedWork::kWorkerCountMax);
  for (SharedWork* work : offers_) {
    const int workers = std::popcount(work->slots_);
    if (work->begun_ == work->ready_ || workers >= workers_min) continue;
    if (workers >= static_cast<int>(work->worker_count_)) continue;
    found = work;
    workers_min = workers;
  }
  return found;
}

// Requires the lock. Failure is no error: then those who have the work do it.
void WorkerPool::StartThreads(std::size_t waiting) {
  while (idle_ < waiting && threads_.size() < thread_count_max_ && !ending_) {
    pthread_t thread{};
    if (!StartQuietThread(thread, &WorkerPool::Work, this)) return;
    threads_.push_back(thread);
    ++idle_;  // It will look for work as soon as it gets the lock.
  }
}

// Does the next piece without the lock.
void WorkerPool::DoPieceOf(SharedWork& work, std::uint32_t slot, Lock& lock) {
  const std::size_t piece = work.begun_++;
  lock.unlock();
  work.do_piece_(piece, slot);
  lock.lock();
}

void WorkerPool::WorkOn(SharedWork& work, Lock& lock) {
  const auto slot = static_cast<std::uint32_t>(std::countr_one(work.slots_ | 1));
  work.slots_ |= std::uint64_t{1} << slot;
  while (work.begun_ < work.ready_ && !ending_) DoPieceOf(work, slot, lock);
  work.slots_ &= ~(std::uint64_t{1} << slot);
  // With the lock, for `work` may be gone as soon as its thread gets it.
  if (work.slots_ == 0) work.left_.notify_one();
}

void* WorkerPool::Work(void* pool) {
  auto& self = *static_cast<WorkerPool*>(pool);
  Lock lock(self.mutex_);
  while (!self.ending_) {
    if (SharedWork* work = self.WorkToDo(); work != nullptr) {
      --self.idle_;
      self.WorkOn(*work, lock);
      ++self.idle_;
    } else {
      self.wake_.wait(lock);
    }
  }
  return nullptr;
}

void WorkerPool::Ready(SharedWork& work, std::size_t count) {
  Lock lock(mutex_);
  if (!work.offered_) offers_.push_back(&work);
  work.offered_ = true;
  work.ready_ = count;
  const std::size_t waiting = work.ready_ - work.begun_;
  StartThreads(std::min<std::size_t>(waiting, work.worker_count_));
  for (std::size_t i = 0; i < std::min(waiting, idle_); ++i) wake_.notify_one();
  // Twice as many as there are workers will keep them busy until this thread is back.
  if (waiting > std::size_t{2} * work.worker_count_) DoPieceOf(work, 0, lock);
}

void WorkerPool::Finish(SharedWork& work) {
  Lock lock(mutex_);
  while (work.begun_ < work.ready_) DoPieceOf(work, 0, lock);
  work.left_.wait(lock, [&] { return work.slots_ == 0; });
}

void WorkerPool::WaitForWorkers(SharedWork& work) {
  Lock lock(mutex_);
  work.ready_ = work.begun_;
  std::erase(offers_, &work);
  work.left_.wait(lock, [&] { return work.slots_ == 0; });
}

void WorkerPool::EndThreads() {
  std::vector<pthread_t> threads;
  {
    const Lock lock(mutex_);
    ending_ = true;
    threads.swap(threads_);
    wake_.notify_all();
  }
  for (const pthread_t thread : threads) ::pthread_join(thread, nullptr);
}

SharedWork::SharedWork(std::uint32_t worker_count_max, DoPiece do_piece)
    : do_piece_(std::move(do_piece)),
      worker_count_(std::min(worker_count_max, OfThisProcess<WorkerPool>().thread_count_max())) {}

SharedWork::~SharedWork() {
  if (offered_) OfThisProcess<WorkerPool>().WaitForWorkers(*this);
}

void SharedWork::Ready(std::size_t count) {
  if (worker_count_ > 0) return OfThisProcess<WorkerPool>().Ready(*this, count);
  ready_ = count;
  if (begun_ < ready_) do_piece_(begun_++, 0);
}

void SharedWork::Finish() {
  if (worker_count_ > 0) return OfThisProcess<WorkerPool>().Finish(*this);
  while (begun_ < ready_) do_piece_(begun_++, 0);
}

}  // namespace ffrecord
