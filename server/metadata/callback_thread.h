#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// The one thread on which the callbacks of a store run, and which completes operations that are
// late. Thread-safe. The destructor completes those that are under way with kUnavailable.
class CallbackThread {
 public:
  CallbackThread();
  ~CallbackThread();
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  // Runs `act` on the thread, after all that was posted before.
  void Post(std::function<void()> act);

  // Begins an operation, and returns what its result is to be given to. `done` gets that result, or
  // Unanswered() at the deadline: once, on the thread. The returned function must not be called
  // after the destructor.
  template <class T>
  MetaStore::Done<T> Guard(MetaStore::TimePoint deadline, MetaStore::Done<T> done) {
    const auto shared = std::make_shared<MetaStore::Done<T>>(std::move(done));
    const Operation operation =
        Begin(deadline, [shared](Error why) { (*shared)(Unanswered<T>(std::move(why))); });
    return [this, operation, shared](Result<T> result) {
      Post([this, operation, shared, result = std::move(result)] {
        if (End(operation)) (*shared)(result);
      });
    };
  }

 private:
  using GiveUp = std::function<void(Error)>;
  using Operation = std::pair<MetaStore::TimePoint, std::uint64_t>;  // In order of deadlines.

  Operation Begin(MetaStore::TimePoint deadline, GiveUp give_up);
  bool End(const Operation& operation);  // False: it has been given up.
  void Run();
  // The next thing to do; none: the thread ends.
  std::function<void()> Next();

  std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  std::map<Operation, GiveUp> open_;
  std::uint64_t next_number_ = 1;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace ffrecord::server
