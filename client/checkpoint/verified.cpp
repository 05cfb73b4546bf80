#include "client/checkpoint/verified.h"

#include <utility>

#include "client/checkpoint/step_manifests.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {
namespace {

std::string KeyOf(const SegmentId& segment) {
  return {reinterpret_cast<const char*>(segment.data()), segment.size()};
}

}  // namespace

VerifiedSegments& VerifiedSegments::Process() {
  static VerifiedSegments segments;
  return segments;
}

bool VerifiedSegments::Has(const SegmentId& segment, const std::string& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = segments_.find(KeyOf(segment));
  return found != segments_.end() && found->second.file == file &&
         Clock::now() - found->second.when < kAge;
}

void VerifiedSegments::Add(const SegmentId& segment, std::string file) {
  const std::lock_guard lock(mutex_);
  if (segments_.size() >= kCountMax) segments_.clear();  // They are verified again.
  segments_[KeyOf(segment)] = {std::move(file), Clock::now()};
}

Result<bool> AreWhole(const CommittedStep& files, std::vector<SegmentReader::Segment> segments) {
  std::vector<std::pair<SegmentId, std::string>> read;
  std::erase_if(segments, [&](const SegmentReader::Segment& segment) {
    // Taken before the bytes are read: a file that is written meanwhile is another one.
    std::string file = files.IdentityOf(segment.name);
    if (!file.empty() && VerifiedSegments::Process().Has(segment.stored.id, file)) return true;
    read.emplace_back(segment.stored.id, std::move(file));
    return false;
  });
  const auto reader = SegmentReader::Open(files, std::move(segments));
  if (!reader && IsDamage(reader.error())) return false;
  if (!reader) return reader.error();
  if (!FFR_TRY(reader.value()->Verify(1)).empty()) return false;
  for (auto& [segment, file] : read)
    if (!file.empty()) VerifiedSegments::Process().Add(segment, std::move(file));
  return true;
}

}  // namespace ffrecord::client
