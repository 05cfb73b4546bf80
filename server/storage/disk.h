#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "server/storage/disk_identity.h"
#include "server/storage/extent_trailer.h"
#include "server/storage/read_health.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

// The folder with the extents of one disk, FOLDER/<slot>/<id>, and how that disk fares.
//
// Sizes are bytes. Thread-safe: what is noexcept and const waits for no disk, the rest may wait for
// this one. An ExtentStore owns it and knows which extents it has.
class Disk {
 public:
  // Opens `folder`, which is made if it is missing (its parent must exist). Fails with kIo,
  // kDenied.
  static Result<std::unique_ptr<Disk>> Open(const std::filesystem::path& folder,
                                            const DiskId& id = {});

  const DiskId& id() const noexcept { return id_; }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  // For people and labels: the data folder, of printable ASCII without quotes.
  std::string name() const;
  std::filesystem::path PathOf(const ExtentId& id) const { return folder_ / ExtentPath(id); }

  // The extent's file, for reading. No link is followed, and nothing outside the folder is reached,
  // whatever the folder holds. Fails with kNotFound, kDenied, kIo.
  Result<UniqueFd> OpenFile(const ExtentId& id) const;

  // Makes the folder of the extent's slot, durably. Fails with kIo, kDenied.
  Result<void> MakeSlot(const ExtentId& id);
  // That folder was removed: the next MakeSlot() looks again.
  void ForgetSlot(const ExtentId& id);
  // That the folder is still at its path, and not unmounted or moved away: a file that is not found
  // there tells nothing then. Fails with kIo, which says that the disk has failed.
  Result<void> CheckInPlace() const;
  // Removes the extent's file, if there is one. Fails with kIo, kDenied.
  Result<void> Unlink(const ExtentId& id);
  // Makes it durable that their files are there, or not. Fails with kIo.
  Result<void> SyncNames(std::span<const ExtentId> ids) const;

  // Room that extents leave free for other uses of the disk. 0 at first; set before extents are
  // written.
  void set_kept_bytes(std::uint64_t kept_bytes) noexcept { kept_bytes_ = kept_bytes; }
  // Its extents can be fetched again, and may be removed at any time. It is on the disk of `whole`,
  // which outlives it, and shares that one's part of what is shared among disks. Set before there
  // are extents.
  void set_is_cache(const Disk& whole) noexcept { whole_ = &whole; }
  bool is_cache() const noexcept { return whole_ != nullptr; }
  // The one whose part its reads share: itself, unless it is a cache.
  const Disk* whole() const noexcept { return whole_ != nullptr ? whole_ : this; }
  struct Space {
    std::uint64_t free_bytes = 0;    // For extents.
    std::uint64_t unused_bytes = 0;  // For whatever is stored there.
    std::uint64_t size_bytes = 0;
  };
  // As it was at the last RefreshSpace(). All there could be if it is not known: writing will tell.
  Space space() const noexcept;
  // Asks the disk, and waits for its answer. Writing and unlinking here do this too; a thread that
  // may wait for this disk does it now and then, for what others store there.
  void RefreshSpace() noexcept;
  std::uint64_t device() const noexcept { return device_; }  // Equal: the same file system.
  // That extents may be written here, and that one of `size_bytes` has room, as far as is known.
  // Fails with kIo.
  Result<void> CheckTakes(std::uint64_t size_bytes) const;

  // Whether the disk is to be taken out: then no extent is placed here. DiskDrain.
  enum class Drain : std::uint8_t { kNone, kDraining, kDrained };
  void set_drain(Drain drain) noexcept { drain_ = drain; }
  Drain drain() const noexcept { return drain_; }
  bool is_draining() const noexcept {
    return drain_ != Drain::kNone || (whole_ != nullptr && whole_->is_draining());
  }

  WriteHealth& writes() noexcept { return writes_; }
  const WriteHealth& writes() const noexcept { return writes_; }
  ReadHealth& reads() noexcept { return reads_; }
  const ReadHealth& reads() const noexcept { return reads_; }

  // The store's totals of its extents here.
  struct Totals {
    std::atomic<std::uint64_t> extent_count{0};
    std::atomic<std::uint64_t> size_bytes{0};
    std::atomic<std::uint64_t> bad_count{0};
    std::atomic<std::uint64_t> declared_bytes{0};  // Bytes of extents that are being written.
  };
  Totals& totals() noexcept { return totals_; }
  const Totals& totals() const noexcept { return totals_; }

 private:
  Disk(std::filesystem::path folder, UniqueFd folder_fd, std::uint64_t device, const DiskId& id)
      : folder_(std::move(folder)), folder_fd_(std::move(folder_fd)), device_(device), id_(id) {}

  const std::filesystem::path folder_;
  const UniqueFd folder_fd_;
  const std::uint64_t device_;
  const DiskId id_;
  std::uint64_t kept_bytes_ = 0;
  const Disk* whole_ = nullptr;  // For a cache.
  std::atomic<std::uint64_t> unused_bytes_{0};
  std::atomic<std::uint64_t> size_bytes_{0};
  WriteHealth writes_;
  ReadHealth reads_;
  Totals totals_;
  std::atomic<Drain> drain_{Drain::kNone};
  std::mutex mutex_;
  std::bitset<kSlotCount> durable_slots_;  // Whose folders are known to outlive a power cut.
};

}  // namespace ffrecord::server
