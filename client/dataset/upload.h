#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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
#include "client/dataset/upload_plan.h"
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
  using Progress = UploadProgress;

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

  using LocalFile = client::LocalFile;
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
  // The first of `count` numbers of files, which no other file of this upload has.
  std::uint32_t NextNumber(std::size_t count) noexcept;
  Result<UploadPlan> MakePlan(std::span<const LocalFile> files);

  Durability durability_;
  ReplicaWriter replicas_;
  std::uint64_t id_;  // The first 8 bytes of every extent's id.
  std::atomic<std::uint32_t> next_file_{0};
};

}  // namespace ffrecord::client
