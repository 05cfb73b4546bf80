#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord {

inline constexpr int kZstdLevelMin = 1;
inline constexpr int kZstdLevelMax = 19;
// Of the window that a frame may ask a reader to keep.
inline constexpr std::uint64_t kZstdWindowBytesMax = std::uint64_t{128} << 20;

// Compresses records one by one into a buffer of its own, which is reused.
class ZstdCompressor {
 public:
  // Requires kZstdLevelMin <= level <= kZstdLevelMax.
  explicit ZstdCompressor(int level);
  ZstdCompressor(ZstdCompressor&&) noexcept;
  ZstdCompressor& operator=(ZstdCompressor&&) noexcept;
  ~ZstdCompressor();

  // The frame of `raw`, valid until the next call; empty if it would be larger than 95 % of `raw`,
  // which is then better kept as it is.
  std::span<const std::byte> Compress(std::span<const std::byte> raw);

 private:
  struct ContextDeleter {
    void operator()(void* context) const noexcept;
  };
  std::unique_ptr<void, ContextDeleter> context_;
  std::vector<std::byte> frame_;
};

// Expands `frame`, which must be exactly one zstd frame without dictionary, with a window of at
// most kZstdWindowBytesMax and of exactly raw.size() bytes of content. Never writes past `raw`.
// Fails with kCorruption. Uses one context for each thread.
Result<void> ExpandZstd(std::span<const std::byte> frame, std::span<std::byte> raw);

}  // namespace ffrecord
