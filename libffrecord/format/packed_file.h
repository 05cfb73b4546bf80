#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/zstd_codec.h"

namespace ffrecord {

// A file that is kept compressed: frames of kPackedFrameSize bytes of it, which are compressed one
// by one, then where they are. format.md, "Packed file". All pure functions, but for the packer's
// buffers.
inline constexpr std::uint64_t kPackedFrameSize = 512 << 10;
inline constexpr std::uint64_t kPackedFooterSize = 48;
inline constexpr std::uint64_t kPackedRawSizeMax = std::uint64_t{1} << 49;

// How one frame is stored.
struct PackedFrame {
  std::uint32_t stored_size_bytes = 0;
  // Bytes of an element, 1, 2, 4 or 8: all their first bytes are compressed together, all second
  // ones, and so on, for the planes of numbers differ in how much they vary. 0: stored as it is.
  std::uint32_t width = 0;

  bool operator==(const PackedFrame&) const = default;
};

// Makes frames. Thread-bound.
class FramePacker {
 public:
  FramePacker() : whole_(kLevel), sample_(kSampleLevel) {}

  struct Packed {
    PackedFrame frame;
    std::span<const std::byte> stored;  // Valid until the next call, as long as `raw` is.
  };
  // Takes the width that makes a part of `raw` smallest. At most kPackedFrameSize bytes. The same
  // bytes always give the same, by one release of zstd.
  Packed Pack(std::span<const std::byte> raw);

 private:
  static constexpr int kLevel = 3;
  static constexpr int kSampleLevel = 1;
  // `raw` as planes of that width, valid until the next call.
  std::span<const std::byte> PackAs(std::uint32_t width, std::span<const std::byte> raw,
                                    ZstdCompressor& compressor);

  ZstdCompressor whole_;
  ZstdCompressor sample_;
  std::vector<std::byte> planes_;
  std::vector<std::byte> stored_;
};

// Undoes it: `raw` is filled. `planes` is scratch memory. Fails with kCorruption.
Result<void> UnpackFrame(const PackedFrame& frame, std::span<const std::byte> stored,
                         std::span<std::byte> raw, std::vector<std::byte>& planes);

// The bytes behind the frames of a file of so many bytes: the table and the footer. Requires as
// many frames as that has.
std::vector<std::byte> EncodePackedEnd(std::uint64_t raw_size_bytes,
                                       std::span<const PackedFrame> frames);

// Reads the footer. Fails with kCorruption, also if it cannot be of a file of `file_size_bytes`.
struct PackedFooter {
  std::uint64_t raw_size_bytes = 0;
  std::uint64_t frame_count = 0;
  std::uint64_t table_offset_bytes = 0;
  std::array<std::byte, 16> table_digest{};

  std::uint64_t table_size_bytes() const noexcept { return 8 * frame_count; }
};
Result<PackedFooter> DecodePackedFooter(std::span<const std::byte> footer,
                                        std::uint64_t file_size_bytes);

// Where the frames are: [i] begins at offsets[i] and ends at offsets[i + 1].
struct PackedTable {
  std::uint64_t raw_size_bytes = 0;
  std::vector<PackedFrame> frames;
  std::vector<std::uint64_t> offsets;
};
Result<PackedTable> DecodePackedTable(const PackedFooter& footer, std::span<const std::byte> table);

}  // namespace ffrecord
