#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/record/index/file_index.h"
#include "server/service/read_ahead/extent_files.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Where the records of one published dataset lie on this daemon's disks. Thread-safe.
class PlannedRecords {
 public:
  using Piece = ExtentFiles::Piece;

  // Reads and checks the ends of all files. Fails as RecordReader::Open does, also for a dataset
  // that has no record files, such as a checkpoint. `extents` and `others` as of ExtentFiles.
  static Result<std::shared_ptr<const PlannedRecords>> Open(DatasetManifest manifest,
                                                            const ExtentStore& extents,
                                                            ExtentFiles::Others others = {});
  ~PlannedRecords();

  std::uint64_t record_count() const noexcept { return first_indexes_.back(); }

  // Adds the pieces of the records `indices` that this daemon reads ahead. Records of which the
  // index is damaged, or cannot be read, have none: reading them fails with the reason. Blocks on
  // the disk for pages of the index that are not in memory. Requires each index < record_count().
  void Locate(std::span<const std::uint64_t> indices, std::vector<Piece>& pieces) const;

 private:
  using Indexes = std::vector<std::unique_ptr<FileIndex>>;
  PlannedRecords(std::unique_ptr<const ExtentFiles> files, Indexes indexes);

  const std::unique_ptr<const ExtentFiles> files_;  // The indexes borrow it.
  const Indexes indexes_;
  std::vector<std::uint64_t> first_indexes_;  // One for each file, and behind the last.
};

// The datasets that plans are about, each opened once for all who plan with it. Thread-safe.
class PlannedDatasets {
 public:
  // Where the names are. Both functions are called from several threads.
  struct Source {
    struct Named {
      DatasetManifest manifest;
      std::uint64_t revision = 0;
    };
    // Fails with kNotFound if there is no such name, kUnavailable if it cannot be planned now.
    std::function<Result<Named>(const std::string& name)> resolve;
    // Empty: all extents are here.
    std::function<ExtentFiles::Others(const DatasetManifest& manifest)> make_others;
  };
  PlannedDatasets(Source source, const ExtentStore& extents)
      : source_(std::move(source)), extents_(extents) {}

  // Fails as Source::resolve, with kConflict if the name stands for something else than at that
  // revision, and as PlannedRecords::Open. Blocks on the disk, and on other nodes.
  Result<std::shared_ptr<const PlannedRecords>> Get(const std::string& name,
                                                    std::uint64_t revision);

 private:
  using Key = std::pair<std::string, std::uint64_t>;
  struct Dataset {
    std::mutex opening;  // Held while the disk is read: those who want another do not wait.
    std::weak_ptr<const PlannedRecords> records;
  };
  std::shared_ptr<Dataset> Find(const Key& key);

  const Source source_;
  const ExtentStore& extents_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Dataset>> open_;
};

}  // namespace ffrecord::server
