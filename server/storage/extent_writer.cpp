// How an extent comes to a disk: its place there, its file, its bytes, its seal.

#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

namespace fs = std::filesystem;

// --- New extents ---------------------------------------------------------------------------------

Result<std::optional<ExtentWriter>> NewExtent::Open() {
  Disk& disk = claim_->disk();
  const ExtentId id = claim_->id();
  const std::uint64_t size_bytes = claim_->size_bytes();
  auto file = disk.writes().Noted(ExtentStore::BeginFile(disk, id));
  if (file)
    return std::optional(
        ExtentWriter(*store_, *std::exchange(claim_, std::nullopt), std::move(file).value()));
  tried_.push_back(&disk);
  const bool is_of_disk = WriteHealth::StateOf(file.error()).has_value();
  if (!is_of_disk || tried_.size() == store_->disks().size()) return std::move(file).error();
  claim_.reset();  // Its writers are on the disk of the first of them.
  claim_.emplace(FFR_TRY(store_->Claim(id, size_bytes, tried_)));
  return std::optional<ExtentWriter>();
}

// --- Writing -------------------------------------------------------------------------------------

Result<void> ExtentWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > claim_.size_bytes() - file_.size_bytes())
    return Error{ErrorCode::kInvalidArgument,
                 "extent " + Hex(claim_.id()) + ": more bytes than the " +
                     std::to_string(claim_.size_bytes()) + " that were declared"};
  const auto begin = Clock::now();
  sum_.Update(bytes);
  checksum_time_ += Clock::now() - begin;
  const ReadHealth::Running running(claim_.disk().reads());
  return Noted(file_.Append(bytes));
}

// One disk of several that fails is no reason to fail an upload: sent again, it goes elsewhere.
template <class T>
Result<T> ExtentWriter::Noted(Result<T> result) {
  result = claim_.disk().writes().Noted(std::move(result));
  const bool is_of_disk = !result && WriteHealth::StateOf(result.error()) &&
                          result.error().system_errno != EFBIG;  // That is a limit of ours.
  if (!is_of_disk) return result;
  claim_.disk().RefreshSpace();
  if (!store_->HasOtherFor(claim_.disk())) return result;
  return Error{ErrorCode::kUnavailable,
               result.error().message + "; sent again, it goes to another disk"};
}

Result<ExtentPtr> ExtentWriter::Seal(std::uint64_t xxh3) {
  if (file_.size_bytes() != claim_.size_bytes())
    return Error{ErrorCode::kInvalidArgument,
                 "extent " + Hex(claim_.id()) + ": " + std::to_string(file_.size_bytes()) +
                     " bytes have arrived of the " + std::to_string(claim_.size_bytes()) +
                     " that were declared"};
  if (sum_.Finish64() != xxh3)
    return Error{
        ErrorCode::kCorruption,
        "extent " + Hex(claim_.id()) + ": the bytes that arrived are not those of its checksum"};
  const ExtentTrailer trailer{claim_.id(), claim_.size_bytes(), xxh3};
  const ReadHealth::Running running(claim_.disk().reads());
  FFR_TRY(Noted(file_.Append(EncodeExtentTrailer(trailer))));
  auto published = Noted(file_.Publish());
  if (!published && published.error().code != ErrorCode::kConflict)
    return std::move(published).error();
  if (!published) FFR_TRY(Noted(CheckSealedByAnother(xxh3)));
  claim_.disk().writes().NoteSuccess();
  claim_.disk().RefreshSpace();
  return store_->Add(claim_.disk(), trailer, &claim_);
}

Result<void> ExtentWriter::CheckSealedByAnother(std::uint64_t xxh3) const {
  const fs::path path = claim_.disk().PathOf(claim_.id());
  const UniqueFd file = FFR_TRY(claim_.disk().OpenFile(claim_.id()));
  const auto trailer = ReadTrailer(file.get(), path);
  if (!trailer || trailer.value() != ExtentTrailer{claim_.id(), claim_.size_bytes(), xxh3})
    return Error{ErrorCode::kConflict,
                 "extent " + Hex(claim_.id()) +
                     (trailer ? " exists with other bytes"
                              : ": the daemon's disk has a file of that name that is not a valid "
                                "extent (" +
                                    trailer.error().message + ")") +
                     "; upload under a new id"};
  // Its writer may not have come as far as this.
  return SyncParentFolder(path);
}

// --- Claims --------------------------------------------------------------------------------------

WritingClaim::WritingClaim(ExtentStore& store, Disk& disk, const ExtentId& id,
                           std::uint64_t size_bytes)
    : store_(&store), disk_(&disk), id_(id), size_bytes_(size_bytes) {
  disk_->totals().declared_bytes += size_bytes_;
}

void WritingClaim::End() {
  if (store_ == nullptr) return;
  const std::lock_guard lock(store_->mutex_);
  EndLocked();
}

void WritingClaim::EndLocked() {
  disk_->totals().declared_bytes -= size_bytes_;
  const auto found = store_->writing_.find(id_);
  if (--found->second.count == 0) store_->writing_.erase(found);
  store_ = nullptr;
}

}  // namespace ffrecord::server
