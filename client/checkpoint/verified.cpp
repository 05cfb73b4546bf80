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

std::vector<SegmentInFile> FilesOf(std::span<const PartManifest> parts) {
  std::vector<SegmentInFile> files;
  for (const SegmentOfPart& segment : SegmentsOf(parts))
    files.push_back({SegmentName(segment.part->rank, segment.index), segment});
  return files;
}

Result<bool> AreWhole(const CommittedStep& files, std::span<const SegmentInFile> segments) {
  std::vector<std::string> identities;
  std::vector<SegmentReader::Segment> wanted;
  std::vector<SegmentOfPart> parts;
  for (const auto& [name, segment] : segments) {
    // Taken before the bytes are read: a file that is written meanwhile is another one.
    std::string file = files.IdentityOf(name);
    if (!file.empty() && VerifiedSegments::Process().Has(segment.stored().id, file)) continue;
    identities.push_back(std::move(file));
    wanted.push_back({name, segment.stored()});
    parts.push_back(segment);
  }
  const auto reader = SegmentReader::Open(files, std::move(wanted));
  if (!reader && IsDamage(reader.error())) return false;
  if (!reader) return reader.error();
  StepDigests digests(parts);
  const auto damage = FFR_TRY(
      reader.value()->Verify(1, [&](std::uint32_t segment, std::uint64_t offset, auto block) {
        digests.AddBlock(segment, offset, block);
      }));
  if (!damage.empty() || !digests.Differences().empty()) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!identities[i].empty())
      VerifiedSegments::Process().Add(parts[i].stored().id, std::move(identities[i]));
  return true;
}

}  // namespace ffrecord::client
