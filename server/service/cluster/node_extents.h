#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/machine.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The extents on this node's disks, as the machines of the cluster see and change them.
// Thread-safe; borrows the store.
class NodeExtents final : public cluster::LocalExtents {
 public:
  explicit NodeExtents(ExtentStore& store) : store_(store) {}

  // --- LocalExtents: none of it waits for a disk ---
  std::optional<ManifestExtent> Find(const ExtentId& id) const override;
  std::vector<ManifestExtent> All() const override;
  std::vector<ExtentId> InMotion() const override { return store_.InMotion(); }
  bool HasRoomFor(std::uint64_t size_bytes) const override;
  std::optional<cluster::TimePoint> LastHeard(std::uint64_t upload) const override;

  // Bytes of that upload have come, or are about to.
  void NoteHeard(std::uint64_t upload);
  // Forgets uploads that have been silent for so long.
  void ForgetSilent(cluster::TimePoint now, std::chrono::milliseconds grace);

  // From now on the extent is not here. Its file is removed by Sweep.
  void Drop(const ExtentId& id);
  bool has_dropped() const;

  // These block on the disk.

  // Removes the files of dropped extents that nobody reads or writes any more, durably, and lets
  // their ids be used again. The others, and those that a disk refuses, stay for the next time.
  void Sweep();
  Result<std::vector<std::byte>> Read(const ManifestExtent& extent) const;
  // Requires that the bytes are those of the extent. In place of a replica that is bad.
  Result<void> Write(const ManifestExtent& extent, std::span<const std::byte> bytes);

  ExtentStore& store() const noexcept { return store_; }

 private:
  struct Dropped {
    ExtentId id{};
    ExtentPtr extent;  // Null: there was none.
  };
  // False: not yet.
  Result<bool> Unlink(const Dropped& dropped);
  Result<void> RemoveBad(const ExtentId& id);

  ExtentStore& store_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, cluster::TimePoint> heard_;
  std::vector<Dropped> dropped_;
};

// Whether these are the bytes of that extent. Fails with kCorruption.
Result<void> CheckBytes(const ManifestExtent& extent, std::span<const std::byte> bytes);

}  // namespace ffrecord::server
