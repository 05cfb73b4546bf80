#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/checkpoint_segment.h"

namespace ffrecord {

// The manifests of a checkpoint: one for each rank's part, and the root that makes them one.
// format.md, "Checkpoint". Encoding and decoding are pure functions; decoders take hostile
// bytes, check each size before they use it, and allocate no more than what they were given.
using AttemptId = std::array<std::byte, 16>;

inline constexpr std::uint64_t kManifestSizeMax = std::uint64_t{256} << 20;
inline constexpr std::uint32_t kCheckpointRanksMax = 1 << 20;
inline constexpr std::size_t kCheckpointDimensionsMax = 64;

// A box of a tensor and where its bytes are, contiguous and row-major. Sizes are in bytes.
struct StoredBox {
  std::string key;
  std::string dtype;
  std::vector<std::uint64_t> shape;   // Shape of the whole tensor.
  std::vector<std::uint64_t> offset;  // Offset of the box in it.
  std::vector<std::uint64_t> extent;  // Extent of the box.
  std::uint32_t segment = 0;          // Index into the part's segments.
  std::uint64_t offset_bytes = 0;     // In the segment.
  std::uint64_t size_bytes = 0;       // Product of extent and element size.
  Digest128 content{};                // XXH3-128 of the bytes, if the part has_contents.
  std::uint64_t digest = 0;           // Their share of the tensor's, if the part has_digests.

  bool operator==(const StoredBox&) const = default;
};

struct StoredSegment {
  SegmentId id{};
  std::uint64_t payload_size_bytes = 0;  // The file's size follows: LayoutOfSegment.
  Digest128 table_digest{};

  bool operator==(const StoredSegment&) const = default;
};

// One rank's share. Boxes ascend by (key, offset); no two are equal in both. A part that
// has_contents is of minor version 1, one that has_digests of minor version 2.
struct PartManifest {
  std::uint64_t step = 0;
  AttemptId attempt{};
  std::uint32_t rank = 0;
  std::vector<StoredSegment> segments;
  std::vector<StoredBox> boxes;
  bool has_contents = false;
  bool has_digests = false;

  bool operator==(const PartManifest&) const = default;
};

struct RootManifest {
  struct Part {
    std::uint64_t manifest_size_bytes = 0;
    Digest128 manifest_digest{};     // XXH3-128 of the whole part manifest.
    std::uint64_t tensor_bytes = 0;  // Sum of the sizes of its boxes.

    bool operator==(const Part&) const = default;
  };
  std::uint64_t step = 0;
  AttemptId attempt{};
  std::vector<Part> parts;      // In rank order: as many as ranks.
  std::vector<std::byte> tree;  // format.md, "Values".
  // Generation of the line that the step is on (format.md, "Lines"); 0 until the run goes back.
  // Another one makes the manifest one of minor version 1.
  std::uint64_t generation = 0;

  bool operator==(const RootManifest&) const = default;
};

std::vector<std::byte> EncodePartManifest(const PartManifest& part);
std::vector<std::byte> EncodeRootManifest(const RootManifest& root);

// Fail with kCorruption if the bytes are not exactly one manifest of that kind, every field of
// which is in range; with kInvalidArgument if a newer version of this library wrote them.
Result<PartManifest> DecodePartManifest(std::span<const std::byte> bytes);
Result<RootManifest> DecodeRootManifest(std::span<const std::byte> bytes);

// Checks shape, offset and extent of a box against each other, and returns its size in bytes.
// Fails with kInvalidArgument if they do not fit, if the type is unknown, or if the whole tensor
// or the box has 2^48 bytes or more.
Result<std::uint64_t> SizeOfBox(std::string_view dtype, std::span<const std::uint64_t> shape,
                                std::span<const std::uint64_t> offset,
                                std::span<const std::uint64_t> extent);

}  // namespace ffrecord
