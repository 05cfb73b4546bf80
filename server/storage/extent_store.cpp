#include "server/storage/extent_store.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "libffrecord/base/endian.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"
#include "server/storage/extent_scan.h"
#include "server/storage/extent_trailer.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

// Makes one folder durably. One that exists is fine, but whoever made it may not have synced it.
Result<void> MakeFolder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST)
    return ErrnoError("make the folder", folder, errno);
  return SyncParentFolder(folder);
}

// All there could be if it is not known: writing will tell.
Result<void> CheckRoom(const fs::path& folder, std::uint64_t size_bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (size_bytes <= free_bytes) return {};
  return Error{ErrorCode::kIo,
               "the disk of " + folder.string() + " has room for " + std::to_string(free_bytes) +
                   " bytes, and " + std::to_string(size_bytes) + " are wanted",
               ENOSPC};
}

Error DeletedError(const ExtentId& id) {
  return {ErrorCode::kConflict,
          "extent " + Hex(id) + " is being deleted; upload its bytes under a new id"};
}

}  // namespace

std::size_t HashExtentId::operator()(const ExtentId& id) const {
  return static_cast<std::size_t>(Xxh3(id));
}

// --- Writing -------------------------------------------------------------------------------------

Result<void> ExtentWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > declared_size_bytes_ - file_.size_bytes())
    return Error{ErrorCode::kInvalidArgument, "extent " + Hex(id_) + ": more bytes than the " +
                                                  std::to_string(declared_size_bytes_) +
                                                  " that were declared"};
  const auto begin = std::chrono::steady_clock::now();
  sum_.Update(bytes);
  checksum_time_ += std::chrono::steady_clock::now() - begin;
  return store_->health_.Noted(file_.Append(bytes));
}

Result<ExtentPtr> ExtentWriter::Seal(std::uint64_t xxh3) {
  if (file_.size_bytes() != declared_size_bytes_)
    return Error{ErrorCode::kInvalidArgument,
                 "extent " + Hex(id_) + ": " + std::to_string(file_.size_bytes()) +
                     " bytes have arrived of the " + std::to_string(declared_size_bytes_) +
                     " that were declared"};
  if (sum_.Finish64() != xxh3)
    return Error{ErrorCode::kCorruption,
                 "extent " + Hex(id_) + ": the bytes that arrived are not those of its checksum"};
  WriteHealth& health = store_->health_;
  FFR_TRY(health.Noted(file_.Append(EncodeExtentTrailer({id_, declared_size_bytes_, xxh3}))));
  auto published = health.Noted(file_.Publish());
  if (!published && published.error().code != ErrorCode::kConflict)
    return std::move(published).error();
  if (!published) FFR_TRY(health.Noted(CheckSealedByAnother(xxh3)));
  health.NoteSuccess();
  return store_->Add(id_, declared_size_bytes_, xxh3);
}

Result<void> ExtentWriter::CheckSealedByAnother(std::uint64_t xxh3) const {
  const fs::path path = store_->PathOf(id_);
  const UniqueFd file = FFR_TRY(store_->OpenFile(id_));
  const auto trailer = ReadTrailer(file.get(), path);
  if (!trailer || trailer.value() != ExtentTrailer{id_, declared_size_bytes_, xxh3})
    return Error{ErrorCode::kConflict,
                 "extent " + Hex(id_) +
                     (trailer ? " exists with other bytes"
                              : ": the daemon's disk has a file of that name that is not a valid "
                                "extent (" +
                                    trailer.error().message + ")") +
                     "; upload under a new id"};
  // Its writer may not have come as far as this.
  return SyncParentFolder(path);
}

// --- The store -----------------------------------------------------------------------------------

Result<std::unique_ptr<ExtentStore>> ExtentStore::Open(const fs::path& folder,
                                                       std::span<const ManifestExtent> known) {
  FFR_TRY(MakeFolder(folder));
  UniqueFd folder_fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd) return ErrnoError("open the folder", folder, errno);
  std::unique_ptr<ExtentStore> store(new ExtentStore(folder, std::move(folder_fd)));
  FFR_TRY(store->Scan(known));
  return store;
}

Result<void> ExtentStore::Scan(std::span<const ManifestExtent> known) {
  FoundExtents found = FFR_TRY(ScanExtents(folder_, known));
  index_.reserve(found.known.size() + found.extents.size());
  for (const ManifestExtent* const extent : found.known)
    FFR_TRY(Add(extent->id, extent->size_bytes, extent->xxh3));
  // Their writers were killed, perhaps before the name was synced; now it is said that they are
  // sealed. What manifests describe was durable before it was published.
  FFR_TRY(SyncParentFolder(folder_ / "slot"));
  std::map<fs::path, Result<void>> synced;
  for (const ExtentTrailer& trailer : found.extents) {
    const fs::path path = PathOf(trailer.id);
    const auto [slot, is_new] = synced.try_emplace(path.parent_path());
    if (is_new) slot->second = SyncParentFolder(path);
    if (!slot->second) {
      found.refused.push_back(path.string() + ": " + slot->second.error().message);
      continue;
    }
    FFR_TRY(Add(trailer.id, trailer.size_bytes, trailer.xxh3));
    scan_report_.unknown.push_back(trailer.id);
  }
  scan_report_.extent_count = index_.size();
  scan_report_.size_bytes = size_bytes_;
  scan_report_.refused = std::move(found.refused);
  scan_report_.missing_count = known.size() - found.known.size();
  return {};
}

ExtentStore::Totals ExtentStore::totals() const {
  const std::lock_guard lock(mutex_);
  return {index_.size(), size_bytes_, bad_count_};
}

ExtentPtr ExtentStore::Find(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(id);
  return found == index_.end() ? nullptr : found->second;
}

std::vector<ExtentPtr> ExtentStore::FindAll(
    const std::function<bool(const Extent&)>& wanted) const {
  std::vector<ExtentPtr> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, extent] : index_)
    if (wanted(*extent)) found.push_back(extent);
  return found;
}

fs::path ExtentStore::PathOf(const ExtentId& id) const { return folder_ / ExtentPath(id); }

Result<UniqueFd> ExtentStore::OpenFile(const ExtentId& id) const {
  const std::string name = ExtentPath(id).string();
  // O_NONBLOCK: what has become a FIFO is told below, and not waited for.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  open_how how{};
  how.flags = kFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd fd(
      static_cast<int>(::syscall(SYS_openat2, folder_fd_.get(), name.c_str(), &how, sizeof(how))));
  // Kernels before 5.6, and containers that know no such call. The name is made of digits.
  if (!fd && (errno == ENOSYS || errno == EPERM))
    fd.Reset(::openat(folder_fd_.get(), name.c_str(), kFlags));
  if (!fd) return ErrnoError("open", PathOf(id), errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("look at", PathOf(id), errno);
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::kIo, PathOf(id).string() + " is not a regular file", EINVAL};
  return fd;
}

Result<ExtentWriter> ExtentStore::Create(const ExtentId& id, std::uint64_t size_bytes) {
  FFR_TRY(health_.CheckWritable());
  WritingClaim claim = FFR_TRY(Claim(id));
  const fs::path path = PathOf(id);
  FFR_TRY(health_.Noted(MakeSlot(SlotOf(id), path.parent_path())));
  FFR_TRY(health_.Noted(CheckRoom(folder_, size_bytes + ExtentTrailer::kEncodedSizeBytes)));
  auto file = FFR_TRY(health_.Noted(AtomicFile::Create(path, {})));
  return ExtentWriter(*this, std::move(claim), std::move(file), id, size_bytes);
}

Result<void> ExtentStore::MakeSlot(std::uint32_t slot, const fs::path& folder) {
  {
    const std::lock_guard lock(mutex_);
    if (durable_slots_[slot]) return {};
  }
  FFR_TRY(MakeFolder(folder));
  const std::lock_guard lock(mutex_);
  durable_slots_.set(slot);
  return {};
}

Result<WritingClaim> ExtentStore::Claim(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  if (deleted_.contains(id)) return DeletedError(id);
  ++writer_counts_[id];
  return WritingClaim(*this, id);
}

WritingClaim::~WritingClaim() {
  if (store_ == nullptr) return;
  const std::lock_guard lock(store_->mutex_);
  const auto found = store_->writer_counts_.find(id_);
  if (--found->second == 0) store_->writer_counts_.erase(found);
}

Result<ExtentPtr> ExtentStore::Add(const ExtentId& id, std::uint64_t size_bytes,
                                   std::uint64_t xxh3) {
  const std::lock_guard lock(mutex_);
  if (deleted_.contains(id)) return DeletedError(id);
  auto& place = index_[id];
  if (!place) {
    auto extent = std::make_shared<Extent>();
    extent->id = id;
    extent->size_bytes = size_bytes;
    extent->xxh3 = xxh3;
    place = std::move(extent);
    size_bytes_ += size_bytes;
  } else if (place->size_bytes != size_bytes || place->xxh3 != xxh3) {
    return Error{ErrorCode::kConflict, "extent " + Hex(id) + " exists with other bytes"};
  }
  return place;
}

bool ExtentStore::Mark(const Extent& extent, bool is_bad) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(extent.id);
  if (found == index_.end() || found->second.get() != &extent) return false;
  if (extent.is_bad.exchange(is_bad, std::memory_order_relaxed) == is_bad) return false;
  if (is_bad)
    ++bad_count_;
  else
    --bad_count_;
  return true;
}

ExtentPtr ExtentStore::MarkDeleted(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  ++deleted_[id];
  const auto found = index_.find(id);
  if (found == index_.end()) return nullptr;
  ExtentPtr extent = std::move(found->second);
  index_.erase(found);
  size_bytes_ -= extent->size_bytes;
  if (extent->is_bad.load(std::memory_order_relaxed)) --bad_count_;
  extent->is_deleted.store(true, std::memory_order_release);
  return extent;
}

Result<bool> ExtentStore::Unlink(const Extent& extent) {
  {
    const std::lock_guard lock(mutex_);
    FFR_ASSERT(deleted_.contains(extent.id));
    // It finds the name taken when it seals. No more can come.
    if (writer_counts_.contains(extent.id)) return false;
  }
  const fs::path path = PathOf(extent.id);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("unlink", path, errno);
  return true;
}

Result<void> ExtentStore::SyncNames(std::span<const ExtentId> ids) const {
  std::set<std::uint32_t> slots;
  for (const ExtentId& id : ids) {
    if (!slots.insert(SlotOf(id)).second) continue;
    const auto synced = SyncParentFolder(PathOf(id));
    // Where the folder itself is gone, so are the names in it.
    if (!synced && synced.error().code != ErrorCode::kNotFound) return synced;
  }
  return {};
}

void ExtentStore::Release(std::span<const ExtentId> ids) {
  const std::lock_guard lock(mutex_);
  for (const ExtentId& id : ids) {
    const auto found = deleted_.find(id);
    if (--found->second == 0) deleted_.erase(found);
  }
}

}  // namespace ffrecord::server
