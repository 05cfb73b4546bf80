#include "libffrecord/source/threaded_queue.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/io_times.h"
#include "libffrecord/base/process_threads.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord {
namespace {

struct Call {
  RangeGroup* group = nullptr;
  std::atomic<bool> is_given_up = false;
};

// A message to a group: a range has arrived or, without a range, the call has ended.
struct News {
  Call* call = nullptr;
  RangeRead* range = nullptr;
  Result<void> result;
};

// State that the queue shares with its threads.
struct Shared {
  Shared(const RangeReader& for_reader, EventFd fd) : reader(for_reader), event(std::move(fd)) {}

  const RangeReader& reader;
  const EventFd event;
  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable told;
  std::deque<Call*> waiting;
  std::vector<News> news;
  std::size_t idle = 0;  // Threads.
  bool is_stopping = false;

  void Tell(News one) {
    const std::lock_guard lock(mutex);
    news.push_back(std::move(one));
    told.notify_one();
    event.Ring();
  }
  void Read(Call& call);
  static void* Work(void* shared);
};

void Shared::Read(Call& call) {
  const Patience::GiveUp asks = [&] { return call.is_given_up.load(); };
  Patience patience(asks);
  auto result = call.is_given_up.load() ? Result<void>(GivenUp())
                                        : reader.ReadEach(
                                              call.group->ranges(),
                                              [&](RangeRead& range) {
                                                Tell({&call, &range, {}});
                                              },
                                              patience);
  Tell({&call, nullptr, std::move(result)});
}

void* Shared::Work(void* argument) {
  auto& self = *static_cast<Shared*>(argument);
  std::unique_lock lock(self.mutex);
  for (;;) {
    self.work.wait(lock, [&] { return !self.waiting.empty() || self.is_stopping; });
    if (self.is_stopping) return nullptr;
    Call& call = *self.waiting.front();
    self.waiting.pop_front();
    --self.idle;
    lock.unlock();
    self.Read(call);
    lock.lock();
    ++self.idle;
  }
}

class ThreadedQueue final : public RangeQueue {
 public:
  ThreadedQueue(const RangeReader& reader, EventFd event)
      : shared_(std::make_unique<Shared>(reader, std::move(event))) {}

  ~ThreadedQueue() override {
    if (!home_.is_here()) {
      // In a forked child the threads do not exist, and the lock may be held.
      static_cast<void>(shared_.release());
      return;
    }
    for (const auto& call : calls_) call->is_given_up = true;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->is_stopping = true;
      shared_->work.notify_all();
    }
    for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
  }

  void Submit(RangeGroup& group) override {
    FFR_ASSERT(home_.is_here());
    calls_.push_back(std::make_unique<Call>());
    calls_.back()->group = &group;
    const std::lock_guard lock(shared_->mutex);
    shared_->waiting.push_back(calls_.back().get());
    if (shared_->idle < shared_->waiting.size() && threads_.size() < kThreadedGroupsMax) {
      pthread_t thread{};
      // If no thread can be started, Poll() reads.
      if (StartQuietThread(thread, &Shared::Work, shared_.get())) {
        threads_.push_back(thread);
        ++shared_->idle;
      }
    }
    shared_->work.notify_one();
  }

  void GiveUp(RangeGroup& group) override {
    const auto call = std::ranges::find_if(
        calls_, [&](const auto& candidate) { return candidate->group == &group; });
    FFR_ASSERT(call != calls_.end());
    (*call)->is_given_up = true;
  }

  void Poll(std::chrono::milliseconds timeout) override {
    FFR_ASSERT(home_.is_here());
    if (calls_.empty()) return;
    if (threads_.empty()) ReadHere();
    for (News& one : TakeNews(timeout)) {
      if (one.range != nullptr) {
        one.call->group->Arrived(*one.range);
        continue;
      }
      RangeGroup& group = *one.call->group;
      std::erase_if(calls_, [&](const auto& call) { return call.get() == one.call; });
      group.Ended(std::move(one.result));
    }
  }

  Result<int> EventDescriptor() override { return shared_->event.fd(); }

 private:
  void ReadHere() {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->news.empty() || shared_->waiting.empty()) return;
    Call& call = *shared_->waiting.front();
    shared_->waiting.pop_front();
    lock.unlock();
    shared_->Read(call);
  }

  std::vector<News> TakeNews(std::chrono::milliseconds timeout) {
    const TimedIo timed(&IoTimes::device);
    std::unique_lock lock(shared_->mutex);
    const auto has_news = [&] { return !shared_->news.empty(); };
    // A very long wait would overflow the clock.
    if (timeout >= std::chrono::hours(24))
      shared_->told.wait(lock, has_news);
    else
      WaitFor(shared_->told, lock, timeout, has_news);
    shared_->event.Clear();
    // Without a thread nobody else would ring for those that wait.
    if (threads_.empty() && !shared_->waiting.empty()) shared_->event.Ring();
    return std::exchange(shared_->news, {});
  }

  const HomeProcess home_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<pthread_t> threads_;
};

}  // namespace

Result<std::unique_ptr<RangeQueue>> MakeThreadedQueue(const RangeReader& reader) {
  return std::unique_ptr<RangeQueue>(
      std::make_unique<ThreadedQueue>(reader, FFR_TRY(EventFd::Make())));
}

}  // namespace ffrecord
