#include "client/checkpoint/write_part.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/checkpoint/segment_image.h"

namespace ffrecord::client {

Result<PartReport> WritePart(CheckpointAttempt& attempt, PartPlan& plan,
                             std::span<const TensorView> tensors) {
  PartReport report;
  for (std::uint32_t i = 0; i < plan.segments.size(); ++i) {
    SegmentImage image(plan.part.segments[i], plan.segments[i], tensors);
    report.files.push_back(FFR_TRY(attempt.Put(
        SegmentName(plan.part.rank, i), image.layout().file_size_bytes, true,
        [&](std::uint64_t offset, std::uint64_t size) { return image.At(offset, size); })));
    plan.part.segments[i].table_digest = image.table_digest();
  }
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
  return attempt.Put(name, bytes.size(), false, [&](std::uint64_t offset, std::uint64_t size) {
    return bytes.subspan(offset).first(std::min<std::uint64_t>(size, bytes.size() - offset));
  });
}

}  // namespace ffrecord::client
