#include "server/service/cluster/node_extents.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kKeptBytesMax = std::uint64_t{256} << 20;
constexpr std::uint64_t kKeptPart = 20;  // One of so many.

ManifestExtent Described(const Extent& extent) {
  return {extent.id, extent.size_bytes, extent.xxh3};
}

}  // namespace

Result<void> CheckBytes(const ManifestExtent& extent, std::span<const std::byte> bytes) {
  if (bytes.size() == extent.size_bytes && Xxh3(bytes) == extent.xxh3) return {};
  return Error{ErrorCode::kCorruption,
               "extent " + Hex(extent.id) + ": its bytes are not those of its checksum"};
}

std::optional<ManifestExtent> NodeExtents::Find(const ExtentId& id) const {
  const ExtentPtr extent = store_.Find(id);
  if (!extent || extent->disk == nullptr || extent->is_bad.load(std::memory_order_relaxed))
    return std::nullopt;
  return Described(*extent);
}

std::vector<ManifestExtent> NodeExtents::All() const {
  std::vector<ManifestExtent> all;
  for (const ExtentPtr& extent :
       store_.FindAll([&](const Extent& one) { return one.disk != nullptr && !IsKept(one.id); }))
    all.push_back(Described(*extent));
  return all;
}

std::vector<ExtentId> NodeExtents::InMotion() const {
  std::vector<ExtentId> moving;
  {
    const std::lock_guard lock(mutex_);
    moving.assign(coming_.begin(), coming_.end());
  }
  // Second: what came meanwhile is being written by now, or is here.
  const std::vector<ExtentId> written = store_.InMotion();
  moving.insert(moving.end(), written.begin(), written.end());
  return moving;
}

NodeExtents::Coming::Coming(NodeExtents& extents, const ExtentId& id) : extents_(extents), id_(id) {
  const std::lock_guard lock(extents_.mutex_);
  extents_.coming_.insert(id_);
}

NodeExtents::Coming::~Coming() {
  const std::lock_guard lock(extents_.mutex_);
  extents_.coming_.erase(extents_.coming_.find(id_));
}

std::uint64_t NodeExtents::KeptOf(std::uint64_t size_bytes) noexcept {
  return std::min(kKeptBytesMax, size_bytes / kKeptPart);
}

std::uint64_t NodeExtents::RoomBytes() const {
  const auto free_bytes = store_.FreeBytes();
  return free_bytes ? free_bytes.value() - std::min(free_bytes.value(), KeptBytes()) : 0;
}

std::optional<cluster::TimePoint> NodeExtents::LastHeard(std::uint64_t upload) const {
  const std::lock_guard lock(mutex_);
  const auto found = heard_.find(upload);
  return found == heard_.end() ? std::nullopt : std::optional(found->second);
}

void NodeExtents::NoteHeard(std::uint64_t upload) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  heard_[upload] = now;
}

void NodeExtents::ForgetSilent(cluster::TimePoint now, std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  std::erase_if(heard_, [&](const auto& entry) { return now - entry.second > grace; });
}

// Where nothing is damaged nobody asks.
void NodeExtents::NoteElsewhere(const std::set<ExtentId>& ids) {
  const bool has_damage = store_.totals().bad_count > 0;
  const std::lock_guard lock(mutex_);
  if (!has_damage)
    elsewhere_.clear();
  else if (elsewhere_ != ids)
    elsewhere_ = ids;
}

bool NodeExtents::IsElsewhere(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  return elsewhere_.contains(id);
}

bool NodeExtents::IsKept(const ExtentId& id) const {
  return std::binary_search(kept_.begin(), kept_.end(), id);
}

void NodeExtents::Drop(const ExtentId& id) {
  if (!IsKept(id)) dropped_.Add(id);
}

// A failure is one of the disk, which knows of it.
std::size_t NodeExtents::Collect(const Disk* disk) {
  if (trust_ == Trust::kNot || !has_dropped()) return 0;
  if (trust_ == Trust::kFrozen) {
    const std::unique_lock lock(sweeping_, std::try_to_lock);
    if (lock) dropped_.TakeBack();  // Else at the next call: not beside those that sweep.
    return 0;
  }
  const std::shared_lock lock(sweeping_);
  const auto gone = dropped_.Sweep(disk, [this] { return trust_ == Trust::kIs; }).ids;
  store_.Release(gone);
  return gone.size();
}

Result<std::vector<std::byte>> NodeExtents::Read(const ManifestExtent& extent) const {
  const ExtentPtr found = store_.Find(extent.id);
  if (!found || found->disk == nullptr || Described(*found) != extent)
    return Error{ErrorCode::kNotFound, "extent " + Hex(extent.id) + " is not on this node"};
  const UniqueFd file = FFR_TRY(ExtentStore::OpenFile(*found));
  std::vector<std::byte> bytes(extent.size_bytes);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", found->disk->PathOf(extent.id), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  if (auto checked = CheckBytes(extent, bytes); !checked) {
    if (store_.Mark(*found, true))
      spdlog::warn("event=extent_bad extent={} found_by=node error=\"{}\"", Hex(extent.id),
                   checked.error().message);
    return std::move(checked).error();
  }
  return bytes;
}

Result<void> NodeExtents::Write(const ManifestExtent& extent, std::span<const std::byte> bytes) {
  const bool heals = FFR_TRY(RemoveBad(extent.id));
  // Durable since it can be found: a publication that begins again stores its manifest again.
  if (Find(extent.id) == extent) return {};
  auto written = WriteNew(extent, bytes);
  if (!written && written.error().code == ErrorCode::kConflict &&
      FFR_TRY(store_.RemoveUnknown(extent.id))) {
    spdlog::warn("event=refused_file_removed extent={}", Hex(extent.id));
    written = WriteNew(extent, bytes);
  }
  if (written && heals) healed_.Add();
  return written;
}

Result<void> NodeExtents::WriteNew(const ManifestExtent& extent, std::span<const std::byte> bytes) {
  auto place = FFR_TRY(store_.Place(extent.id, extent.size_bytes));
  for (;;) {
    auto writer = FFR_TRY(place.Open());
    if (!writer) continue;  // It has a place on another disk.
    FFR_TRY(writer->Append(bytes));
    FFR_TRY(writer->Seal(extent.xxh3));
    return {};
  }
}

// Its bytes are worth nothing, and the good ones are at hand.
Result<bool> NodeExtents::RemoveBad(const ExtentId& id) {
  const ExtentPtr found = store_.Find(id);
  if (!found || !found->is_bad.load(std::memory_order_relaxed)) return false;
  ExtentPtr dropped = store_.MarkDeleted(id);
  if (dropped && dropped->disk != nullptr) {
    const auto unlinked = store_.Unlink(*dropped);
    if (unlinked && unlinked.value()) FFR_TRY(store_.SyncNames({&id, 1}));
  }
  store_.Release({&id, 1});
  return true;
}

}  // namespace ffrecord::server
