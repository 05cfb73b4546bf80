#pragma once

#include <cstdint>
#include <span>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The order of an epoch as a function: index = permutation(position). Constant memory, exact, the
// same in every process, language and release (format.md, "Order 1"). Immutable, hence
// thread-safe.
class FFR_EXPORT Permutation {
 public:
  // Fails with kInvalidArgument unless 0 < count <= 2^48.
  static Result<Permutation> Make(std::uint64_t seed, std::uint64_t epoch, std::uint64_t lane,
                                  std::uint64_t count);

  std::uint64_t count() const noexcept { return count_; }
  // Requires position < count().
  std::uint64_t operator()(std::uint64_t position) const noexcept;
  // Fills `indices` with the indices of the positions from `first` on, several at a time: much
  // faster than one call per position. Requires first + indices.size() <= count().
  void Fill(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept;
  // The position of `index`: the inverse. Requires index < count().
  std::uint64_t PositionOf(std::uint64_t index) const noexcept;

 private:
  Permutation() = default;
  std::uint64_t Walk(std::uint64_t value) const noexcept;
  void FillChunk(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept;
  std::uint64_t keys_[12] = {};
  std::uint64_t count_ = 0;
  std::uint32_t low_bits_ = 0;
  std::uint32_t high_bits_ = 0;
};

// The blocked order: permutes blocks of `block` records, then the records inside windows of
// `window` blocks. For disks that are slow at small random reads. Immutable, hence thread-safe.
class FFR_EXPORT BlockedPermutation {
 public:
  // Fails with kInvalidArgument unless 0 < count <= 2^48, block > 0 and window > 0, and
  // block * window <= 2^48.
  static Result<BlockedPermutation> Make(std::uint64_t seed, std::uint64_t epoch,
                                         std::uint64_t count, std::uint64_t block,
                                         std::uint64_t window);
  // Requires position < count.
  std::uint64_t operator()(std::uint64_t position) const noexcept;
  // The indices of the positions from `first` on. Requires first + indices.size() <= count.
  void Fill(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept;

 private:
  std::uint64_t Place(std::uint64_t t) const noexcept;
  BlockedPermutation(Permutation blocks, std::uint64_t seed, std::uint64_t epoch) noexcept
      : blocks_(blocks), seed_(seed), epoch_(epoch) {}
  Permutation blocks_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::uint64_t count_ = 0;
  std::uint64_t block_ = 0;
  std::uint64_t window_ = 0;
  std::uint64_t tail_ = 0;           // Size of the last block.
  std::uint64_t tail_position_ = 0;  // Where the permutation of blocks puts the last block.
};

}  // namespace ffrecord
