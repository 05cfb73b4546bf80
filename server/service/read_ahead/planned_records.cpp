#include "server/service/read_ahead/planned_records.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::server {
namespace {

// A process may have some ten thousands of mappings, most of which are those of open files. A
// segment of an index holds 64 thousand records and more.
constexpr std::uint32_t kIndexMappingsMax = 2048;

}  // namespace

// The dataset's files as they lie in extents. Only their indexes are read.
class PlannedRecords::Files final : public RangeReader {
 public:
  // Fails with kNotFound if an extent is not here.
  static Result<std::unique_ptr<const Files>> Open(DatasetManifest manifest,
                                                   const ExtentStore& extents) {
    std::unique_ptr<Files> files(new Files(std::move(manifest), extents));
    for (const ManifestFile& file : files->manifest_.files) {
      files->first_extents_.push_back(files->extents_.size());
      for (const ManifestExtent& wanted : file.extents) {
        files->extents_.push_back(extents.Find(wanted.id));
        if (!files->extents_.back())
          return Error{ErrorCode::kNotFound,
                       file.name + ": extent " + Hex(wanted.id) + " is not here"};
      }
    }
    return std::unique_ptr<const Files>(std::move(files));
  }

  std::size_t file_count() const noexcept override { return manifest_.files.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return manifest_.files[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return manifest_.files[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }

  Result<void> Read(std::span<RangeRead> ranges) const override {
    for (RangeRead& range : ranges) {
      auto read = ReadOne(range);
      range.status = read ? ErrorCode::kOk : read.error().code;
    }
    return {};
  }

  Result<IndexBytes> MapIndex(std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const override {
    FFR_TRY(CheckRange(file, offset_bytes, size_bytes));
    if (size_bytes == 0) return IndexBytes{};
    const bool is_whole =
        offset_bytes / kExtentSizeMax == (offset_bytes + size_bytes - 1) / kExtentSizeMax;
    if (is_whole) return MapWhole(file, offset_bytes, size_bytes);
    auto buffer = FFR_TRY(BufferPool::Process().Take(size_bytes));
    RangeRead range{file, offset_bytes, *buffer};
    FFR_TRY(ReadOne(range));
    const std::span<const std::byte> bytes = *buffer;
    return IndexBytes{std::move(buffer), bytes};
  }

  // Adds what of the range lies in each extent. The range lies inside the file.
  void Cut(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           std::vector<Piece>& pieces) const {
    while (size_bytes > 0) {
      const std::uint64_t within = offset_bytes % kExtentSizeMax;
      const std::uint64_t size = std::min(size_bytes, kExtentSizeMax - within);
      pieces.push_back({&extents_[first_extents_[file] + offset_bytes / kExtentSizeMax],
                        static_cast<std::uint32_t>(within), static_cast<std::uint32_t>(size)});
      offset_bytes += size;
      size_bytes -= size;
    }
  }

 private:
  Files(DatasetManifest manifest, const ExtentStore& extents)
      : manifest_(std::move(manifest)), store_(extents) {}

  Result<void> CheckRange(std::uint32_t file, std::uint64_t offset_bytes,
                          std::uint64_t size_bytes) const {
    const std::uint64_t file_size = file_size_bytes(file);
    if (offset_bytes <= file_size && size_bytes <= file_size - offset_bytes) return {};
    return Error{ErrorCode::kCorruption, file_name(file) + ": a range passes the end of the file"};
  }

  Result<void> ReadOne(const RangeRead& range) const {
    FFR_TRY(CheckRange(range.file, range.offset_bytes, range.destination.size()));
    std::vector<Piece> pieces;
    Cut(range.file, range.offset_bytes, range.destination.size(), pieces);
    auto rest = range.destination;
    for (const Piece& piece : pieces) {
      const auto fd = FFR_TRY(store_.OpenFile((*piece.extent)->id));
      FFR_TRY(ReadExactly(fd.get(), store_.PathOf((*piece.extent)->id), piece.offset_bytes,
                          rest.first(piece.size_bytes)));
      rest = rest.subspan(piece.size_bytes);
    }
    return {};
  }

  // Its pages stay the kernel's, so that a large index costs no memory of ours.
  Result<IndexBytes> MapWhole(std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const {
    if (mapping_count_.fetch_add(1, std::memory_order_relaxed) >= kIndexMappingsMax)
      return Error{ErrorCode::kUnavailable,
                   file_name(file) + ": too large an index to be read ahead by"};
    std::vector<Piece> pieces;
    Cut(file, offset_bytes, size_bytes, pieces);
    const auto fd = FFR_TRY(store_.OpenFile((*pieces.front().extent)->id));
    auto mapped = std::make_shared<MappedFile>(
        FFR_TRY(MappedFile::Map(fd.get(), pieces.front().offset_bytes, size_bytes)));
    const auto bytes = mapped->bytes();
    // A fault reads far around it else.
    ExpectRandomAccess(bytes);
    WillNeed(bytes);
    return IndexBytes{std::move(mapped), bytes};
  }

  const DatasetManifest manifest_;
  const ExtentStore& store_;
  std::vector<std::size_t> first_extents_;  // Of each file, among all.
  std::vector<ExtentPtr> extents_;
  mutable std::atomic<std::uint32_t> mapping_count_{0};
};

PlannedRecords::PlannedRecords(std::unique_ptr<const Files> files, Indexes indexes)
    : files_(std::move(files)), indexes_(std::move(indexes)), first_indexes_{0} {
  for (const auto& index : indexes_)
    first_indexes_.push_back(first_indexes_.back() + index->record_count());
}

PlannedRecords::~PlannedRecords() = default;

Result<std::shared_ptr<const PlannedRecords>> PlannedRecords::Open(DatasetManifest manifest,
                                                                   const ExtentStore& extents) {
  auto files = FFR_TRY(Files::Open(std::move(manifest), extents));
  auto indexes = FFR_TRY(OpenIndexes(*files, {}));
  return std::shared_ptr<const PlannedRecords>(
      new PlannedRecords(std::move(files), std::move(indexes)));
}

void PlannedRecords::Locate(std::span<const std::uint64_t> indices,
                            std::vector<Piece>& pieces) const {
  const auto file_of = [this](std::uint64_t index) {
    const auto behind = std::ranges::upper_bound(first_indexes_, index);
    return static_cast<std::uint32_t>(behind - first_indexes_.begin() - 1);
  };
  // Index pages that are not in memory are fetched side by side.
  for (const std::uint64_t index : indices) {
    const std::uint32_t file = file_of(index);
    indexes_[file]->Prefetch(index - first_indexes_[file]);
  }
  for (const std::uint64_t index : indices) {
    const std::uint32_t file = file_of(index);
    RecordLocation location;
    if (indexes_[file]->Locate(index - first_indexes_[file], location) == ErrorCode::kOk)
      files_->Cut(file, location.offset_bytes, location.stored_size_bytes, pieces);
  }
}

Result<std::shared_ptr<const PlannedRecords>> PlannedDatasets::Get(const std::string& name,
                                                                   std::uint64_t revision) {
  const std::shared_ptr<Dataset> dataset = Find({name, revision});
  const std::lock_guard opening(dataset->opening);
  // The name may be gone, or stand for something else: the plan is read all the same.
  if (auto records = dataset->records.lock()) return records;
  const auto resolved = FFR_TRY(catalog_.Resolve(name));
  if (resolved.revision != revision)
    return Error{ErrorCode::kConflict, name + " was published again since it was opened"};
  auto manifest = FFR_TRY(DecodeDatasetManifest(resolved.manifest));
  auto records = FFR_TRY(PlannedRecords::Open(std::move(manifest), extents_));
  dataset->records = records;
  return records;
}

std::shared_ptr<PlannedDatasets::Dataset> PlannedDatasets::Find(const Key& key) {
  const std::lock_guard lock(mutex_);
  // Whoever opens one holds it too.
  std::erase_if(open_, [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->records.expired();
  });
  auto& dataset = open_[key];
  if (!dataset) dataset = std::make_shared<Dataset>();
  return dataset;
}

}  // namespace ffrecord::server
