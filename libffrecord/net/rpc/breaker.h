#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "libffrecord/base/back_off.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// Keeps the many callers of one target from storming it while it does not answer. Thread-safe.
//
// Closed, everybody goes. After kFailuresMax failures in a row it opens: for a pause, which grows
// as BackOff does, nobody goes; then one caller tries for all, and the others wait for what becomes
// of it. A success closes it.
class Breaker {
 public:
  static constexpr std::uint32_t kFailuresMax = 3;

  explicit Breaker(std::uint64_t seed) : back_off_(BackOff::kOfDaemons, seed), seed_(seed) {}

  // Waits until the caller may try, and then must tell what became of it. kNotYet: the deadline has
  // passed before, or the thread's patience was over, and there is nothing to tell.
  enum class Entry : std::uint8_t { kNotYet, kTogether, kAlone };
  Entry Enter(Deadline deadline);
  void Succeeded();
  void Failed(Entry entry);
  // Ended without a word on the target.
  void Abandoned(Entry entry);

  bool is_open() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  BackOff back_off_;
  const std::uint64_t seed_;
  std::uint32_t failure_count_ = 0;  // In a row.
  bool is_probing_ = false;          // Open, and somebody tries alone.
  Deadline next_try_{};              // While it is open.
};

}  // namespace ffrecord::net
