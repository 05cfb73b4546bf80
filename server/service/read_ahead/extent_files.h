#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
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

// The files of one manifest as they lie in extents on this daemon's disks, of which only the
// indexes are to be read. Holds the extents: they are not unlinked meanwhile.
//
// In a cluster some of them are elsewhere, and which ones changes: it holds none, finds those that
// are here when it needs them, and reads indexes from elsewhere where it must.
class ExtentFiles final : public RangeReader {
 public:
  // The part of a range that lies in one extent.
  struct Piece {
    ExtentPtr extent;
    std::uint32_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
  };

  // How it is in a cluster; both are called from several threads.
  struct Others {
    // Bytes of an extent from an offset on, from another node; empty: all extents are here.
    std::function<Result<void>(const ExtentId& id, std::uint64_t offset_bytes,
                               std::span<std::byte> destination)>
        read;
    // Whether it is for this daemon to read the extent ahead.
    std::function<bool(const ExtentId& id)> is_ours;
  };

  // Borrows `extents`. Without `others` fails with kNotFound if an extent is not here.
  static Result<std::unique_ptr<const ExtentFiles>> Open(DatasetManifest manifest,
                                                         const ExtentStore& extents, Others others);

  std::size_t file_count() const noexcept override { return manifest_.files.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return manifest_.files[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return manifest_.files[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  bool reads_indexes() const noexcept override { return false; }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;

  // Adds what of the range lies in each extent that this daemon reads ahead. Requires a range
  // inside the file.
  void Cut(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           std::vector<Piece>& pieces) const;

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override;

 private:
  // The part of a range that lies in one extent of the manifest.
  struct Part {
    const ExtentId* id;
    std::size_t extent;  // Its number among all.
    std::uint32_t offset_bytes;
    std::uint32_t size_bytes;
  };

  ExtentFiles(DatasetManifest manifest, const ExtentStore& store, Others others)
      : manifest_(std::move(manifest)), store_(store), others_(std::move(others)) {}
  template <class Work>  // Result<void>(const Part&)
  Result<void> ForEachPart(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                           const Work& work) const;
  ExtentPtr Here(const Part& part) const;  // Null: it is elsewhere.
  Result<void> ReadInside(const RangeRead& range) const;
  Result<void> ReadPart(const Part& part, std::span<std::byte> destination) const;
  Result<IndexBytes> MapWhole(const Piece& piece, std::uint32_t file) const;

  const DatasetManifest manifest_;
  const ExtentStore& store_;
  const Others others_;
  std::vector<std::size_t> first_extents_;  // One for each file, among all.
  std::vector<ExtentPtr> extents_;          // None in a cluster.
  mutable std::atomic<std::uint32_t> mapping_count_{0};
  mutable std::atomic<std::uint64_t> copied_bytes_{0};  // Bytes of indexes that cannot be mapped.
};

}  // namespace ffrecord::server
