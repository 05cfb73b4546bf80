#include "server/storage/disk_drain.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kPieceSizeBytes = std::uint64_t{1} << 20;

}  // namespace

DiskDrain::DiskDrain(ExtentStore& extents, Disk& disk, const Options& options, Told told)
    : extents_(extents),
      disk_(disk),
      options_(options),
      told_(std::move(told)),
      due_(Clock::now()) {
  disk_.set_drain(Disk::Drain::kDraining);
  thread_ = std::thread([this] { Run(); });
}

DiskDrain::~DiskDrain() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_one();
  thread_.join();
}

bool DiskDrain::Sleep(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  while (!is_ending_ && Clock::now() < until) WaitUntil(ending_, lock, until);
  return !is_ending_;
}

void DiskDrain::Run() {
  auto next_try = Clock::now();
  do {
    if (disk_.totals().extent_count > 0 && Clock::now() >= next_try) {
      MoveAll();
      next_try = Clock::now() + options_.try_again;
    }
    RemoveMoved();
    const bool is_empty = disk_.totals().extent_count == 0 && moved_.empty();
    if (is_empty && disk_.drain() != Disk::Drain::kDrained) {
      disk_.set_drain(Disk::Drain::kDrained);
      told_.drained(disk_);
    }
  } while (Sleep(Clock::now() + options_.look_again));
}

void DiskDrain::MoveAll() {
  std::vector<ExtentId> ids;  // Not the extents: those that are held cannot be unlinked.
  for (const auto& extent : extents_.FindAll([&](const Extent& one) { return one.disk == &disk_; }))
    ids.push_back(extent->id);
  std::ranges::sort(ids);
  for (const ExtentId& id : ids) {
    if (!Sleep(due_)) return;
    ExtentPtr extent = extents_.Find(id);
    if (!extent || extent->disk != &disk_) continue;
    const auto moved = Move(extent);
    if (moved) {
      moved_.push_back(std::move(extent));
      RemoveMoved();
      continue;
    }
    if (!Sleep(Clock::now())) return;
    // It was deleted meanwhile, or is being uploaded again.
    if (moved.error().code == ErrorCode::kConflict) continue;
    told_.not_moved(*extent, moved.error());
  }
}

Result<void> DiskDrain::Move(const ExtentPtr& extent) {
  if (FFR_TRY(extents_.MoveToCopy(extent))) return {};
  auto writer = FFR_TRY(extents_.BeginMove(*extent));
  FFR_TRY(Copy(*extent, writer));
  return extents_.EndMove(extent, writer);
}

Result<void> DiskDrain::Copy(const Extent& extent, ExtentWriter& writer) {
  const UniqueFd file = FFR_TRY(disk_.OpenFile(extent.id));
  std::vector<std::byte> piece(std::min(kPieceSizeBytes, extent.size_bytes));
  for (std::uint64_t at = 0; at < extent.size_bytes; at += piece.size()) {
    if (!Sleep(due_)) return Error{ErrorCode::kUnavailable, "the daemon stops"};
    piece.resize(std::min(kPieceSizeBytes, extent.size_bytes - at));
    FFR_TRY(ReadExactly(file.get(), disk_.PathOf(extent.id), at, piece));
    FFR_TRY(writer.Append(piece));
    // Time that was not used for a while is not made up for.
    const auto cost = std::chrono::nanoseconds(piece.size() * 1'000'000'000 / options_.bytes_per_s);
    due_ = std::max(due_, Clock::now() - std::chrono::seconds(1)) + cost;
  }
  return {};
}

void DiskDrain::RemoveMoved() {
  std::erase_if(moved_, [this](const ExtentPtr& old) {
    // Ours is the last: nobody reads it, and it can no longer be found.
    if (old.use_count() > 1 || !disk_.writes().CheckWritable()) return false;
    const auto removed = extents_.RemoveMoved(*old);
    if (!removed) told_.not_moved(*old, removed.error());
    return static_cast<bool>(removed);
  });
}

}  // namespace ffrecord::server
