#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/checkpoint/tensor_digests.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// A segment of a part, by its number there. The part is borrowed.
struct SegmentOfPart {
  const PartManifest* part;
  std::uint32_t index;

  const StoredSegment& stored() const { return part->segments[index]; }
};

// All of a step, in rank order.
std::vector<SegmentOfPart> SegmentsOf(std::span<const PartManifest> parts);

// Compares the bytes in a step's segments with the digests in its manifests, which were made of the
// tensors as they were when they were saved. Steps of before have none, and agree with everything.
class StepDigests {
 public:
  explicit StepDigests(std::span<const SegmentOfPart> segments);

  // A block of the payload of `segment`, by its index among all. Thread-safe.
  void AddBlock(std::uint32_t segment, std::uint64_t offset_bytes,
                std::span<const std::byte> block);

  struct Difference {
    std::uint32_t rank;
    std::string message;  // Names tensor and slice.
  };
  // Those of the segments of which all blocks have passed by.
  std::vector<Difference> Differences() const;

 private:
  struct Segment {
    const PartManifest* part;
    std::vector<const StoredBox*> boxes;  // Ascending by offset.
    std::optional<BoxDigests> digests;    // None if the part has none.
  };
  std::vector<Segment> segments_;
};

// The digest of each tensor by its key, as far as all its boxes have one. Keys are borrowed.
std::unordered_map<std::string_view, std::optional<std::uint64_t>> DigestsOf(
    std::span<const PartManifest> parts);

}  // namespace ffrecord::client
