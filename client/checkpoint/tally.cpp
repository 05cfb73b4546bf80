#include "client/checkpoint/tally.h"

#include <algorithm>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/mix.h"
#include "libffrecord/base/text_index.h"

namespace ffrecord::client {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t Add(std::uint64_t a, std::uint64_t b) { return (a + b) % kTallyPrime; }
constexpr std::uint64_t Subtract(std::uint64_t a, std::uint64_t b) {
  return Add(a, kTallyPrime - b);
}
constexpr std::uint64_t Multiply(std::uint64_t a, std::uint64_t b) {
  const Wide product = Wide{a} * b;
  return Add(static_cast<std::uint64_t>(product & kTallyPrime),
             static_cast<std::uint64_t>(product >> 61));
}

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// Hash of a key, for its bucket and as one of the keys.
std::uint64_t HashOf(std::string_view key) { return Xxh3(BytesOf(key)); }
std::uint64_t FactorOfKey(std::uint64_t hash) { return Mix64(hash + kGoldenGamma) % kTallyPrime; }

std::uint64_t FactorOf(const PlannedBox& box, std::uint64_t hash) {
  hash = Xxh3(BytesOf(box.dtype), hash);
  for (const std::uint64_t size : box.shape) hash = Mix64((hash ^ size) + kGoldenGamma);
  return Mix64(hash ^ box.shape.size()) % kTallyPrime;
}

// The weight of the indices of a dimension that are before `index`.
std::uint64_t WeightBefore(std::size_t dimension, std::uint64_t index) {
  return index == 0 ? 0 : Mix64(Mix64(dimension + kGoldenGamma) ^ index) % kTallyPrime;
}

std::uint64_t WeightOf(std::span<const std::uint64_t> offset,
                       std::span<const std::uint64_t> extent) {
  std::uint64_t weight = 1;
  for (std::size_t d = 0; d < extent.size(); ++d)
    weight = Multiply(weight,
                      Subtract(WeightBefore(d, offset[d] + extent[d]), WeightBefore(d, offset[d])));
  return weight;
}

std::uint64_t WeightOfWhole(std::span<const std::uint64_t> shape) {
  std::uint64_t weight = 1;
  for (std::size_t d = 0; d < shape.size(); ++d)
    weight = Multiply(weight, WeightBefore(d, shape[d]));
  return weight;
}

void Count(const PlannedBox& box, BoxTallies& tallies) {
  const std::uint64_t hash = HashOf(box.key);
  BoxTally& tally = tallies[hash % kTallyBuckets];
  const bool has_elements = std::ranges::find(box.extent, 0U) == box.extent.end();
  const bool is_whole = std::ranges::equal(box.extent, box.shape);
  if (!has_elements && !is_whole) {
    ++tally.odd;
    return;
  }
  const std::uint64_t factor = FactorOf(box, hash);
  if (!is_whole) tally.cover = Add(tally.cover, Multiply(factor, WeightOf(box.offset, box.extent)));
  if (std::ranges::any_of(box.offset, [](std::uint64_t at) { return at != 0; })) return;
  if (!is_whole) tally.cover = Subtract(tally.cover, Multiply(factor, WeightOfWhole(box.shape)));
  tally.keys = Add(tally.keys, FactorOfKey(hash));
}

}  // namespace

BoxTally& BoxTally::operator+=(const BoxTally& other) noexcept {
  cover = Add(cover, other.cover);
  keys = Add(keys, other.keys);
  odd = Add(odd, other.odd);
  return *this;
}

std::size_t BucketOf(std::string_view key) noexcept { return HashOf(key) % kTallyBuckets; }

BoxTallies TallyBoxes(std::span<const PlannedBox> boxes,
                      std::span<const std::string_view> references) {
  BoxTallies tallies{};
  for (const PlannedBox& box : boxes) Count(box, tallies);
  TextIndex seen;
  for (const std::string_view key : references) {
    if (!seen.Add(key).is_new) continue;
    const std::uint64_t hash = HashOf(key);
    BoxTally& tally = tallies[hash % kTallyBuckets];
    tally.keys = Subtract(tally.keys, FactorOfKey(hash));
  }
  return tallies;
}

BoxTally SumOf(std::span<const BoxTally> tallies) noexcept {
  BoxTally sum;
  for (const BoxTally& tally : tallies) sum += tally;
  return sum;
}

}  // namespace ffrecord::client
