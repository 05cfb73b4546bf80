#include "client/dataset/upload.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "libffrecord/base/random.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord::client {
namespace {

// Extents of one call that travel at a time. The disks of daemons are waited for meanwhile, and
// each extent has connections and memory of its own.
constexpr std::size_t kExtentsAtOnce = 4;

}  // namespace

// The bytes of a file that has `size_bytes`, until another thread fails.
Result<ExtentSource> ReadSource(const std::filesystem::path& path, std::uint64_t size_bytes,
                                const SideBySide& others) {
  auto opened = std::make_shared<ReadOnlyFile>(FFR_TRY(OpenReadOnly(path, /*want_direct=*/false)));
  if (opened->size_bytes != size_bytes)
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
  ManifestFile file = FFR_TRY(NewEntry(std::move(name), size_bytes));
  const std::uint32_t number = next_file_.fetch_add(1, std::memory_order_relaxed);
  std::uint64_t sent_bytes = 0;
  const Sent sent_more = [&](std::uint64_t more) {
    if (progress) progress(sent_bytes += more);
  };
  for (std::size_t i = 0; i < file.extents.size(); ++i)
    file.extents[i] = FFR_TRY(PutExtent(ExtentOf(file, number, i), source, sent_more));
  return file;
}

Result<Upload::Plan> Upload::MakePlan(std::span<const LocalFile> files) {
  Plan plan;
  plan.files = files;
  for (const auto& [name, path] : files) {
    const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, /*want_direct=*/false));
    plan.entries.push_back(FFR_TRY(NewEntry(name, file.size_bytes)));
    for (std::size_t i = 0; i < plan.entries.back().extents.size(); ++i)
      plan.extents.push_back({plan.entries.size() - 1, i});
  }
  plan.first_file =
      next_file_.fetch_add(static_cast<std::uint32_t>(files.size()), std::memory_order_relaxed);
  return plan;
}

Result<void> Upload::PutAll(std::size_t thread_count, const Progress& progress, const Work& work) {
  const auto caller = std::this_thread::get_id();
  std::atomic<std::uint64_t> sent_bytes{0};
  const Sent sent_more = [&](std::uint64_t more) {
    const std::uint64_t sent = sent_bytes += more;
    if (progress && std::this_thread::get_id() == caller) progress(sent);
  };
  FFR_TRY(SideBySide::Run(thread_count, [&](const SideBySide& others) -> Result<void> {
    return work(others, sent_more);
  }));
  if (progress) progress(sent_bytes);  // Also of what others have sent last.
  return {};
}

Result<std::vector<ManifestFile>> Upload::PutFiles(std::span<const LocalFile> files,
                                                   const Progress& progress) {
  Plan plan = FFR_TRY(MakePlan(files));
  std::atomic<std::size_t> next{0};
  const Work put_some = [&](const SideBySide& others, const Sent& sent_more) -> Result<void> {
    for (std::size_t i; !others.failed() && (i = next++) < plan.extents.size();) {
      const Plan::Place& place = plan.extents[i];
      ManifestFile& entry = plan.entries[place.file];
      const Source source = FFR_TRY(ReadSource(files[place.file].path, entry.size_bytes, others));
      entry.extents[place.extent] = FFR_TRY(PutExtent(ExtentOf(plan, place), source, sent_more));
    }
    return {};
  };
  FFR_TRY(PutAll(std::min(plan.extents.size(), kExtentsAtOnce), progress, put_some));
  return std::move(plan.entries);
}

Result<ManifestFile> Upload::NewEntry(std::string name, std::uint64_t size_bytes) {
  const std::uint64_t extent_count = (size_bytes + kExtentSizeMax - 1) / kExtentSizeMax;
  if (extent_count >= UINT32_MAX)
    return Error{ErrorCode::kInvalidArgument, name + ": too large to be one file of a manifest"};
  ManifestFile file{std::move(name), size_bytes, {}};
  file.extents.resize(extent_count);
  return file;
}

SourcedExtent Upload::ExtentOf(const ManifestFile& file, std::uint32_t number,
                               std::size_t extent) const noexcept {
  const std::uint64_t offset = extent * kExtentSizeMax;
  return {MakeExtentId(id_, number, static_cast<std::uint32_t>(extent)), offset,
          std::min(file.size_bytes - offset, kExtentSizeMax)};
}

Result<ManifestExtent> Upload::PutExtent(const SourcedExtent& extent, const Source& source,
                                         const Sent& sent_more, const StripeSpot* spot) {
  std::uint64_t reported = 0;  // A second try begins below it.
  const Sent sent = [&](std::uint64_t done) {
    if (done > reported) sent_more(done - std::exchange(reported, done));
  };
  const std::uint64_t xxh3 = FFR_TRY(replicas_.Put(extent, source, sent, spot));
  return ManifestExtent{extent.id, extent.size_bytes, xxh3};
}

}  // namespace ffrecord::client
