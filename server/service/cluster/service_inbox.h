#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "libffrecord/base/timed_waits.h"
#include "server/cluster/machine.h"

namespace ffrecord::server {

// Work to be done on the service's thread. Outlives the service in the hands of callbacks that come
// late, whose words are dropped. Thread-safe.
class ServiceInbox {
 public:
  using Message = std::function<void()>;

  // False, and the message is dropped, once it is closed.
  bool Post(Message message) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return false;
    messages_.push_back(std::move(message));
    posted_.notify_one();
    return true;
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    posted_.notify_one();
  }
  // Waits until there is a message, or until `time`. False once it is closed and empty.
  bool Take(cluster::TimePoint time, std::vector<Message>& messages) {
    std::unique_lock lock(mutex_);
    const auto is_due = [&] { return is_closed_ || !messages_.empty(); };
    if (time == cluster::TimePoint::max())
      posted_.wait(lock, is_due);
    else
      WaitUntil(posted_, lock, time, is_due);
    messages = std::exchange(messages_, {});
    return !is_closed_ || !messages.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Message> messages_;
  bool is_closed_ = false;
};

}  // namespace ffrecord::server
