#include "server/metadata/callback_thread.h"

#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {

CallbackThread::CallbackThread() {
  const QuietSignals quiet;
  thread_ = std::thread([this] { Run(); });
}

CallbackThread::~CallbackThread() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void CallbackThread::Post(std::function<void()> act) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::move(act));
  changed_.notify_one();
}

CallbackThread::Operation CallbackThread::Begin(MetaStore::TimePoint deadline, GiveUp give_up) {
  const std::lock_guard lock(mutex_);
  const Operation operation(deadline, next_number_++);
  open_.emplace(operation, std::move(give_up));
  changed_.notify_one();  // Its deadline may be the first.
  return operation;
}

bool CallbackThread::End(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  return open_.erase(operation) == 1;
}

std::function<void()> CallbackThread::Next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!posted_.empty()) {
      auto act = std::move(posted_.front());
      posted_.pop_front();
      return act;
    }
    const auto first = open_.begin();
    const bool has_first = first != open_.end();
    if (has_first && (is_closing_ || first->first.first <= Clock::now())) {
      Error why =
          is_closing_
              ? Error{ErrorCode::kUnavailable, "the metadata store is closed"}
              : Error{ErrorCode::kDeadlineExceeded,
                      "the metadata store did not answer in time; see whether its disk hangs"};
      auto act = [give_up = std::move(first->second), why = std::move(why)] { give_up(why); };
      open_.erase(first);
      return act;
    }
    if (is_closing_) return {};
    if (has_first && first->first.first != MetaStore::TimePoint::max())
      WaitUntil(changed_, lock, first->first.first);
    else
      changed_.wait(lock);
  }
}

void CallbackThread::Run() {
  while (const auto act = Next()) act();
}

}  // namespace ffrecord::server
