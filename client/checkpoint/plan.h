#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "libffrecord/base/text_index.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// One run of a segment's payload: zeros up to offset_bytes, then the bytes of one tensor.
struct Placement {
  std::uint64_t offset_bytes;
  std::size_t tensor;  // Index into the caller's tensors.
};

// The files that one rank will write: its manifest but for the digests of the segments' tables, and
// for each segment that is new, which are the last ones of the manifest, which tensor lies where,
// ascending. Pure: no I/O, the same input gives the same plan but for the segments' random ids.
struct PartPlan {
  PartManifest part;
  std::vector<std::vector<Placement>> segments;
  std::vector<std::size_t> box_of_tensor;  // Index into the part's boxes, of each tensor.
  std::uint64_t tensor_bytes = 0;

  std::size_t kept_count() const { return part.segments.size() - segments.size(); }
};

// Segments of an earlier step that the part has as well, and which tensors lie in them.
struct KeptBoxes {
  struct Place {
    std::uint32_t segment;  // Index into `segments`.
    std::uint64_t offset_bytes;
  };
  std::vector<StoredSegment> segments;
  std::vector<std::uint32_t> segments_before;  // Their indices in the earlier part.
  std::vector<std::optional<Place>> places;    // One for each tensor, or none at all.
};

// A new segment begins when the current one would pass this. A larger tensor has one of its own.
// Segments travel to a daemon side by side, so they are not as large as they could be.
inline constexpr std::uint64_t kSegmentPayloadTarget = std::uint64_t{4} << 30;

// From this size on a tensor is placed so that its offset in the segment equals its address modulo
// 4 KiB, all but its edges can then be written from its own memory by direct I/O, and read into it.
inline constexpr std::uint64_t kCongruentSizeMin = 512 << 10;

// Hashes of the bytes of a tensor view.
struct BoxContent {
  Digest128 content{};       // Their XXH3-128.
  std::uint64_t digest = 0;  // Their share of the digest of their tensor.
};

// Places tensors of 512 KiB and more as said above, then those of 4 KiB and more at multiples of 4
// KiB, then packs the small ones at multiples of 64 bytes. Fails with kInvalidArgument if a
// tensor's key, type, box or size of data is wrong, or if a box is given twice. Tensors in `kept`
// are not placed. With `contents`, one for each tensor, the part has them.
Result<PartPlan> PlanPart(std::uint64_t step, const AttemptId& attempt, std::uint32_t rank,
                          std::span<const TensorView> tensors,
                          std::uint64_t segment_payload_target = kSegmentPayloadTarget,
                          const KeptBoxes* kept = nullptr,
                          std::span<const BoxContent> contents = {});

// A box of one rank, as all ranks come to know it. Borrows the key, the type and the shapes: there
// are boxes by the 100,000 on one rank, and ranks by the 1,000.
struct PlannedBox {
  std::string_view key;
  std::string_view dtype;
  std::span<const std::uint64_t> shape;
  std::span<const std::uint64_t> offset;
  std::span<const std::uint64_t> extent;
  std::uint32_t rank = 0;
};

// A shape, an offset or an extent, as messages show it: (3, 4).
std::string ShapeText(std::span<const std::uint64_t> sizes);

// The boxes of a part, which lends them.
std::vector<PlannedBox> BoxesOf(const PartManifest& part);

// Checks that the boxes of each tensor agree in type and shape and cover it once: no overlap, no
// gap. Sorts; O(n log n) for boxes that do not overlap in their first dimension, which is how
// tensors are divided in practice. Fails with kInvalidArgument and names key, boxes and ranks.
// Returns the keys of all tensors, borrowed as the boxes' are.
Result<TextIndex> CheckBoxes(std::span<const PlannedBox> boxes);

// Checks that each of `keys`, to which a tree refers, is one of those that are `saved`. Fails with
// kInvalidArgument and names one that is not.
Result<void> CheckReferences(std::span<const std::string_view> keys, const TextIndex& saved);

}  // namespace ffrecord::client
