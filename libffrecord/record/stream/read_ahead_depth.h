#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ffrecord {

// How many batches are worth reading ahead of a consumer.
//
// A consumer that waits although all batches were ready a while ago is slow now and then, or its
// source is: more batches even that out. One that waits and never finds all of them ready is
// faster than its source, whatever the depth: it gets the fewest, whose memory is used again while
// it is in the caches.
class ReadAheadDepth {
 public:
  static constexpr std::uint32_t kMax = 256;

  ReadAheadDepth(std::uint32_t least, std::uint32_t step, std::uint64_t memory_limit_bytes) noexcept
      : least_(least), step_(step), memory_limit_bytes_(memory_limit_bytes), depth_(least) {}

  // Batches at present.
  std::uint32_t value() const noexcept {
    if (batch_bytes_ == 0) return expected_bytes_ == 0 ? depth_ : Fitting(expected_bytes_, depth_);
    // A hand-over between threads costs as much as reading a small batch.
    const std::uint64_t small = std::min<std::uint64_t>(kSmallBytes / batch_bytes_, kSmallMax);
    const std::uint64_t wanted = std::max<std::uint64_t>(depth_, small);
    return Fitting(batch_bytes_, wanted);
  }

  // Whether the size of any batch is known. Until then nobody can tell how many fit.
  bool is_known() const noexcept { return batch_bytes_ != 0 || expected_bytes_ != 0; }
  // The first batch will have that size, and more once it is decoded.
  void Expect(std::uint64_t size_bytes) noexcept { expected_bytes_ = size_bytes; }
  // A batch of that size has been read.
  void Weigh(std::uint64_t size_bytes) noexcept {
    batch_bytes_ = std::max<std::uint64_t>(size_bytes, 1);
  }

  // The consumer has waited that long for a batch; all were ready when it asked, or not.
  void Taken(std::chrono::nanoseconds waited, bool all_were_ready) noexcept {
    since_full_ = all_were_ready ? 0 : since_full_ + 1;
    was_full_ = was_full_ || all_were_ready;
    if (waited <= kFelt) {
      if (++smooth_ < kSmoothBeforeShrinking || depth_ == least_) return;
      smooth_ = 0;
      --depth_;
      return;
    }
    smooth_ = 0;
    if (was_full_) {
      was_full_ = false;
      depth_ = std::min(kMax, depth_ + step_);
    } else if (since_full_ > kDepthsBeforeGivingUp * depth_) {
      depth_ = least_;
    }
  }

 private:
  static constexpr std::chrono::milliseconds kFelt{1};
  static constexpr std::uint32_t kSmoothBeforeShrinking = 100;
  static constexpr std::uint32_t kDepthsBeforeGivingUp = 4;
  static constexpr std::uint64_t kSmallBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kSmallMax = 32;

  std::uint32_t Fitting(std::uint64_t batch_bytes, std::uint64_t wanted) const noexcept {
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(memory_limit_bytes_ / batch_bytes, 1, wanted));
  }

  std::uint32_t least_;
  std::uint32_t step_;
  std::uint64_t memory_limit_bytes_;
  std::uint32_t depth_;
  std::uint64_t batch_bytes_ = 0;     // Size of a typical one.
  std::uint64_t expected_bytes_ = 0;  // Used before the first one has been read.
  std::uint32_t smooth_ = 0;          // Batches in a row that were ready when they were asked for.
  std::uint32_t since_full_ = 0;      // Batches since all were ready.
  bool was_full_ = false;             // All were, since it was last made deeper.
};

}  // namespace ffrecord
