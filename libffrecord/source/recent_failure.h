#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"

namespace ffrecord {

// For half a second after a range of a file could not be read in time, a single range of it fails
// at once: a batch that looks up an index page by page waits for a store that is gone once, not for
// each of its records. Thread-safe.
class RecentFailure {
 public:
  // Takes kUnavailable and kDeadlineExceeded; other codes do not say that the store is gone.
  void Note(std::uint32_t file, ErrorCode status) {
    if (status != ErrorCode::kUnavailable && status != ErrorCode::kDeadlineExceeded) return;
    status_.store(status);
    at_.store(Clock::now().time_since_epoch());
    file_.store(file);
  }

  // With what to fail a single range of the file now.
  std::optional<ErrorCode> Of(std::uint32_t file) const {
    constexpr auto kWhile = std::chrono::milliseconds(500);
    if (file_.load() != file || Clock::now().time_since_epoch() - at_.load() >= kWhile) return {};
    return status_.load();
  }

 private:
  std::atomic<std::uint32_t> file_{std::numeric_limits<std::uint32_t>::max()};
  std::atomic<Clock::duration> at_{Clock::duration::zero()};
  std::atomic<ErrorCode> status_{ErrorCode::kOk};
};

}  // namespace ffrecord
