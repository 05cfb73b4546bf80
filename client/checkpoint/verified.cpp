#include "client/checkpoint/verified.h"

#include <utility>

#include "client/checkpoint/step_manifests.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {

VerifiedSegments& VerifiedSegments::Process() {
  static VerifiedSegments segments;
  return segments;
}

std::optional<Clock::time_point> VerifiedSegments::WhenRead(const SegmentId& segment,
                                                            const std::string& file) const {
  const auto found = files_.find({segment, file});
  if (found == files_.end() || Clock::now() - found->second >= kAge) return std::nullopt;
  return found->second;
}

void VerifiedSegments::Note(const SegmentId& segment, std::string file, Clock::time_point when) {
  if (files_.size() >= kCountMax) files_.clear();  // They are verified again.
  files_.insert_or_assign({segment, std::move(file)}, when);
}

void VerifiedSegments::ForgetFiles(const SegmentId& segment) {
  auto first = files_.lower_bound({segment, ""});
  while (first != files_.end() && first->first.first == segment) first = files_.erase(first);
}

bool VerifiedSegments::Has(const SegmentId& segment, const std::string& file) const {
  const std::lock_guard lock(mutex_);
  return WhenRead(segment, file).has_value();
}

void VerifiedSegments::Add(const SegmentId& segment, std::string file) {
  const std::lock_guard lock(mutex_);
  Note(segment, std::move(file), Clock::now());
}

void VerifiedSegments::AddCopy(const SegmentId& segment, const std::string& file,
                               std::string copy) {
  const std::lock_guard lock(mutex_);
  if (const auto when = WhenRead(segment, file)) Note(segment, std::move(copy), *when);
}

void VerifiedSegments::Forget(const SegmentId& segment) {
  const std::lock_guard lock(mutex_);
  ForgetFiles(segment);
}

std::vector<SegmentInFile> FilesOf(std::span<const PartManifest> parts) {
  std::vector<SegmentInFile> files;
  for (const SegmentOfPart& segment : SegmentsOf(parts))
    files.push_back({SegmentName(segment.part->rank, segment.index), segment});
  return files;
}

Result<bool> AreWhole(const CommittedStep& files, std::span<const SegmentInFile> segments) {
  std::vector<std::string> identities;
  std::vector<std::string> verified;
  std::vector<SegmentReader::Segment> wanted;
  std::vector<SegmentOfPart> parts;
  for (const auto& [name, segment] : segments) {
    // Taken before the bytes are read: a file that is written meanwhile is another one.
    std::string file = files.IdentityOf(name);
    if (!file.empty() && VerifiedSegments::Process().Has(segment.stored().id, file)) {
      verified.push_back(name);
      continue;
    }
    identities.push_back(std::move(file));
    wanted.push_back({name, segment.stored()});
    parts.push_back(segment);
  }
  if (!verified.empty() && !FFR_TRY(files.Holds(verified))) return false;
  const auto reader = SegmentReader::Open(files, std::move(wanted));
  if (!reader && IsDamage(reader.error())) return false;
  if (!reader) return reader.error();
  StepDigests digests(parts);
  const auto damage = FFR_TRY(
      reader.value()->Verify(1, [&](std::uint32_t segment, std::uint64_t offset, auto block) {
        digests.AddBlock(segment, offset, block);
      }));
  if (!damage.empty() || !digests.Differences().empty()) {
    for (const SegmentOfPart& part : parts) VerifiedSegments::Process().Forget(part.stored().id);
    return false;
  }
  // The next look reads a segment again if another copy has made good some of it: that copy may be
  // lost until then.
  for (std::uint32_t i = 0; i < parts.size(); ++i)
    if (!identities[i].empty() && reader.value()->IsOfFirstCopy(i))
      VerifiedSegments::Process().Add(parts[i].stored().id, std::move(identities[i]));
  return true;
}

}  // namespace ffrecord::client
