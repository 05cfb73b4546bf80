#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/machine.h"
#include "server/service/metrics.h"
#include "server/storage/dropped_extents.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The extents on this node's disks, as the machines of the cluster see and change them.
// Thread-safe; borrows the store.
class NodeExtents final : public cluster::LocalExtents {
 public:
  explicit NodeExtents(ExtentStore& store) : store_(store), dropped_(store) {}

  // --- LocalExtents: none of it waits for a disk ---
  std::optional<ManifestExtent> Find(const ExtentId& id) const override;
  std::vector<ManifestExtent> All() const override;
  std::vector<ExtentId> InMotion() const override;
  std::uint64_t ChangeCount() const override { return store_.change_count(); }
  // On one disk, and with the bytes that are kept free of them all.
  bool HasRoomFor(std::uint64_t size_bytes) const override {
    return size_bytes <= RoomBytes() && store_.CheckTakes(size_bytes);
  }
  std::optional<cluster::TimePoint> LastHeard(std::uint64_t upload) const override;

  // Bytes kept free on disks of that total size, for manifests and for pulls that were begun at
  // the same time: 256 MiB, or a twentieth of small ones.
  static std::uint64_t KeptOf(std::uint64_t size_bytes) noexcept;
  std::uint64_t KeptBytes() const { return KeptOf(store_.SizeBytes()); }
  // For replicas that this node is to hold and has not. 0 if no disk can be written.
  std::uint64_t RoomBytes() const;

  // An extent that is on its way here, from other nodes: in motion until this is gone. Outlived by
  // the extents.
  class Coming {
   public:
    Coming(NodeExtents& extents, const ExtentId& id);
    ~Coming();
    Coming(const Coming&) = delete;
    Coming& operator=(const Coming&) = delete;

   private:
    NodeExtents& extents_;
    const ExtentId id_;
  };

  // Bytes of that upload have come, or are about to.
  void NoteHeard(std::uint64_t upload);
  // Forgets uploads that have been silent for so long.
  void ForgetSilent(cluster::TimePoint now, std::chrono::milliseconds grace);

  // These stay on the disks, whatever is dropped, and All() is silent about them: the machines
  // conclude nothing from them. Requires that they are in order. Before anything else is called.
  void Keep(std::vector<ExtentId> ids) { kept_ = std::move(ids); }

  // Damaged replicas are worth reading only while no other node has theirs whole: who reads knows
  // good bytes from bad ones, and each replica may be damaged at another place. These are
  // elsewhere.
  void NoteElsewhere(const std::set<ExtentId>& ids);
  bool IsElsewhere(const ExtentId& id) const;

  // From now on the extent is not here, unless it is kept. Its file is removed by Collect().
  void Drop(const ExtentId& id);
  bool has_dropped() const { return !dropped_.empty(); }
  // Whether the machines trust the metadata, by which they have dropped extents. kNot: at first.
  enum class Trust : std::uint8_t {
    kNot,     // Nothing more is removed.
    kIs,      // Dropped extents go.
    kFrozen,  // It was put back to an older state: dropped extents are the node's again.
  };
  void SetTrust(Trust trust) noexcept { trust_ = trust; }

  // These block on the disk.

  // To be called now and then for each disk, and with null: as DroppedExtents::Sweep(), or
  // TakeBack(), by the trust. Lets the ids of those that are gone be used again; returns how many.
  std::size_t Collect(const Disk* disk);
  Result<std::vector<std::byte>> Read(const ManifestExtent& extent) const;
  // Requires that the bytes are those of the extent. In place of a replica that is bad, and of a
  // file of its name that is no extent. Does nothing if the extent is here undamaged.
  Result<void> Write(const ManifestExtent& extent, std::span<const std::byte> bytes);

  // Bad replicas that Write has replaced.
  const Counter& healed() const noexcept { return healed_; }

  ExtentStore& store() const noexcept { return store_; }

 private:
  Result<void> WriteNew(const ManifestExtent& extent, std::span<const std::byte> bytes);
  // False: there was none.
  Result<bool> RemoveBad(const ExtentId& id);
  bool IsKept(const ExtentId& id) const;

  ExtentStore& store_;
  DroppedExtents dropped_;
  std::vector<ExtentId> kept_;
  Counter healed_;
  std::atomic<Trust> trust_{Trust::kNot};
  std::shared_mutex sweeping_;  // Shared by those who sweep, each of whom may wait for a disk.
  mutable std::mutex mutex_;
  std::map<std::uint64_t, cluster::TimePoint> heard_;
  std::multiset<ExtentId> coming_;
  std::set<ExtentId> elsewhere_;
};

// Whether these are the bytes of that extent. Fails with kCorruption.
Result<void> CheckBytes(const ManifestExtent& extent, std::span<const std::byte> bytes);

}  // namespace ffrecord::server
