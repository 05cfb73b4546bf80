#include "server/service/read_ahead/planned_records.h"

#include <algorithm>

namespace ffrecord::server {
PlannedRecords::PlannedRecords(std::unique_ptr<const ExtentFiles> files, Indexes indexes)
    : files_(std::move(files)), indexes_(std::move(indexes)), first_indexes_{0} {
  for (const auto& index : indexes_)
    first_indexes_.push_back(first_indexes_.back() + index->record_count());
}

PlannedRecords::~PlannedRecords() = default;

Result<std::shared_ptr<const PlannedRecords>> PlannedRecords::Open(DatasetManifest manifest,
                                                                   const ExtentStore& extents,
                                                                   ExtentFiles::Others others) {
  auto files = FFR_TRY(ExtentFiles::Open(std::move(manifest), extents, std::move(others)));
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
  auto named = FFR_TRY(source_.resolve(name));
  if (named.revision != revision)
    return Error{ErrorCode::kConflict, name + " was published again since it was opened"};
  auto others = source_.make_others ? source_.make_others(named.manifest) : ExtentFiles::Others{};
  auto records =
      FFR_TRY(PlannedRecords::Open(std::move(named.manifest), extents_, std::move(others)));
  dataset->records = records;
  return records;
}

std::shared_ptr<PlannedDatasets::Dataset> PlannedDatasets::Find(const Key& key) {
  const std::lock_guard lock(mutex_);
  // A caller that opens one holds it too.
  std::erase_if(open_, [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->records.expired();
  });
  auto& dataset = open_[key];
  if (!dataset) dataset = std::make_shared<Dataset>();
  return dataset;
}

}  // namespace ffrecord::server
