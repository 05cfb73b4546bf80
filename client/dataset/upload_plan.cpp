#include "client/dataset/upload_plan.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord::client {

Result<UploadFile> UploadFile::Make(std::string name, std::uint64_t size_bytes,
                                    std::uint64_t upload, std::uint32_t number) {
  const std::uint64_t extent_count = (size_bytes + kExtentSizeMax - 1) / kExtentSizeMax;
  if (extent_count >= UINT32_MAX)
    return Error{ErrorCode::kInvalidArgument, name + ": too large to be one file of a manifest"};
  UploadFile file{{std::move(name), size_bytes, {}}, upload, number};
  file.entry.extents.resize(extent_count);
  return file;
}

SourcedExtent UploadFile::ExtentOf(std::size_t extent) const noexcept {
  const std::uint64_t offset = extent * kExtentSizeMax;
  return {MakeExtentId(upload, number, static_cast<std::uint32_t>(extent)), offset,
          std::min(entry.size_bytes - offset, kExtentSizeMax)};
}

Result<UploadPlan> UploadPlan::Make(std::span<const LocalFile> files, std::uint64_t upload,
                                    std::uint32_t first_number) {
  UploadPlan plan;
  plan.paths_ = files;
  for (const auto& [name, path] : files) {
    const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, /*want_direct=*/false));
    const auto number = first_number + static_cast<std::uint32_t>(plan.files_.size());
    plan.files_.push_back(FFR_TRY(UploadFile::Make(name, file.size_bytes, upload, number)));
    for (std::size_t i = 0; i < plan.files_.back().entry.extents.size(); ++i)
      plan.places_.push_back({plan.files_.size() - 1, i});
  }
  return plan;
}

SourcedExtent UploadPlan::ExtentOf(std::size_t index) const noexcept {
  return files_[places_[index].file].ExtentOf(places_[index].extent);
}

Result<ExtentSource> UploadPlan::SourceOf(std::size_t index, const SideBySide& others) const {
  const std::size_t number = places_[index].file;
  const std::filesystem::path& path = paths_[number].path;
  auto opened = std::make_shared<ReadOnlyFile>(FFR_TRY(OpenReadOnly(path, /*want_direct=*/false)));
  if (opened->size_bytes != files_[number].entry.size_bytes)
    return Error{ErrorCode::kCorruption, path.string() + " changed its size while it was uploaded"};
  return ExtentSource([&path, &others, file = std::move(opened)](
                          std::uint64_t offset,
                          std::span<std::byte> room) -> Result<std::span<const std::byte>> {
    if (others.failed()) return Error{ErrorCode::kUnavailable, "another extent failed"};
    IoRequest read;
    read.fd = file->fd.get();
    read.offset_bytes = offset;
    read.buffer = room;
    IoEngine* const engine = FFR_TRY(ThreadIoEngine());
    FFR_TRY(RunAll(*engine, {&read, 1}, 1));
    if (read.result < 0) return ErrnoError("read", path, static_cast<int>(-read.result));
    if (static_cast<std::size_t>(read.result) != read.buffer.size())
      return Error{ErrorCode::kCorruption, path.string() + " became shorter while it was uploaded"};
    return std::span<const std::byte>(read.buffer);
  });
}

void UploadPlan::SetEntry(std::size_t index, const ManifestExtent& entry) noexcept {
  files_[places_[index].file].entry.extents[places_[index].extent] = entry;
}

std::vector<ManifestFile> UploadPlan::TakeEntries() {
  std::vector<ManifestFile> entries;
  entries.reserve(files_.size());
  for (UploadFile& file : files_) entries.push_back(std::move(file.entry));
  return entries;
}

Result<ManifestExtent> PutExtent(ReplicaWriter& replicas, const SourcedExtent& extent,
                                 const ExtentSource& source, const UploadProgress& sent_more,
                                 const StripeSpot* spot) {
  std::uint64_t reported = 0;  // A second try begins below it.
  const UploadProgress sent = [&](std::uint64_t done) {
    if (done > reported) sent_more(done - std::exchange(reported, done));
  };
  const std::uint64_t xxh3 = FFR_TRY(replicas.Put(extent, source, sent, spot));
  return ManifestExtent{extent.id, extent.size_bytes, xxh3};
}

Result<void> PutSideBySide(std::size_t thread_count, const UploadProgress& progress,
                           const UploadWork& work) {
  const auto caller = std::this_thread::get_id();
  std::atomic<std::uint64_t> sent_bytes{0};
  const UploadProgress sent_more = [&](std::uint64_t more) {
    const std::uint64_t sent = sent_bytes += more;
    if (progress && std::this_thread::get_id() == caller) progress(sent);
  };
  FFR_TRY(SideBySide::Run(thread_count, [&](const SideBySide& others) -> Result<void> {
    return work(others, sent_more);
  }));
  if (progress) progress(sent_bytes);  // Also of what others have sent last.
  return {};
}

}  // namespace ffrecord::client
