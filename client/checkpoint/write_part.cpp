#include "client/checkpoint/write_part.h"

#include <algorithm>
#include <string>
#include <vector>

#include "client/checkpoint/delta.h"
#include "client/checkpoint/segment_files.h"

namespace ffrecord::client {
namespace {

// Writes the sums of the segments' images, which are all that the part has, into its boxes.
void NoteDigests(PartPlan& plan, std::span<const SegmentFile> segments) {
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto sums = segments[i].image.digests();
    for (std::size_t j = 0; j < sums.size(); ++j)
      plan.part.boxes[plan.box_of_tensor[plan.segments[i][j].tensor]].digest = sums[j];
  }
  plan.part.has_digests = true;
}

}  // namespace

Result<PartReport> WritePart(const CheckpointTarget& target, const BegunSave& save, PartPlan plan,
                             std::span<const TensorView> tensors, const SaveOptions& options,
                             RankDigests& digests) {
  CheckpointAttempt& attempt = *save.attempt;
  PartReport report;
  if (options.incremental) {
    // Without a base all is written, in a form that the next save can share.
    const auto base = save.shares ? FindBase(target, plan.part.rank) : std::nullopt;
    auto delta = FFR_TRY(PlanDelta(attempt, base, plan, tensors));
    plan = std::move(delta.part);
    report.files = std::move(delta.files);
  }
  std::vector<SegmentFile> segments;
  const std::size_t kept = plan.kept_count();
  std::atomic<std::uint64_t>* const done =
      options.progress ? &options.progress->done_bytes : nullptr;
  if (done != nullptr)
    for (std::size_t i = kept; i < plan.part.segments.size(); ++i)
      options.progress->total_bytes += plan.part.segments[i].payload_size_bytes;
  for (std::size_t i = 0; i < plan.segments.size(); ++i)
    segments.push_back({SegmentName(plan.part.rank, static_cast<std::uint32_t>(kept + i)),
                        SegmentImage(plan.part.segments[kept + i], plan.segments[i], tensors, done,
                                     !plan.part.has_digests)});
  for (WrittenFile& file : FFR_TRY(attempt.PutSegments(segments, options.released)))
    report.files.push_back(std::move(file));
  for (const SegmentFile& segment : segments) FFR_TRY(segment.image.fetched());
  for (std::size_t i = 0; i < segments.size(); ++i)
    plan.part.segments[kept + i].table_digest = segments[i].image.table_digest();
  if (!plan.part.has_digests) NoteDigests(plan, segments);
  digests = DigestsOfRank(plan.part);
  const auto manifest = EncodePartManifest(plan.part);
  if (manifest.size() > kManifestSizeMax)
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: the part manifest of rank " + std::to_string(plan.part.rank) +
                     " would pass 256 MiB; save fewer, larger tensors"};
  report.files.push_back(
      FFR_TRY(WriteSmallFile(attempt, PartManifestName(plan.part.rank), manifest)));
  report.part = {manifest.size(), Xxh3Digest(manifest), plan.tensor_bytes};
  return report;
}

Result<WrittenFile> WriteSmallFile(CheckpointAttempt& attempt, std::string_view name,
                                   std::span<const std::byte> bytes) {
  return attempt.Put(name, bytes.size(), [&](std::uint64_t offset, std::uint64_t size) {
    return bytes.subspan(offset).first(std::min<std::uint64_t>(size, bytes.size() - offset));
  });
}

}  // namespace ffrecord::client
