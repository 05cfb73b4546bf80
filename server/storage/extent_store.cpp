#include "server/storage/extent_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "libffrecord/base/endian.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

void CountIn(const Extent& extent) {
  ++extent.disk->totals().extent_count;
  extent.disk->totals().size_bytes += extent.size_bytes;
}

void CountOut(const Extent& extent) {
  if (extent.disk == nullptr) return;
  --extent.disk->totals().extent_count;
  extent.disk->totals().size_bytes -= extent.size_bytes;
  if (extent.is_bad.load(std::memory_order_relaxed)) --extent.disk->totals().bad_count;
}

Error DeletedError(const ExtentId& id) {
  return {ErrorCode::kConflict,
          "extent " + Hex(id) + " is being deleted; upload its bytes under a new id"};
}

}  // namespace

// --- The store -----------------------------------------------------------------------------------

ExtentStore::ExtentStore(Disks disks)
    : disks_(std::move(disks.present)),
      missing_disk_count_(disks.missing_count),
      credits_(disks_.size()) {}

Result<std::unique_ptr<ExtentStore>> ExtentStore::Open(const fs::path& folder,
                                                       std::span<const ManifestExtent> known) {
  Disks disks;
  disks.present.push_back(FFR_TRY(Disk::Open(folder)));
  return Open(std::move(disks), known);
}

Result<std::unique_ptr<ExtentStore>> ExtentStore::Open(Disks disks,
                                                       std::span<const ManifestExtent> known) {
  const std::size_t missing_count_max = disks.missing_count_max;
  std::unique_ptr<ExtentStore> store(new ExtentStore(std::move(disks)));
  FFR_TRY(store->ScanAll(missing_count_max, known));
  return store;
}

// Side by side: each disk takes as long as it takes.
Result<void> ExtentStore::ScanAll(std::size_t missing_count_max,
                                  std::span<const ManifestExtent> known) {
  std::vector<Result<FoundExtents>> found(disks_.size(), FoundExtents{});
  const auto scan = [&](std::size_t i) { found[i] = ScanExtents(disks_[i]->folder(), known); };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < disks_.size(); ++i) threads.emplace_back(scan, i);
  if (!disks_.empty()) scan(0);
  for (std::thread& thread : threads) thread.join();

  index_.Reserve(known.size());
  std::vector<std::unique_ptr<Disk>> listed;
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    auto taken = found[i] ? Take(*disks_[i], std::move(found[i]).value()) : found[i].error();
    if (taken) {
      listed.push_back(std::move(disks_[i]));
      continue;
    }
    if (++missing_disk_count_ > missing_count_max) return taken;
    scan_report_.unreadable_disks.push_back(taken.error().message);
  }
  disks_ = std::move(listed);
  credits_.resize(disks_.size());
  if (disks_.empty() && missing_disk_count_ > 0)
    return Error{ErrorCode::kIo, "none of the daemon's disks is there"};
  AddAbsent(known);
  const Totals found_totals = totals();
  scan_report_.extent_count = found_totals.extent_count;
  scan_report_.size_bytes = found_totals.size_bytes;
  return {};
}

// Fails with nothing taken.
Result<void> ExtentStore::Take(Disk& disk, FoundExtents found) {
  // The folders of slots are in there; ScanExtents() has synced these.
  FFR_TRY(SyncParentFolder(disk.folder() / "slot"));
  // Each look-up in the index of very many waits for memory: the second one is of the same place.
  const auto take = [&](const ExtentTrailer& trailer, bool is_known) {
    if (index_.Find(trailer.id)) return TakeCopy(disk, trailer);
    const std::lock_guard lock(mutex_);
    const ExtentPtr made = Make(&disk, trailer);
    CountIn(*made);
    index_.Put(made);
    NoteChange();
    if (!is_known) scan_report_.unknown.push_back(trailer.id);
  };
  for (const ManifestExtent* const extent : found.known)
    take({extent->id, extent->size_bytes, extent->xxh3}, true);
  for (const ExtentTrailer& trailer : found.extents) take(trailer, false);
  scan_report_.refused.insert(scan_report_.refused.end(), found.refused.begin(),
                              found.refused.end());
  return {};
}

// Two disks have the extent, as after a copy that was broken off. Both go when it is deleted. The
// one whose trailer is right is read.
void ExtentStore::TakeCopy(Disk& disk, const ExtentTrailer& copy) {
  const ExtentPtr place = index_.Find(copy.id);
  const auto is_whole = [&](const Disk& on) {
    const auto file = on.OpenFile(copy.id);
    const auto trailer = file ? ReadTrailer(file.value().get(), on.PathOf(copy.id)) : file.error();
    return trailer && trailer.value() == ExtentTrailer{place->id, place->size_bytes, place->xxh3};
  };
  scan_report_.refused.push_back(disk.PathOf(copy.id).string() + ": also at " +
                                 place->disk->PathOf(copy.id).string());
  Disk* const first = place->disk;
  if (is_whole(*first) || !is_whole(disk)) {
    copies_.emplace(copy.id, &disk);
    return;
  }
  const ExtentTrailer trailer{place->id, place->size_bytes, place->xxh3};
  CountOut(*place);
  index_.Take(copy.id);
  (void)Add(disk, trailer);
  copies_.emplace(copy.id, first);
}

void ExtentStore::AddAbsent(std::span<const ManifestExtent> known) {
  // As nearly always, and none is looked for.
  if (totals().extent_count - scan_report_.unknown.size() == known.size()) return;
  std::uint64_t count = 0;
  for (const ManifestExtent& extent : known) {
    if (index_.Find(extent.id)) continue;
    ++count;
    if (missing_disk_count_ > 0)
      index_.Put(Make(nullptr, {extent.id, extent.size_bytes, extent.xxh3}));
  }
  (missing_disk_count_ > 0 ? scan_report_.absent_count : scan_report_.missing_count) = count;
}

ExtentStore::Totals ExtentStore::totals() const {
  Totals sum;
  for (const auto& disk : disks_) {
    sum.extent_count += disk->totals().extent_count;
    sum.size_bytes += disk->totals().size_bytes;
    sum.bad_count += disk->totals().bad_count;
  }
  return sum;
}

ExtentPtr ExtentStore::Find(const ExtentId& id) const { return index_.Find(id); }

std::vector<ExtentPtr> ExtentStore::FindAll(
    const std::function<bool(const Extent&)>& wanted) const {
  std::vector<ExtentPtr> found;
  index_.ForEach([&](const ExtentPtr& extent) {
    if (wanted(*extent)) found.push_back(extent);
  });
  return found;
}

Result<UniqueFd> ExtentStore::OpenFile(const Extent& extent) {
  if (extent.disk == nullptr)
    return Error{ErrorCode::kUnavailable,
                 "extent " + Hex(extent.id) + " is on a disk of the daemon that is missing"};
  // A disk may hang here, too, and with it the thread that asks.
  const ReadHealth::Running running(extent.disk->reads());
  return extent.disk->OpenFile(extent.id);
}

// --- Where new extents go ------------------------------------------------------------------------

Result<AtomicFile> ExtentStore::BeginFile(Disk& disk, const ExtentId& id) {
  const ReadHealth::Running running(disk.reads());
  FFR_TRY(disk.CheckInPlace());
  FFR_TRY(disk.MakeSlot(id));
  auto file = AtomicFile::Create(disk.PathOf(id), {});
  if (file || file.error().code != ErrorCode::kNotFound) return file;
  disk.ForgetSlot(id);  // Somebody has removed it.
  FFR_TRY(disk.MakeSlot(id));
  return AtomicFile::Create(disk.PathOf(id), {});
}

Result<NewExtent> ExtentStore::Place(const ExtentId& id, std::uint64_t size_bytes) {
  return NewExtent(*this, FFR_TRY(Claim(id, size_bytes, {})));
}

// All writers of one extent are on one disk, where the file system lets one of them have the name.
Result<WritingClaim> ExtentStore::Claim(const ExtentId& id, std::uint64_t size_bytes,
                                        std::span<Disk* const> tried) {
  Disk* const chosen = FFR_TRY(Choose(size_bytes + ExtentTrailer::kEncodedSizeBytes, tried));
  const std::lock_guard lock(mutex_);
  if (deleted_.contains(id)) return DeletedError(id);
  Disk* disk = chosen;
  if (const auto found = index_.Find(id)) disk = found->disk;
  if (const auto found = writing_.find(id); found != writing_.end()) disk = found->second.disk;
  if (disk == nullptr)
    return Error{ErrorCode::kConflict, "extent " + Hex(id) +
                                           " is on a disk of the daemon that is missing; upload "
                                           "its bytes under a new id"};
  Writing& writing = writing_[id];
  writing.disk = disk;
  ++writing.count;
  return WritingClaim(*this, *disk, id, size_bytes);
}

// Smooth weighted round robin: disks take turns as their room is to that of the others, and equal
// ones alternate, so that all of them carry each dataset.
Result<Disk*> ExtentStore::Choose(std::uint64_t size_bytes, std::span<Disk* const> tried) {
  struct Candidate {
    std::size_t index;
    double room_bytes;
  };
  std::vector<Candidate> good;
  std::vector<Candidate> suspect;
  Result<Disk*> last = Error{ErrorCode::kIo, "no disk of the daemon takes the extent", EIO};
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    Disk& disk = *disks_[i];
    if (disk.is_draining() || std::ranges::find(tried, &disk) != tried.end()) continue;
    const auto takes = disk.writes().Noted(disk.CheckTakes(size_bytes));
    // That there is no room is what can be mended most easily.
    if (!takes && (last || last.error().system_errno != ENOSPC)) last = takes.error();
    if (!takes) continue;
    const std::uint64_t free_bytes = disk.space().free_bytes;
    const std::uint64_t taken_bytes = std::min<std::uint64_t>(
        disk.totals().declared_bytes.load(std::memory_order_relaxed), free_bytes - size_bytes);
    (disk.reads().is_suspect() ? suspect : good)
        .push_back({i, static_cast<double>(free_bytes - taken_bytes)});
  }
  const std::vector<Candidate>& candidates = good.empty() ? suspect : good;
  if (candidates.empty()) return last;
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const Candidate& one : candidates) sum += one.room_bytes;
  for (const Candidate& one : candidates) credits_[one.index] += one.room_bytes / sum;
  const auto best =
      std::ranges::max(candidates, {}, [&](const Candidate& one) { return credits_[one.index]; });
  credits_[best.index] -= 1;
  return disks_[best.index].get();
}

Result<void> ExtentStore::CheckTakes(std::uint64_t size_bytes) const {
  Result<void> last = Error{ErrorCode::kIo, "no disk of the daemon takes the extent", EIO};
  for (const auto& disk : disks_) {
    if (disk->is_draining()) continue;
    last = disk->CheckTakes(size_bytes + ExtentTrailer::kEncodedSizeBytes);
    if (last) break;
  }
  return last;
}

bool ExtentStore::HasOtherFor(const Disk& disk) const {
  return std::ranges::any_of(disks_, [&](const auto& other) {
    return other.get() != &disk && !other->is_draining() && other->CheckTakes(kExtentSizeMax);
  });
}

Result<std::uint64_t> ExtentStore::FreeBytes() const {
  Result<std::uint64_t> free_bytes = Error{ErrorCode::kIo, "the daemon has no disk", EIO};
  for (const auto& disk : disks_) {
    if (disk->is_draining()) continue;
    if (const auto writable = disk->writes().CheckWritable(); !writable) {
      if (!free_bytes) free_bytes = writable.error();
      continue;
    }
    const std::uint64_t more_bytes = disk->space().free_bytes;
    const std::uint64_t sum_bytes = free_bytes ? free_bytes.value() : 0;
    free_bytes = more_bytes > UINT64_MAX - sum_bytes ? UINT64_MAX : sum_bytes + more_bytes;
  }
  return free_bytes;
}

std::uint64_t ExtentStore::SizeBytes() const {
  std::uint64_t size_bytes = 0;
  for (const auto& disk : disks_)
    if (!disk->is_draining() && disk->writes().CheckWritable())
      size_bytes += disk->space().size_bytes;
  return size_bytes;
}

// --- Moving --------------------------------------------------------------------------------------

Result<ExtentWriter> ExtentStore::BeginMove(const Extent& extent) {
  // Not where a file of its name is that could neither be taken for it nor removed.
  std::vector<Disk*> tried = CopiesOf(extent.id);
  tried.push_back(extent.disk);
  Disk* const target = FFR_TRY(Choose(extent.size_bytes + ExtentTrailer::kEncodedSizeBytes, tried));
  {
    const std::lock_guard lock(mutex_);
    if (index_.Find(extent.id).get() != &extent) return DeletedError(extent.id);
    if (!writing_.try_emplace(extent.id, Writing{target, 1}).second)
      return Error{ErrorCode::kConflict, "extent " + Hex(extent.id) + " is being written"};
    // A thread that deletes the extent meanwhile unlinks it there too.
    AddCopy(extent.id, *target);
  }
  WritingClaim claim(*this, *target, extent.id, extent.size_bytes);
  auto file = target->writes().Noted(BeginFile(*target, extent.id));
  if (file) return ExtentWriter(*this, std::move(claim), std::move(file).value());
  const std::lock_guard lock(mutex_);
  DropCopy(extent.id, *target);
  return std::move(file).error();
}

Result<void> ExtentStore::EndMove(const ExtentPtr& old, ExtentWriter& writer) {
  Disk& target = writer.claim_.disk();
  FFR_TRY(writer.Seal(old->xxh3));
  return Relocate(old, target);
}

Result<void> ExtentStore::Relocate(const ExtentPtr& old, Disk& target) {
  const std::lock_guard lock(mutex_);
  // Its file there goes with the others, once the writer has released it.
  if (index_.Find(old->id) != old) return DeletedError(old->id);
  CountOut(*old);
  auto moved = Make(&target, {old->id, old->size_bytes, old->xxh3});
  CountIn(*moved);
  index_.Put(std::move(moved));
  DropCopy(old->id, target);
  AddCopy(old->id, *old->disk);
  SetDeleted(*old);
  return {};
}

std::vector<Disk*> ExtentStore::CopiesOf(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  std::vector<Disk*> disks;
  const auto [begin, end] = copies_.equal_range(id);
  for (auto copy = begin; copy != end; ++copy) disks.push_back(copy->second);
  return disks;
}

Result<bool> ExtentStore::MoveToCopy(const ExtentPtr& old) {
  for (Disk* const target : CopiesOf(old->id)) {
    // A disk that has failed may show a file that is not on it.
    if (target->is_draining() || !target->writes().CheckWritable()) continue;
    const auto whole = CheckCopy(*old, *target);
    if (whole) {
      FFR_TRY(Relocate(old, *target));
      return true;
    }
    if (whole.error().code != ErrorCode::kCorruption && whole.error().code != ErrorCode::kNotFound)
      continue;
    if (!target->writes().Noted(target->Unlink(old->id))) continue;
    const std::lock_guard lock(mutex_);
    DropCopy(old->id, *target);
  }
  return false;
}

// Checks that the copy is whole, and durable: the process that made it may have been killed before.
Result<void> ExtentStore::CheckCopy(const Extent& extent, Disk& disk) {
  const fs::path path = disk.PathOf(extent.id);
  const UniqueFd file = FFR_TRY(disk.OpenFile(extent.id));
  const auto trailer = FFR_TRY(ReadTrailer(file.get(), path));
  Xxh3Stream sum;
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < extent.size_bytes; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(std::uint64_t{1} << 20, extent.size_bytes - at));
    FFR_TRY(ReadExactly(file.get(), path, at, piece));
    sum.Update(piece);
  }
  if (trailer != ExtentTrailer{extent.id, extent.size_bytes, extent.xxh3} ||
      sum.Finish64() != extent.xxh3)
    return Error{ErrorCode::kCorruption, path.string() + ": the copy has other bytes"};
  if (::fdatasync(file.get()) != 0)
    return disk.writes().Noted(Result<void>(ErrnoError("sync", path, errno)));
  return disk.writes().Noted(disk.SyncNames(std::span(&extent.id, 1)));
}

Result<void> ExtentStore::RemoveMoved(const Extent& old) {
  FFR_TRY(old.disk->writes().Noted(old.disk->Unlink(old.id)));
  const std::lock_guard lock(mutex_);
  DropCopy(old.id, *old.disk);
  return {};
}

void ExtentStore::AddCopy(const ExtentId& id, Disk& disk) {
  DropCopy(id, disk);
  copies_.emplace(id, &disk);
}

void ExtentStore::DropCopy(const ExtentId& id, const Disk& disk) {
  const auto [begin, end] = copies_.equal_range(id);
  const auto found =
      std::find_if(begin, end, [&](const auto& copy) { return copy.second == &disk; });
  if (found != end) copies_.erase(found);
}

// --- The index -----------------------------------------------------------------------------------

ExtentPtr ExtentStore::Make(Disk* disk, const ExtentTrailer& trailer) {
  auto extent = std::make_shared<Extent>();
  extent->id = trailer.id;
  extent->size_bytes = trailer.size_bytes;
  extent->xxh3 = trailer.xxh3;
  extent->disk = disk;
  extent->is_cached = disk != nullptr && disk->is_cache();
  return extent;
}

// The claim ends with it: an extent that can be found can be removed, though its writer is there.
Result<ExtentPtr> ExtentStore::Add(Disk& disk, const ExtentTrailer& trailer, WritingClaim* claim) {
  const std::lock_guard lock(mutex_);
  if (deleted_.contains(trailer.id)) return DeletedError(trailer.id);
  ExtentPtr found = index_.Find(trailer.id);
  if (!found) {
    ExtentPtr made = Make(&disk, trailer);
    CountIn(*made);
    index_.Put(made);
    NoteChange();
    found = std::move(made);
  } else if (found->size_bytes != trailer.size_bytes || found->xxh3 != trailer.xxh3) {
    return Error{ErrorCode::kConflict, "extent " + Hex(trailer.id) + " exists with other bytes"};
  }
  if (claim != nullptr) claim->EndLocked();
  return found;
}

bool ExtentStore::Mark(const Extent& extent, bool is_bad) {
  const std::lock_guard lock(mutex_);
  if (index_.Find(extent.id).get() != &extent || extent.disk == nullptr) return false;
  if (extent.is_bad.exchange(is_bad, std::memory_order_relaxed) == is_bad) return false;
  NoteChange();
  auto& bad_count = extent.disk->totals().bad_count;
  if (is_bad)
    ++bad_count;
  else
    --bad_count;
  return true;
}

ExtentPtr ExtentStore::MarkDeleted(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  ++deleted_[id];
  ExtentPtr extent = index_.Take(id);
  if (extent) {
    NoteChange();
    CountOut(*extent);
  } else if (missing_disk_count_ > 0) {
    extent = Make(nullptr, {id, 0, 0});  // Its file may come back with the disk.
  }
  if (extent) SetDeleted(*extent);
  return extent;
}

// Caches and connections shall close it.
void ExtentStore::SetDeleted(const Extent& extent) noexcept {
  extent.is_deleted.store(true, std::memory_order_release);
  deleted_count_.fetch_add(1, std::memory_order_release);
}

std::vector<Disk*> ExtentStore::DisksOf(const Extent& extent) const {
  std::vector<Disk*> disks;
  if (extent.disk == nullptr) return disks;
  disks.push_back(extent.disk);
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = copies_.equal_range(extent.id);
  for (auto copy = begin; copy != end; ++copy) disks.push_back(copy->second);
  return disks;
}

Result<bool> ExtentStore::Unlink(const Extent& extent) {
  if (extent.disk == nullptr) return false;
  {
    const std::lock_guard lock(mutex_);
    FFR_ASSERT(deleted_.contains(extent.id));
    // It finds the name taken when it seals. No more can come.
    if (writing_.contains(extent.id)) return false;
  }
  for (Disk* const disk : DisksOf(extent)) {
    if (!disk->writes().CheckWritable()) return false;
    FFR_TRY(disk->writes().Noted(disk->Unlink(extent.id)));
  }
  const std::lock_guard lock(mutex_);
  copies_.erase(extent.id);
  return true;
}

Result<bool> ExtentStore::RemoveUnknown(const ExtentId& id) {
  {
    const std::lock_guard lock(mutex_);
    if (index_.Find(id) || writing_.contains(id) || deleted_.contains(id)) return false;
    ++deleted_[id];  // So nobody writes it meanwhile.
  }
  const auto removed = RemoveFiles(id);
  Release({&id, 1});
  if (!removed) return removed.error();
  return true;
}

// A disk that has failed keeps its file: nothing new goes there.
Result<void> ExtentStore::RemoveFiles(const ExtentId& id) {
  for (const auto& disk : disks_)
    if (disk->writes().CheckWritable()) FFR_TRY(disk->writes().Noted(disk->Unlink(id)));
  FFR_TRY(SyncNames({&id, 1}));
  const std::lock_guard lock(mutex_);
  copies_.erase(id);
  return {};
}

std::vector<ExtentId> ExtentStore::InMotion() const {
  std::vector<ExtentId> ids;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, writing] : writing_) ids.push_back(id);
  for (const auto& [id, count] : deleted_) ids.push_back(id);
  return ids;
}

Result<void> ExtentStore::SyncNames(std::span<const ExtentId> ids) const {
  for (const auto& disk : disks_) FFR_TRY(disk->writes().Noted(disk->SyncNames(ids)));
  return {};
}

void ExtentStore::TakeBack(const Extent& extent) {
  const std::lock_guard lock(mutex_);
  const auto mark = deleted_.find(extent.id);
  FFR_ASSERT(mark != deleted_.end());
  if (--mark->second > 0) return;  // It goes with another mark.
  deleted_.erase(mark);
  if (extent.disk == nullptr) return;
  ExtentPtr made = Make(extent.disk, {extent.id, extent.size_bytes, extent.xxh3});
  CountIn(*made);
  if (extent.is_bad.load(std::memory_order_relaxed)) {
    made->is_bad.store(true, std::memory_order_relaxed);
    ++extent.disk->totals().bad_count;
  }
  index_.Put(made);
  NoteChange();
}

void ExtentStore::Release(std::span<const ExtentId> ids) {
  const std::lock_guard lock(mutex_);
  for (const ExtentId& id : ids) {
    const auto found = deleted_.find(id);
    if (--found->second == 0) deleted_.erase(found);
  }
}

}  // namespace ffrecord::server
