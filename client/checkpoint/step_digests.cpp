#include "client/checkpoint/step_digests.h"

#include <algorithm>
#include <utility>

#include <ffrecord/checkpoint_dtype.h>

#include "client/checkpoint/plan.h"

namespace ffrecord::client {
StepDigests::StepDigests(std::span<const PartManifest> parts) {
  for (const PartManifest& part : parts) {
    const std::size_t first = segments_.size();
    for (std::size_t i = 0; i < part.segments.size(); ++i) segments_.push_back({&part, {}, {}});
    if (!part.has_digests) continue;
    for (const StoredBox& box : part.boxes)
      if (box.size_bytes != 0) segments_[first + box.segment].boxes.push_back(&box);
    for (std::size_t i = 0; i < part.segments.size(); ++i) {
      auto& boxes = segments_[first + i].boxes;
      std::ranges::sort(boxes, {}, &StoredBox::offset_bytes);
      std::vector<BoxDigests::Place> places;
      places.reserve(boxes.size());
      for (const StoredBox* const box : boxes)
        places.push_back({box->offset_bytes,
                          box->size_bytes,
                          {box->offset, box->extent},
                          box->shape,
                          CheckpointDtypeOf(box->dtype)->size_bytes});
      segments_[first + i].digests.emplace(std::move(places), part.segments[i].payload_size_bytes);
    }
  }
}

void StepDigests::AddBlock(std::uint32_t segment, std::uint64_t offset_bytes,
                           std::span<const std::byte> block) {
  if (auto& digests = segments_[segment].digests) digests->AddBlock(offset_bytes, block);
}

std::vector<StepDigests::Difference> StepDigests::Differences() const {
  std::vector<Difference> found;
  for (const Segment& segment : segments_) {
    if (!segment.digests) continue;
    const auto sums = segment.digests->sums();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const StoredBox& box = *segment.boxes[i];
      if (sums[i] == box.digest) continue;
      found.push_back(
          {segment.part->rank,
           "the bytes of tensor " + box.key + " at " + ShapeText(box.offset) + " of extent " +
               ShapeText(box.extent) +
               " are not those that were saved: they changed before they were written"});
    }
  }
  return found;
}

std::unordered_map<std::string_view, std::optional<std::uint64_t>> DigestsOf(
    std::span<const PartManifest> parts) {
  std::unordered_map<std::string_view, std::optional<std::uint64_t>> digests;
  for (const PartManifest& part : parts)
    for (const StoredBox& box : part.boxes) {
      auto& digest = digests.try_emplace(box.key, 0).first->second;
      if (!part.has_digests)
        digest.reset();
      else if (digest)
        *digest ^= box.digest;
    }
  return digests;
}

}  // namespace ffrecord::client
