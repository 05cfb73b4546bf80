#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace ffrecord::net {

// The median of a node's latencies in the recent past. It moves by a quarter towards each new one,
// and no further: that one counts for little, however far off it is.
class MedianLatency {
 public:
  static constexpr std::uint32_t kSamplesMin = 8;

  void Note(std::chrono::nanoseconds latency) noexcept {
    if (count_++ == 0) median_ = latency;
    const auto step = median_ / 4 + std::chrono::nanoseconds(1);
    median_ = std::clamp(latency, median_ - step, median_ + step);
    count_ = std::min(count_, kSamplesMin);
  }
  // It is longer than this, and nobody waits for it any more.
  void NoteAtLeast(std::chrono::nanoseconds latency) noexcept {
    if (latency > median_) Note(latency);
  }
  // None before kSamplesMin of them.
  std::optional<std::chrono::nanoseconds> Value() const noexcept {
    return count_ < kSamplesMin ? std::nullopt : std::optional(median_);
  }

 private:
  std::chrono::nanoseconds median_{0};
  std::uint32_t count_ = 0;  // kSamplesMin at most.
};

}  // namespace ffrecord::net
