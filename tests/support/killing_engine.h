#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "libffrecord/io/io_engine.h"

namespace ffrecord::test {

// Passes everything on, and kills its own process at the `nth` request (from 1): before that one is
// begun, while it is in flight, or when it has ended. So every write and sync of a writer is a
// moment to die at, whatever the engine: one with threads cannot be traced.
class KillingEngine final : public IoEngine {
 public:
  enum class Moment : std::uint8_t { kBefore, kInFlight, kAfter };

  KillingEngine(std::unique_ptr<IoEngine> real, std::uint64_t nth, Moment moment)
      : real_(std::move(real)), nth_(nth), moment_(moment) {}

  std::string_view name() const noexcept override { return real_->name(); }

  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    if (moment_ == Moment::kBefore && !requests.empty() && count_ + 1 == nth_) Die();
    // One by one, so that each is the last that was begun.
    const auto taken = real_->Submit(requests.first(requests.empty() ? 0 : 1));
    if (!taken || taken.value() == 0) return taken;
    if (++count_ != nth_) return taken;
    IoRequest* done = nullptr;
    while (moment_ == Moment::kAfter && real_->in_flight() > 0)
      if (!real_->Wait(std::span(&done, 1), 1, std::chrono::seconds(1))) break;
    if (moment_ != Moment::kBefore) Die();
    return taken;
  }

  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    return real_->Wait(done, count_min, timeout);
  }
  std::uint32_t in_flight() const noexcept override { return real_->in_flight(); }

 private:
  [[noreturn]] static void Die() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  const std::unique_ptr<IoEngine> real_;
  const std::uint64_t nth_;
  const Moment moment_;
  std::uint64_t count_ = 0;
};

}  // namespace ffrecord::test
