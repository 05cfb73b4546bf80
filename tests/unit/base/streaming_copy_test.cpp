// Goal: a copy past the caches is a copy, of any size and alignment, and touches nothing beside it.
// Method: copies at every offset within a line, of sizes about the limits, between guard bytes; one
// that another thread reads as soon as it is told.

#include "libffrecord/base/streaming_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace ffrecord {
namespace {

std::vector<std::byte> Numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 167 + (i >> 8));
  return bytes;
}

TEST(StreamingCopy, CopiesAnySizeAtAnyAlignmentAndNothingBesideIt) {
  constexpr std::byte kGuard{0xA5};
  const auto source = Numbered((40 << 10) + 128);
  constexpr std::size_t kSizes[] = {
      0, 1, 63, 64, 4096, (16 << 10) - 1, 16 << 10, (16 << 10) + 65, 40 << 10};
  constexpr std::size_t kOffsets[] = {0, 1, 8, 33};
  for (const std::size_t size : kSizes) {
    for (std::size_t out = 0; out < 64; out += 7) {
      for (const std::size_t in : kOffsets) {
        std::vector<std::byte> target(size + 128, kGuard);
        StreamingCopy(std::span(target).subspan(out), std::span(source).subspan(in, size));
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool is_copied = i >= out && i < out + size;
          ASSERT_EQ(target[i], is_copied ? source[in + i - out] : kGuard)
              << size << " bytes from " << in << " to " << out << ", byte " << i;
        }
      }
    }
  }
}

TEST(StreamingCopy, WhoIsToldOfACopySeesIt) {
  const auto source = Numbered(1 << 20);
  std::vector<std::byte> target(source.size());
  std::atomic<bool> is_copied{false};
  bool is_right = false;
  std::thread reader([&] {
    is_copied.wait(false);
    is_right = target == source;
  });
  StreamingCopy(target, source);
  is_copied = true;
  is_copied.notify_one();
  reader.join();
  EXPECT_TRUE(is_right);
}

}  // namespace
}  // namespace ffrecord
