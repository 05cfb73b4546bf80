#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/process_threads.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/blocking_request.h"
#include "libffrecord/io/engine_support.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {
namespace {

// Enough blocking reads at a time to fill the queue of a fast disk; started only as work piles up.
constexpr std::size_t kThreadsMax = 32;

// The state that an engine shares with the pool; guarded by the pool's mutex.
struct Front {
  std::vector<IoRequest*> done;
  std::size_t wanted = 0;  // Completions that the engine sleeps for.
  std::condition_variable wake;
  EventFd event;  // Rung when a request is done; none until it is asked for.

  void Done(IoRequest* request) {
    done.push_back(request);
    if (done.size() >= wanted) wake.notify_one();
    if (event.fd() >= 0) event.Ring();
  }
};

// The process's threads for blocking I/O. At exit they end and are joined; later requests run on
// the thread that waits for them. The same happens if no thread can be started.
class Pool {
 public:
  void Submit(Front& front, std::span<IoRequest* const> requests);
  std::uint32_t Wait(Front& front, std::span<IoRequest*> done, std::size_t wanted,
                     const Deadline& deadline);
  // A descriptor that is readable while something of the front is done.
  Result<int> EventDescriptor(Front& front);
  void EndThreads();

 private:
  struct Job {
    IoRequest* request;
    Front* front;
  };

  static void* Work(void* pool);
  void StartThreads();
  void RunFront(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Job> jobs_;
  std::vector<pthread_t> threads_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
};

// Requires the lock. Failure is no error: the waiting threads then do the work.
void Pool::StartThreads() {
  while (idle_ < jobs_.size() && threads_.size() < kThreadsMax && !stopping_) {
    pthread_t thread{};
    if (!StartQuietThread(thread, &Pool::Work, this)) return;
    threads_.push_back(thread);
    ++idle_;  // It will take a job as soon as it gets the lock.
  }
}

void Pool::Submit(Front& front, std::span<IoRequest* const> requests) {
  const std::lock_guard lock(mutex_);
  for (IoRequest* request : requests) jobs_.push_back({request, &front});
  StartThreads();
  for (std::size_t i = 0; i < std::min(idle_, requests.size()); ++i) work_.notify_one();
}

// Runs the oldest job without the lock and hands it to its engine with it.
void Pool::RunFront(std::unique_lock<std::mutex>& lock) {
  const Job job = jobs_.front();
  jobs_.pop_front();
  lock.unlock();
  RunBlocking(*job.request);
  lock.lock();
  job.front->Done(job.request);
}

void* Pool::Work(void* pool) {
  auto& self = *static_cast<Pool*>(pool);
  std::unique_lock lock(self.mutex_);
  for (;;) {
    self.work_.wait(lock, [&] { return !self.jobs_.empty() || self.stopping_; });
    if (self.jobs_.empty()) return nullptr;
    --self.idle_;
    self.RunFront(lock);
    ++self.idle_;
  }
}

void Pool::EndThreads() {
  std::vector<pthread_t> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    work_.notify_all();
  }
  for (const pthread_t thread : threads) ::pthread_join(thread, nullptr);
}

std::uint32_t Pool::Wait(Front& front, std::span<IoRequest*> done, std::size_t wanted,
                         const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (front.done.size() < wanted && threads_.empty() && !jobs_.empty()) RunFront(lock);
  front.wanted = wanted;
  const auto enough = [&] { return front.done.size() >= wanted; };
  if (deadline.forever())
    front.wake.wait(lock, enough);
  else
    WaitUntil(front.wake, lock, deadline.end(), enough);
  front.wanted = 0;
  const std::size_t count = std::min(done.size(), front.done.size());
  const auto end = front.done.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(front.done.begin(), end, done.begin());
  front.done.erase(front.done.begin(), end);
  if (front.done.empty() && front.event.fd() >= 0) front.event.Clear();
  return static_cast<std::uint32_t>(count);
}

Result<int> Pool::EventDescriptor(Front& front) {
  const std::lock_guard lock(mutex_);
  if (front.event.fd() < 0) front.event = FFR_TRY(EventFd::Make());
  if (!front.done.empty()) front.event.Ring();
  return front.event.fd();
}

class ThreadsEngine final : public IoEngine {
 public:
  explicit ThreadsEngine(std::uint32_t depth) : depth_(depth) {}

  ~ThreadsEngine() override {
    // In a forked child the front is not destroyed: its condition variable may record waiters that
    // exist only in the parent.
    if (!home_.is_here())
      static_cast<void>(front_.release());
    else
      FFR_ASSERT(in_flight_ == 0);
  }

  std::string_view name() const noexcept override { return "threads"; }

  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    FFR_ASSERT(home_.is_here());
    const auto count =
        static_cast<std::uint32_t>(std::min<std::size_t>(requests.size(), depth_ - in_flight_));
    pool_.Submit(*front_, requests.first(count));
    in_flight_ += count;
    return count;
  }

  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    FFR_ASSERT(home_.is_here());
    FFR_ASSERT(count_min <= done.size());
    const std::uint32_t count =
        pool_.Wait(*front_, done, std::min(count_min, in_flight_), Deadline(timeout));
    in_flight_ -= count;
    return count;
  }

  Result<int> EventDescriptor() override { return pool_.EventDescriptor(*front_); }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }

 private:
  Pool& pool_ = OfThisProcess<Pool>();
  const HomeProcess home_;
  const std::uint32_t depth_;
  std::unique_ptr<Front> front_ = std::make_unique<Front>();
  std::uint32_t in_flight_ = 0;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeThreadsEngine(std::uint32_t depth) {
  if (auto checked = CheckDepth(depth); !checked) return checked.error();
  return std::unique_ptr<IoEngine>(std::make_unique<ThreadsEngine>(depth));
}

}  // namespace ffrecord
