#include "client/dataset/upload.h"

#include <algorithm>
#include <utility>

#include "client/dataset/stripe_upload.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/side_by_side.h"

namespace ffrecord::client {
namespace {

// Extents of one call that travel at a time. The disks of daemons are waited for meanwhile, and
// each extent has connections and memory of its own.
constexpr std::size_t kExtentsAtOnce = 4;

}  // namespace

Upload::Upload(const std::shared_ptr<Cluster>& cluster, std::optional<std::uint64_t> id,
               const Durability& durability)
    : durability_(durability),
      replicas_(cluster, durability_.replicas),
      id_(id ? *id : std::max<std::uint64_t>(RandomNumber(), 1)) {}

Result<ManifestFile> Upload::PutBytes(std::string name,
                                      std::span<const std::span<const std::byte>> pieces,
                                      const Progress& progress) {
  std::vector<std::uint64_t> ends;  // Where each piece ends in the file.
  std::uint64_t size_bytes = 0;
  for (const auto& piece : pieces) ends.push_back(size_bytes += piece.size());
  const Source source = [&](std::uint64_t offset,
                            std::span<std::byte> room) -> Result<std::span<const std::byte>> {
    const auto end = std::ranges::upper_bound(ends, offset);
    const auto& piece = pieces[static_cast<std::size_t>(end - ends.begin())];
    const std::uint64_t left = *end - offset;
    return piece.subspan(piece.size() - left, std::min<std::uint64_t>(room.size(), left));
  };
  return PutFrom(std::move(name), size_bytes, source, progress);
}

Result<ManifestFile> Upload::PutFrom(std::string name, std::uint64_t size_bytes,
                                     const Source& source, const Progress& progress) {
  UploadFile file = FFR_TRY(UploadFile::Make(std::move(name), size_bytes, id_, NextNumber(1)));
  std::uint64_t sent_bytes = 0;
  const Progress sent_more = [&](std::uint64_t more) {
    if (progress) progress(sent_bytes += more);
  };
  auto& extents = file.entry.extents;
  for (std::size_t i = 0; i < extents.size(); ++i)
    extents[i] = FFR_TRY(PutExtent(replicas_, file.ExtentOf(i), source, sent_more));
  return std::move(file.entry);
}

Result<UploadPlan> Upload::MakePlan(std::span<const LocalFile> files) {
  return UploadPlan::Make(files, id_, NextNumber(files.size()));
}

std::uint32_t Upload::NextNumber(std::size_t count) noexcept {
  return next_file_.fetch_add(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
}

Result<std::vector<ManifestFile>> Upload::PutFiles(std::span<const LocalFile> files,
                                                   const Progress& progress) {
  UploadPlan plan = FFR_TRY(MakePlan(files));
  std::atomic<std::size_t> next{0};
  const UploadWork put_some = [&](const SideBySide& others,
                                  const Progress& sent_more) -> Result<void> {
    for (std::size_t i; !others.failed() && (i = next++) < plan.extent_count();) {
      const Source source = FFR_TRY(plan.SourceOf(i, others));
      plan.SetEntry(i, FFR_TRY(PutExtent(replicas_, plan.ExtentOf(i), source, sent_more)));
    }
    return {};
  };
  FFR_TRY(PutSideBySide(std::min(plan.extent_count(), kExtentsAtOnce), progress, put_some));
  return plan.TakeEntries();
}

Result<DatasetManifest> Upload::PutManifest(std::span<const LocalFile> files,
                                            const Progress& progress) {
  DatasetManifest manifest;
  manifest.replicas = durability_.replicas;
  manifest.code = durability_.code;
  if (!manifest.has_code()) {
    manifest.files = FFR_TRY(PutFiles(files, progress));
    return manifest;
  }
  UploadPlan plan = FFR_TRY(MakePlan(files));
  StripeUpload stripes(manifest.code, replicas_, plan, id_, NextNumber(1));
  manifest.parity = FFR_TRY(stripes.Run(progress));
  manifest.files = plan.TakeEntries();
  return manifest;
}

}  // namespace ffrecord::client
