#include "libffrecord/net/rpc/breaker.h"

#include <algorithm>

#include "libffrecord/base/patient_wait.h"

namespace ffrecord::net {

Breaker::Entry Breaker::Enter(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (failure_count_ >= kFailuresMax) {
    const auto now = Clock::now();
    if (now >= deadline) return Entry::kNotYet;
    if (!is_probing_ && now >= next_try_) {
      is_probing_ = true;
      return Entry::kAlone;
    }
    // While somebody probes, it is he who will wake us.
    const Deadline until = is_probing_ ? deadline : std::min(deadline, next_try_);
    if (!WaitPatiently(changed_, lock, until) && Patience::OfThread().was_over())
      return Entry::kNotYet;
  }
  return Entry::kTogether;
}

void Breaker::Succeeded() {
  const std::lock_guard lock(mutex_);
  if (failure_count_ == 0) return;
  failure_count_ = 0;
  is_probing_ = false;
  back_off_ = BackOff(BackOff::kOfDaemons, seed_);
  changed_.notify_all();
}

void Breaker::Failed(Entry entry) {
  const std::lock_guard lock(mutex_);
  ++failure_count_;
  if (entry == Entry::kAlone) is_probing_ = false;
  // Those who had set out before it opened say nothing new.
  if (entry == Entry::kAlone || failure_count_ == kFailuresMax)
    next_try_ = Clock::now() + back_off_.Next();
  changed_.notify_all();
}

void Breaker::Abandoned(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (entry == Entry::kAlone) is_probing_ = false;
  changed_.notify_all();
}

bool Breaker::is_open() const {
  const std::lock_guard lock(mutex_);
  return failure_count_ >= kFailuresMax;
}

}  // namespace ffrecord::net
