#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "server/service/core/server_parts.h"
#include "server/service/jobs/job_pool.h"
#include "server/storage/disk.h"
#include "server/storage/disk_drain.h"
#include "server/storage/scrubber.h"

namespace ffrecord::server {

// The work of a daemon for its disks that nobody asks for: scrubs them, drains those that are to be
// taken out, and unlinks what was deleted or given up.
//
// Start() belongs to the server's thread, Tick() to the acceptor's; scrubbers() is thread-safe
// after Start(). Owns the threads of scrubbers and drains; all other work runs in strands of the
// job pool, which is to end before this does.
class Upkeep {
 public:
  // `parts` outlives this, and is complete when Start() is called.
  explicit Upkeep(ServerParts& parts) : parts_(parts) {}
  Upkeep(const Upkeep&) = delete;
  Upkeep& operator=(const Upkeep&) = delete;

  // Fails as the store of the metadata, and with kConflict if the disks to be drained are not
  // there, or are all that there are.
  Result<void> Start();
  // Has the work done that is not running already.
  void Tick();

  std::span<const std::unique_ptr<Scrubber>> scrubbers() const noexcept { return scrubbers_; }

 private:
  // Work that is done now and then, each in its own strand.
  struct Chore {
    Chore(JobPool::Strand& in, std::function<Result<std::uint64_t>()> what)
        : strand(in), work(std::move(what)) {}
    JobPool::Strand& strand;
    const std::function<Result<std::uint64_t>()> work;  // Returns how much was unlinked.
    std::atomic<bool> is_running{false};
  };

  Result<void> StartScrubbers();
  void StartCacheScrubbers();
  void SaveScrub(const std::string& key, const Scrubber::Position& position);
  Result<void> StartDrains();
  void AddChores();
  void AddChore(JobPool::Strand& strand, std::function<Result<std::uint64_t>()> work);
  void LookForRoom(Disk& disk);
  void LogWhetherMetadataAnswers();

  ServerParts& parts_;
  std::vector<std::unique_ptr<Scrubber>> scrubbers_;        // One for each disk.
  std::vector<std::unique_ptr<Scrubber>> cache_scrubbers_;  // For data fetched from origins.
  std::vector<std::unique_ptr<DiskDrain>> drains_;
  std::vector<std::unique_ptr<Chore>> chores_;
  bool metadata_answers_ = true;  // As the log says.
};

}  // namespace ffrecord::server
