#include "libffrecord/net/replicas/latency_quantile.h"

#include <algorithm>
#include <bit>

namespace ffrecord::net {
namespace {

// Latencies are counted in units of 1,024 ns. A bucket is the highest bit and the two below it.
constexpr unsigned kUnitBits = 10;

std::size_t BucketOf(std::chrono::nanoseconds latency) noexcept {
  const auto units =
      static_cast<std::uint64_t>(std::max<std::int64_t>(latency.count(), 0)) >> kUnitBits;
  const std::uint64_t value = std::max<std::uint64_t>(units, 1);
  const auto exponent = static_cast<unsigned>(std::bit_width(value)) - 1;
  return 4 * exponent + (((value << 2) >> exponent) & 3);
}

std::chrono::nanoseconds UpperBoundOf(std::size_t bucket) noexcept {
  const std::uint64_t quarters = 4 + bucket % 4 + 1;
  return std::chrono::nanoseconds(((quarters << (bucket / 4)) << kUnitBits) >> 2);
}

}  // namespace

void LatencyQuantile::Note(std::chrono::nanoseconds latency) noexcept {
  ++counts_[std::min(BucketOf(latency), kBucketCount - 1)];
  if (++total_ < kSamplesMax) return;
  total_ = 0;
  for (std::uint32_t& count : counts_) total_ += count /= 2;
}

std::optional<std::chrono::nanoseconds> LatencyQuantile::Bound(
    std::uint32_t above_max) const noexcept {
  if (total_ < kSamplesMin) return std::nullopt;
  std::uint32_t above = 0;
  std::size_t bucket = kBucketCount - 1;
  while (bucket > 0 && above + counts_[bucket] <= above_max) above += counts_[bucket--];
  return UpperBoundOf(bucket);
}

}  // namespace ffrecord::net
