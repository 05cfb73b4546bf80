#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

class RemoteFiles;

// The part of one range that lies in one extent.
struct ExtentPart {
  std::uint32_t range = 0;         // In its group.
  std::uint32_t extent = 0;        // Among those of the manifest.
  std::uint32_t offset_bytes = 0;  // In the extent.
  std::span<std::byte> destination;
};

// The ranges of one group, cut where extents end, until each part has ended. Borrows the group.
class ExtentParts {
 public:
  // Sets the status of all ranges: kCorruption for those that pass the end of their file, which
  // have no parts, as empty ones have none.
  ExtentParts(const RemoteFiles& files, RangeGroup& group);

  RangeGroup& group() const noexcept { return group_; }
  // The parts in the order of the ranges; none once they were taken.
  const std::vector<ExtentPart>& all() const noexcept { return parts_; }
  std::vector<ExtentPart> TakeAll() noexcept;
  // The range of the file that the part is, to be read into `destination`.
  RangeRead RangeOf(const ExtentPart& part, std::span<std::byte> destination) const noexcept;

  // The part ended so, and sets the status of its range unless that has failed. Returns the range
  // if all its parts have ended, else null.
  RangeRead* End(const ExtentPart& part, ErrorCode status) noexcept;
  // The ranges with parts that have not ended, which end so now.
  std::vector<RangeRead*> EndMissing(ErrorCode status);
  // The ranges without parts; each is returned once.
  std::vector<RangeRead*> TakeEmpty() noexcept;

 private:
  void Cut(const RemoteFiles& files, std::uint32_t range);

  RangeGroup& group_;
  const std::span<RangeRead> ranges_;
  std::vector<ExtentPart> parts_;
  std::vector<std::uint32_t> parts_left_;  // Per range.
  std::vector<RangeRead*> empty_;
};

}  // namespace ffrecord::net
