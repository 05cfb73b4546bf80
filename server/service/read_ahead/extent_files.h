#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/source/range_reader.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The files of one manifest as they lie in extents on this daemon's disk, of which only the indexes
// are to be read. Holds the extents: they are not unlinked meanwhile.
class ExtentFiles final : public RangeReader {
 public:
  // What of a range lies in one extent.
  struct Piece {
    const ExtentPtr* extent = nullptr;  // Of the ExtentFiles.
    std::uint32_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
  };

  // Fails with kNotFound if an extent is not here.
  static Result<std::unique_ptr<const ExtentFiles>> Open(DatasetManifest manifest,
                                                         const ExtentStore& extents);

  std::size_t file_count() const noexcept override { return manifest_.files.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return manifest_.files[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return manifest_.files[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;

  // Adds what of the range lies in each extent. Requires a range inside the file.
  void Cut(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           std::vector<Piece>& pieces) const;

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override;

 private:
  explicit ExtentFiles(DatasetManifest manifest) : manifest_(std::move(manifest)) {}
  Result<void> ReadInside(const RangeRead& range) const;
  Result<IndexBytes> MapWhole(const Piece& piece, std::uint32_t file) const;

  const DatasetManifest manifest_;
  std::vector<std::size_t> first_extents_;  // Of each file, among all.
  std::vector<ExtentPtr> extents_;
  mutable std::atomic<std::uint32_t> mapping_count_{0};
};

}  // namespace ffrecord::server
