#include "client/checkpoint/step_digests.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ffrecord/checkpoint_dtype.h>

#include "client/checkpoint/plan.h"

namespace ffrecord::client {
namespace {

// Sorts `boxes` as they lie in their segment.
std::vector<BoxDigests::Place> PlacesOf(std::vector<const StoredBox*>& boxes) {
  std::ranges::sort(boxes, {}, &StoredBox::offset_bytes);
  std::vector<BoxDigests::Place> places;
  places.reserve(boxes.size());
  for (const StoredBox* const box : boxes)
    places.push_back({box->offset_bytes,
                      box->size_bytes,
                      {box->offset, box->extent},
                      box->shape,
                      CheckpointDtypeOf(box->dtype)->size_bytes});
  return places;
}

}  // namespace

std::vector<SegmentOfPart> SegmentsOf(std::span<const PartManifest> parts) {
  std::vector<SegmentOfPart> segments;
  for (const PartManifest& part : parts)
    for (std::uint32_t i = 0; i < part.segments.size(); ++i) segments.push_back({&part, i});
  return segments;
}

StepDigests::StepDigests(std::span<const SegmentOfPart> segments) {
  // By part, where each of its segments is among those here.
  std::map<const PartManifest*, std::vector<std::optional<std::size_t>>> places;
  for (const SegmentOfPart& segment : segments) {
    auto& of_part = places[segment.part];
    of_part.resize(segment.part->segments.size());
    of_part[segment.index] = segments_.size();
    segments_.push_back({segment.part, {}, {}});
  }
  for (const auto& [part, of_part] : places)
    for (const StoredBox& box : part->boxes)
      if (part->has_digests && box.size_bytes != 0 && of_part[box.segment])
        segments_[*of_part[box.segment]].boxes.push_back(&box);
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].part->has_digests)
      segments_[i].digests.emplace(PlacesOf(segments_[i].boxes),
                                   segments[i].stored().payload_size_bytes);
}

void StepDigests::AddBlock(std::uint32_t segment, std::uint64_t offset_bytes,
                           std::span<const std::byte> block) {
  if (auto& digests = segments_[segment].digests) digests->AddBlock(offset_bytes, block);
}

std::vector<StepDigests::Difference> StepDigests::Differences() const {
  std::vector<Difference> found;
  for (const Segment& segment : segments_) {
    if (!segment.digests || !segment.digests->is_complete()) continue;
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
