#include "libffrecord/net/rpc/extent_parts.h"

#include <algorithm>
#include <utility>

#include "libffrecord/net/rpc/remote_files.h"

namespace ffrecord::net {

ExtentParts::ExtentParts(const RemoteFiles& files, RangeGroup& group)
    : group_(group), ranges_(group.ranges()), parts_left_(ranges_.size()) {
  parts_.reserve(ranges_.size());
  for (std::uint32_t i = 0; i < ranges_.size(); ++i) Cut(files, i);
}

void ExtentParts::Cut(const RemoteFiles& files, std::uint32_t index) {
  RangeRead& range = ranges_[index];
  range.status = files.Passes(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
  if (range.status != ErrorCode::kOk || range.destination.empty()) {
    empty_.push_back(&range);
    return;
  }
  std::uint64_t offset = range.offset_bytes;
  for (std::span<std::byte> rest = range.destination; !rest.empty();) {
    const auto extent = static_cast<std::uint32_t>(offset / kExtentSizeMax);
    const std::uint64_t within = offset % kExtentSizeMax;
    const auto piece = rest.first(std::min<std::uint64_t>(rest.size(), kExtentSizeMax - within));
    parts_.push_back({index, files.first_extent(range.file) + extent,
                      static_cast<std::uint32_t>(within), piece});
    ++parts_left_[index];
    rest = rest.subspan(piece.size());
    offset += piece.size();
  }
}

std::vector<ExtentPart> ExtentParts::TakeAll() noexcept { return std::exchange(parts_, {}); }

RangeRead ExtentParts::RangeOf(const ExtentPart& part,
                               std::span<std::byte> destination) const noexcept {
  const RangeRead& whole = ranges_[part.range];
  const auto begin = static_cast<std::uint64_t>(part.destination.data() - whole.destination.data());
  return {whole.file, whole.offset_bytes + begin, destination};
}

RangeRead* ExtentParts::End(const ExtentPart& part, ErrorCode status) noexcept {
  RangeRead& range = ranges_[part.range];
  if (range.status == ErrorCode::kOk) range.status = status;
  return --parts_left_[part.range] > 0 ? nullptr : &range;
}

std::vector<RangeRead*> ExtentParts::EndMissing(ErrorCode status) {
  std::vector<RangeRead*> missing;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (std::exchange(parts_left_[i], 0) == 0) continue;
    if (ranges_[i].status == ErrorCode::kOk) ranges_[i].status = status;
    missing.push_back(&ranges_[i]);
  }
  return missing;
}

std::vector<RangeRead*> ExtentParts::TakeEmpty() noexcept { return std::exchange(empty_, {}); }

}  // namespace ffrecord::net
