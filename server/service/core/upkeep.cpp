#include "server/service/core/upkeep.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server {
namespace {

constexpr const char* kScrubKey = "scrub";  // In the metadata: how far the scrubber has come.

}  // namespace

Result<void> Upkeep::Start() {
  FFR_TRY(StartScrubbers());
  FFR_TRY(StartDrains());
  AddChores();
  return {};
}

// The first one goes on where that of a daemon with one disk stood.
Result<void> Upkeep::StartScrubbers() {
  for (const auto& disk : parts_.extents->disks()) {
    const bool is_only =
        parts_.extents->disks().size() == 1 && parts_.extents->missing_disk_count() == 0;
    const std::string key = is_only ? kScrubKey : kScrubKey + ("/" + Hex(disk->id()));
    auto from = FFR_TRY(parts_.meta->Get(key));
    if (!from && disk == parts_.extents->disks().front())
      from = FFR_TRY(parts_.meta->Get(kScrubKey));
    scrubbers_.push_back(std::make_unique<Scrubber>(
        *parts_.extents, *disk, parts_.options.scrub,
        from ? Scrubber::Position::Decode(from->value) : Scrubber::Position{},
        [this, key](const Scrubber::Position& position) { SaveScrub(key, position); },
        [](const Extent& extent, const std::string& why_bad) {
          if (why_bad.empty())
            spdlog::info("event=extent_good extent={}", extent.disk->PathOf(extent.id).string());
          else
            spdlog::error("event=extent_bad error=\"{}\"", why_bad);
        }));
  }
  if (parts_.origins) StartCacheScrubbers();
  return {};
}

// Cached extents that are damaged are removed, and fetched again at the next read.
void Upkeep::StartCacheScrubbers() {
  for (const auto& disk : parts_.origins->store().disks())
    cache_scrubbers_.push_back(std::make_unique<Scrubber>(
        parts_.origins->store(), *disk, parts_.options.scrub, Scrubber::Position{},
        [](const Scrubber::Position&) {},
        [&cache = *parts_.origins](const Extent& extent, const std::string& why_bad) {
          if (why_bad.empty()) return;
          spdlog::warn("event=cached_extent_bad error=\"{}\"", why_bad);
          cache.Discard(extent);
        }));
}

// Not where it could take the room of a deletion: what is read twice then is no harm.
void Upkeep::SaveScrub(const std::string& key, const Scrubber::Position& position) {
  if (!parts_.home_disk->reserve().is_whole() || !parts_.home_disk->writes().CheckWritable())
    return;
  const auto saved = parts_.meta->TryCommit({{}, {{key, position.Encode()}}, {}});
  if (!saved) spdlog::warn("event=scrub_not_saved error=\"{}\"", saved.error().message);
}

Result<void> Upkeep::StartDrains() {
  const auto& wanted = parts_.options.disks.drained;
  std::vector<Disk*> disks;
  for (const DiskId& id : wanted) {
    const auto found = std::ranges::find(
        parts_.extents->disks(), id, [](const auto& disk) -> const DiskId& { return disk->id(); });
    if (found == parts_.extents->disks().end())
      return Error{ErrorCode::kConflict, "--drain-disk " + Hex(id) +
                                             ": no such disk of this daemon is there; the log "
                                             "names the ids of those that are (event=disk)"};
    disks.push_back(found->get());
  }
  if (disks.size() >= parts_.extents->disks().size())
    return disks.empty() ? Result<void>()
                         : Error{ErrorCode::kConflict,
                                 "--drain-disk: no disk is left that takes the extents; add one "
                                 "with --data"};
  for (Disk* const disk : disks) {
    spdlog::info("event=disk_draining id={} extents={}", Hex(disk->id()),
                 disk->totals().extent_count.load());
    drains_.push_back(std::make_unique<DiskDrain>(
        *parts_.extents, *disk, DiskDrain::Options{},
        DiskDrain::Told{[](const Extent& extent, const Error& why) {
                          spdlog::error("event=extent_not_moved extent={} error=\"{}\"",
                                        extent.disk->PathOf(extent.id).string(), why.message);
                        },
                        [](const Disk& drained) {
                          spdlog::info("event=disk_drained id={} data={}", Hex(drained.id()),
                                       drained.folder().parent_path().string());
                        }}));
  }
  return {};
}

// A disk that hangs keeps its own extents, and none of another disk.
void Upkeep::AddChores() {
  if (parts_.origins)
    AddChore(parts_.jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
      parts_.origins->Tend();
      return 0;
    });
  for (const auto& disk : parts_.extents->disks())
    AddChore(parts_.jobs->AddUpkeep(), [this, &disk = *disk]() -> Result<std::uint64_t> {
      LookForRoom(disk);
      if (parts_.cluster) return parts_.cluster->extents().Collect(&disk);
      return parts_.catalog->UnlinkOn(disk);
    });
  if (parts_.cluster)
    AddChore(parts_.jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
      return parts_.cluster->extents().Collect(nullptr);
    });
  AddChore(parts_.jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
    parts_.home_disk->Look();
    return 0;
  });
  if (!parts_.catalog) return;
  AddChore(parts_.jobs->upkeep(), [this]() -> Result<std::uint64_t> {
    FFR_TRY(parts_.catalog->GiveUpUploads(Clock::now()));
    return 0;
  });
  AddChore(parts_.jobs->AddUpkeep(), [this]() -> Result<std::uint64_t> {
    FFR_TRY(parts_.catalog->ForgetUnlinked());
    return 0;
  });
}

// A disk that was full may have room again, which others have made.
void Upkeep::LookForRoom(Disk& disk) {
  disk.RefreshSpace();
  if (disk.space().free_bytes >= kExtentSizeMax && &disk.writes() != &parts_.home_disk->writes())
    disk.writes().NoteSuccess();
}

// Also of a node, which keeps there what it knows of its cluster.
void Upkeep::LogWhetherMetadataAnswers() {
  const auto answers = parts_.home_disk->CheckAnswers();
  if (std::exchange(metadata_answers_, bool{answers}) == bool{answers}) return;
  if (answers)
    spdlog::info("event=metadata_answers");
  else
    spdlog::error("event=metadata_hangs error=\"{}\"", answers.error().message);
}

void Upkeep::Tick() {
  LogWhetherMetadataAnswers();
  for (const auto& chore : chores_) {
    // One at a time: the disk may be slower than the clock.
    if (chore->is_running.exchange(true)) continue;
    parts_.jobs->Post(chore->strand, [&chore = *chore] {
      const auto unlinked = chore.work();
      if (!unlinked)
        spdlog::error("event=collect_failed error=\"{}\"", unlinked.error().message);
      else if (unlinked.value() > 0)
        spdlog::info("event=collected extents={}", unlinked.value());
      chore.is_running = false;
    });
  }
}

void Upkeep::AddChore(JobPool::Strand& strand, std::function<Result<std::uint64_t>()> work) {
  chores_.push_back(std::make_unique<Chore>(strand, std::move(work)));
}

}  // namespace ffrecord::server
