#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace ffrecord::net {

// Learns the latency that half of all reads, or 99 of 100, stay below, from reads of the recent
// past. A histogram whose buckets are a quarter of a power of two wide; old counts fade by halves.
class LatencyQuantile {
 public:
  static constexpr std::uint32_t kSamplesMin = 100;
  static constexpr std::uint32_t kSamplesMax = 8192;

  void Note(std::chrono::nanoseconds latency) noexcept;
  // The upper bound of its bucket; none before kSamplesMin reads.
  std::optional<std::chrono::nanoseconds> Median() const noexcept { return Bound(total_ / 2); }
  std::optional<std::chrono::nanoseconds> P99() const noexcept { return Bound(total_ / 100); }

 private:
  // The upper bound of the bucket that no more than so many reads are above.
  std::optional<std::chrono::nanoseconds> Bound(std::uint32_t above_max) const noexcept;

  static constexpr std::size_t kBucketCount = 128;

  std::array<std::uint32_t, kBucketCount> counts_{};
  std::uint32_t total_ = 0;
};

}  // namespace ffrecord::net
