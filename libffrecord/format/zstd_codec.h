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
inline constexpr std::size_t kZstdDictionaryBytesMin = 256;
// The largest window that a frame may ask a reader to keep.
inline constexpr std::uint64_t kZstdWindowBytesMax = std::uint64_t{128} << 20;

// A dictionary that frames name in their header, prepared for decompression. Immutable: many
// threads may decompress with it.
class ZstdDictionary {
 public:
  // Copies `bytes`, which must be a dictionary of zstd's format with an id that is not 0. Fails
  // with kCorruption, or with kIo (ENOMEM).
  static Result<ZstdDictionary> Make(std::span<const std::byte> bytes);
  ZstdDictionary(ZstdDictionary&&) noexcept;
  ZstdDictionary& operator=(ZstdDictionary&&) noexcept;
  ~ZstdDictionary();

  std::uint32_t id() const noexcept { return id_; }
  // For the codec.
  const void* prepared() const noexcept { return prepared_.get(); }

 private:
  struct PreparedDeleter {
    void operator()(void* prepared) const noexcept;
  };
  ZstdDictionary() = default;
  std::uint32_t id_ = 0;
  std::unique_ptr<void, PreparedDeleter> prepared_;
};

// A dictionary of at most `size_bytes_max` bytes for records like `samples`, which stand back to
// back and are as large as `sizes_bytes` say. Empty if they are too few or too small. Deterministic
// for one release of zstd. Requires size_bytes_max >= kZstdDictionaryBytesMin.
std::vector<std::byte> TrainZstdDictionary(std::span<const std::byte> samples,
                                           std::span<const std::size_t> sizes_bytes,
                                           std::size_t size_bytes_max);

// Compresses records one by one into a buffer of its own, which is reused.
class ZstdCompressor {
 public:
  // Requires kZstdLevelMin <= level <= kZstdLevelMax.
  explicit ZstdCompressor(int level);
  // With a dictionary, which is copied. Fails as ZstdDictionary::Make.
  static Result<ZstdCompressor> Make(int level, std::span<const std::byte> dictionary);
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
  struct PreparedDeleter {
    void operator()(void* prepared) const noexcept;
  };
  std::unique_ptr<void, PreparedDeleter> prepared_;  // Null without a dictionary.
  std::unique_ptr<void, ContextDeleter> context_;    // Borrows the dictionary.
  std::vector<std::byte> frame_;
};

// Decompresses `frame`, which must be exactly one zstd frame with a window of at most
// kZstdWindowBytesMax, of exactly raw.size() bytes of content, that names none or one of
// `dictionaries`. Never writes past `raw`. Fails with kCorruption. Uses one context for each
// thread, and allocates nothing else.
Result<void> DecompressZstd(std::span<const std::byte> frame, std::span<std::byte> raw,
                            std::span<const ZstdDictionary> dictionaries = {});

}  // namespace ffrecord
