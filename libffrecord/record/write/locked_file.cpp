#include "libffrecord/record/write/locked_file.h"

#include <utility>

namespace ffrecord {

Result<void> LockedFile::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                  Patience& patience) const {
  for (RangeRead& range : ranges) {
    if (patience.IsOver()) return GivenUp();
    range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
    if (range.status == ErrorCode::kOk) {
      const std::lock_guard lock(mutex_);
      if (auto read = file_.Read(range.offset_bytes, range.destination); !read) {
        range.status = read.error().code;
        last_failure_.Note(std::move(read).error());
      }
    }
    arrived(range);
  }
  return {};
}

}  // namespace ffrecord
