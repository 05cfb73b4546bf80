#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/extent_legs.h"
#include "client/dataset/replica_writer.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::client {

// Called with bytes that were sent: how many in all, or how many more.
using UploadProgress = std::function<void(std::uint64_t)>;

// A file of the disk that is to be uploaded.
struct LocalFile {
  std::string name;  // In the manifest.
  std::filesystem::path path;
};

// A file of an upload, which has a number there. Its entry names no extents yet.
struct UploadFile {
  // Fails with kInvalidArgument if the file is too large for a manifest.
  static Result<UploadFile> Make(std::string name, std::uint64_t size_bytes, std::uint64_t upload,
                                 std::uint32_t number);
  SourcedExtent ExtentOf(std::size_t extent) const noexcept;

  ManifestFile entry;
  std::uint64_t upload;  // Its id.
  std::uint32_t number;
};

// Files of the disk that are uploaded by one call, and all their extents in order. Borrows the
// files.
class UploadPlan {
 public:
  // Fails as OpenReadOnly does.
  static Result<UploadPlan> Make(std::span<const LocalFile> files, std::uint64_t upload,
                                 std::uint32_t first_number);

  std::size_t extent_count() const noexcept { return places_.size(); }
  // Requires index < extent_count(), here and below.
  SourcedExtent ExtentOf(std::size_t index) const noexcept;
  // The bytes of the file that extent `index` is of, until another thread of `others` fails.
  // Borrows the plan and the threads. Fails as OpenReadOnly does, and with kCorruption if the file
  // has changed its size.
  Result<ExtentSource> SourceOf(std::size_t index, const SideBySide& others) const;
  // Notes that an extent is durable.
  void SetEntry(std::size_t index, const ManifestExtent& entry) noexcept;
  // The files with the extents that were noted.
  std::vector<ManifestFile> TakeEntries();

 private:
  struct Place {
    std::size_t file = 0, extent = 0;  // Index into the files, and into its extents.
  };

  std::span<const LocalFile> paths_;
  std::vector<UploadFile> files_;
  std::vector<Place> places_;
};

// Sends one extent, and returns its entry. Calls `sent_more` with how many more of its bytes have
// been sent.
Result<ManifestExtent> PutExtent(ReplicaWriter& replicas, const SourcedExtent& extent,
                                 const ExtentSource& source, const UploadProgress& sent_more,
                                 const StripeSpot* spot = nullptr);

// Does `work` with so many threads, and tells `progress`, on this one, of what all of them send.
using UploadWork =
    std::function<Result<void>(const SideBySide& others, const UploadProgress& sent_more)>;
Result<void> PutSideBySide(std::size_t thread_count, const UploadProgress& progress,
                           const UploadWork& work);

}  // namespace ffrecord::client
