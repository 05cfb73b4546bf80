#include <ffrecord/permutation.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/mix.h"
#include "libffrecord/base/permutation_rounds.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kCountMax = std::uint64_t{1} << 48;

// Lanes keep the permutations of one (seed, epoch) apart; format.md, "Blocked order".
constexpr std::uint64_t kBlockLane = 1;
constexpr std::uint64_t kFirstWindowLane = 2;

// Values that are permuted together, those that fall outside again together: small enough for the
// stack and the first cache. Below kFewMax one after the other is sooner done.
constexpr std::size_t kChunk = 512;
constexpr std::size_t kFewMax = 8;
static_assert(kChunk % kPermutedAbreast == 0);

Error BadCount(std::uint64_t count) {
  return {ErrorCode::kInvalidArgument,
          "order of an epoch: count is " + std::to_string(count) + ", must be 1 to 2^48"};
}

}  // namespace

Result<Permutation> Permutation::Make(std::uint64_t seed, std::uint64_t epoch, std::uint64_t lane,
                                      std::uint64_t count) {
  if (count == 0 || count > kCountMax) return BadCount(count);
  Permutation permutation;
  const std::uint64_t key =
      Mix64(Mix64(Mix64(seed + kGoldenGamma) ^ (epoch + kGoldenGamma)) ^ (lane + kGoldenGamma));
  for (std::uint64_t round = 0; round < std::size(permutation.keys_); ++round)
    permutation.keys_[round] = Mix64(key + (round + 1) * kGoldenGamma);
  const std::uint32_t bits = std::max(8U, static_cast<std::uint32_t>(std::bit_width(count - 1)));
  permutation.count_ = count;
  permutation.low_bits_ = bits / 2;
  permutation.high_bits_ = bits - bits / 2;
  return permutation;
}

std::uint64_t Permutation::operator()(std::uint64_t position) const noexcept {
  FFR_ASSERT(position < count_);
  return Walk(position);
}

// Cycle walking: the rounds permute [0, 2^bits), and a value outside [0, count) goes round again.
std::uint64_t Permutation::Walk(std::uint64_t value) const noexcept {
  do {
    std::uint64_t left = value >> low_bits_;
    std::uint64_t right = value & ((std::uint64_t{1} << low_bits_) - 1);
    for (int round = 0; round < 12; round += 2) {
      left ^= Mix64(right ^ keys_[round]) >> (64 - high_bits_);
      right ^= Mix64(left ^ keys_[round + 1]) >> (64 - low_bits_);
    }
    value = left << low_bits_ | right;
  } while (value >= count_);
  return value;
}

void Permutation::Fill(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept {
  FFR_ASSERT(first <= count_);
  FFR_ASSERT(indices.size() <= count_ - first);
  for (; indices.size() > kFewMax; first += kChunk) {
    const auto chunk = indices.first(std::min(indices.size(), kChunk));
    FillChunk(first, chunk);
    indices = indices.subspan(chunk.size());
    if (indices.empty()) return;
  }
  for (std::uint64_t& index : indices) index = Walk(first++);
}

// Cycle walking for many: all go round once, then those outside [0, count) until there are few.
void Permutation::FillChunk(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept {
  static const PermutationRounds permute = BestPermutationRounds();
  std::array<std::uint64_t, kChunk> values;
  std::array<std::uint32_t, kChunk> places;
  std::iota(values.begin(), values.end(), first);
  std::iota(places.begin(), places.end(), 0U);
  std::size_t left = indices.size();
  while (left > kFewMax) {
    // Values behind the last one are permuted too, and nobody looks at them.
    permute({keys_, low_bits_, high_bits_}, values.data(),
            (left + kPermutedAbreast - 1) / kPermutedAbreast * kPermutedAbreast);
    std::size_t outside = 0;
    for (std::size_t i = 0; i < left; ++i) {  // Without a branch that is guessed wrong.
      const std::uint64_t value = values[i];
      const std::uint32_t place = places[i];
      indices[place] = value;
      values[outside] = value;
      places[outside] = place;
      outside += value >= count_ ? 1 : 0;
    }
    left = outside;
  }
  for (std::size_t i = 0; i < left; ++i) indices[places[i]] = Walk(values[i]);
}

std::uint64_t Permutation::PositionOf(std::uint64_t index) const noexcept {
  FFR_ASSERT(index < count_);
  do {
    std::uint64_t left = index >> low_bits_;
    std::uint64_t right = index & ((std::uint64_t{1} << low_bits_) - 1);
    for (int round = 10; round >= 0; round -= 2) {
      right ^= Mix64(left ^ keys_[round + 1]) >> (64 - low_bits_);
      left ^= Mix64(right ^ keys_[round]) >> (64 - high_bits_);
    }
    index = left << low_bits_ | right;
  } while (index >= count_);
  return index;
}

Result<BlockedPermutation> BlockedPermutation::Make(std::uint64_t seed, std::uint64_t epoch,
                                                    std::uint64_t count, std::uint64_t block,
                                                    std::uint64_t window) {
  if (count == 0 || count > kCountMax) return BadCount(count);
  if (block == 0 || window == 0 || block > kCountMax / window)
    return Error{ErrorCode::kInvalidArgument, "blocked order: block is " + std::to_string(block) +
                                                  " and window is " + std::to_string(window) +
                                                  "; both must be positive, their product <= 2^48"};
  const std::uint64_t block_count = (count + block - 1) / block;
  const auto blocks = FFR_TRY(Permutation::Make(seed, epoch, kBlockLane, block_count));
  BlockedPermutation order(blocks, seed, epoch);
  order.count_ = count;
  order.block_ = block;
  order.window_ = window;
  order.tail_ = count - (block_count - 1) * block;
  order.tail_position_ = blocks.PositionOf(block_count - 1);
  return order;
}

std::uint64_t BlockedPermutation::operator()(std::uint64_t position) const noexcept {
  std::uint64_t index = 0;
  Fill(position, {&index, 1});
  return index;
}

void BlockedPermutation::Fill(std::uint64_t first,
                              std::span<std::uint64_t> indices) const noexcept {
  FFR_ASSERT(first <= count_);
  FFR_ASSERT(indices.size() <= count_ - first);
  const std::uint64_t span = block_ * window_;
  while (!indices.empty()) {
    const std::uint64_t number = first / span;
    const std::uint64_t begin = number * span;
    const std::uint64_t size = std::min(span, count_ - begin);
    const auto inside = Permutation::Make(seed_, epoch_, kFirstWindowLane + number, size);
    const auto part = indices.first(std::min<std::uint64_t>(indices.size(), begin + size - first));
    inside.value().Fill(first - begin, part);
    for (std::uint64_t& index : part) index = Place(begin + index);
    first += part.size();
    indices = indices.subspan(part.size());
  }
}

// The index that stands at `t` of the blocks laid end to end in their order.
std::uint64_t BlockedPermutation::Place(std::uint64_t t) const noexcept {
  // The last block may be short: whatever lies behind it moves up to the next block's first place.
  if (t >= tail_position_ * block_ + tail_) t += block_ - tail_;
  return blocks_(t / block_) * block_ + t % block_;
}

}  // namespace ffrecord
