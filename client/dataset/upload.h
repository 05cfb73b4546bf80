#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/cluster.h"
#include "client/dataset/durability.h"
#include "client/dataset/extent_legs.h"
#include "client/dataset/replica_writer.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::client {

// Brings files to the disks of daemons, cut into extents, so that a manifest can name them: to one
// daemon, or, in a cluster, each extent to as many nodes as it has replicas, its owners if they are
// well.
//
//   Upload upload(cluster);
//   manifest.files.push_back(FFR_TRY(upload.PutBytes("part-00000.manifest", {&bytes, 1})));
//   for (ManifestFile& file : FFR_TRY(upload.PutFiles({{{"train.ffr", path}}})))
//     manifest.files.push_back(std::move(file));
//   FFR_TRY(Catalog(cluster).Publish(name, manifest, mode, 0, deadline));
//
// When a Put returns, its file is on stable storage; nothing is visible before a manifest that
// names it is published. Several uploads, also of other processes, may go into one manifest: the
// entries travel as ManifestFile values. Files that are not published within the daemon's grace
// time (10 minutes without a word from the upload) are collected.
//
// A Put that meets a daemon that goes away starts the extent again, in a cluster at another node,
// until the timeout of its options has passed for that extent. Thread-safe: Puts of several threads
// go over several connections.
class Upload {
 public:
  // Called on the calling thread with the bytes that have been sent, in rising order.
  using Progress = std::function<void(std::uint64_t)>;

  // `id`, not 0: as that of an earlier upload of the same files in the same order, of which the
  // daemons keep what they have. Without one it is random. `durability`: of all extents; another
  // one than the default is for a cluster.
  explicit Upload(const std::shared_ptr<Cluster>& cluster, std::optional<std::uint64_t> id = {},
                  const Durability& durability = {});
  std::uint64_t id() const noexcept { return id_; }

  // One file, made of `pieces` in order, borrowed for the call; it may be empty. `name` is what the
  // manifest calls it. Fails with kIo (ENOSPC: the daemon's disk is full), kUnavailable,
  // kDeadlineExceeded, kInvalidArgument for a bad name.
  Result<ManifestFile> PutBytes(std::string name,
                                std::span<const std::span<const std::byte>> pieces,
                                const Progress& progress = {});

  struct LocalFile {
    std::string name;  // In the manifest.
    std::filesystem::path path;
  };
  // Files from the disk, whose entries come in their order. Some extents travel at a time: while
  // one waits for the disk of its daemon, another is sent. Calls `progress` with the number of
  // bytes of all files that were sent. Fails also as OpenReadOnly does, and with kCorruption if a
  // file changes its size meanwhile.
  Result<std::vector<ManifestFile>> PutFiles(std::span<const LocalFile> files,
                                             const Progress& progress = {});
  // Files from the disk as a whole manifest of the durability class of this upload. With an erasure
  // code, parity is computed and sent too; `progress` does not count it. Two stripes travel at a
  // time, and hold their parity in memory.
  Result<DatasetManifest> PutManifest(std::span<const LocalFile> files,
                                      const Progress& progress = {});

  using Source = ExtentSource;
  // One file of `size_bytes` from anywhere; fails also as `source` does.
  Result<ManifestFile> PutFrom(std::string name, std::uint64_t size_bytes, const Source& source,
                               const Progress& progress = {});

 private:
  using Sent = std::function<void(std::uint64_t)>;
  // Files of one call, and all their extents in order.
  struct Plan {
    struct Place {
      std::size_t file = 0, extent = 0;  // Index into the entries, and into its extents.
    };
    std::span<const LocalFile> files;
    std::vector<ManifestFile> entries;
    std::vector<Place> extents;
    std::uint32_t first_file = 0;  // The number of the first one in this upload.
  };
  Result<Plan> MakePlan(std::span<const LocalFile> files);
  // Does `work` with so many threads, and tells `progress` of what they send, on this one.
  using Work = std::function<Result<void>(const SideBySide& others, const Sent& sent_more)>;
  static Result<void> PutAll(std::size_t thread_count, const Progress& progress, const Work& work);
  SourcedExtent ExtentOf(const Plan& plan, const Plan::Place& place) const noexcept {
    return ExtentOf(plan.entries[place.file],
                    plan.first_file + static_cast<std::uint32_t>(place.file), place.extent);
  }
  Result<void> PutStripe(Plan& plan, std::size_t stripe, std::span<ManifestExtent> parity,
                         const SideBySide& others, const Sent& sent_more);
  // An entry without extents yet.
  static Result<ManifestFile> NewEntry(std::string name, std::uint64_t size_bytes);
  SourcedExtent ExtentOf(const ManifestFile& file, std::uint32_t number,
                         std::size_t extent) const noexcept;
  // Calls `sent_more` with how many more bytes of it have been sent.
  Result<ManifestExtent> PutExtent(const SourcedExtent& extent, const Source& source,
                                   const Sent& sent_more, const StripeSpot* spot = nullptr);

  Durability durability_;
  ReplicaWriter replicas_;
  std::uint64_t id_;  // The first 8 bytes of every extent's id.
  std::atomic<std::uint32_t> next_file_{0};
};

// The bytes of a file that has `size_bytes`, until another thread of `others` fails. Borrows the
// path and the threads.
Result<ExtentSource> ReadSource(const std::filesystem::path& path, std::uint64_t size_bytes,
                                const SideBySide& others);

}  // namespace ffrecord::client
