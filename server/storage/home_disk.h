#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/storage/disk.h"
#include "server/storage/disk_reserve.h"
#include "server/storage/read_health.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

// The disk of a daemon's metadata, in a cluster or not: whether it takes what is written, what of
// it is kept for deletions, and how long it has not answered. Thread-safe.
class HomeDisk {
 public:
  struct Options {
    std::filesystem::path folder;
    std::uint64_t reserve_bytes = 0;
    // Whether the reserve is given to writes that make room; until it is whole again, nothing else
    // is written. Otherwise the reserve stays where it is.
    bool yields_to_deletions = true;
    // A write that takes longer: the disk hangs, see CheckAnswers().
    std::chrono::milliseconds answer_time_max{10'000};
  };
  explicit HomeDisk(Options options)
      : options_(std::move(options)),
        reserve_(options_.folder / "reserve", options_.reserve_bytes) {}
  HomeDisk(const HomeDisk&) = delete;
  HomeDisk& operator=(const HomeDisk&) = delete;

  // It holds extents too, in `disk`, which outlives this: what is found of one holds for both. Not
  // beside other calls.
  void BeOneWith(Disk& disk) noexcept {
    writes_ = &disk.writes();
    reads_ = &disk.reads();
  }
  bool is_apart() const noexcept { return writes_ == &own_writes_; }

  const std::filesystem::path& folder() const noexcept { return options_.folder; }
  WriteHealth& writes() noexcept { return *writes_; }
  const WriteHealth& writes() const noexcept { return *writes_; }
  DiskReserve& reserve() noexcept { return reserve_; }

  // Fails with kIo (ENOSPC) while the reserve is in use: what is left belongs to deletions.
  Result<void> CheckReserve();

  // The result of `write`, which writes to the disk and waits for it. If it fails for lack of room
  // and `makes_room`, it has the reserve and is called again; it must have written nothing then.
  // Fails also as CheckReserve(), unless it makes room, and with kIo once the disk has failed. One
  // call at a time.
  template <class Write>
  auto Run(bool makes_room, const Write& write) -> decltype(write()) {
    FFR_TRY(writes().CheckWritable());
    if (!makes_room) FFR_TRY(CheckReserve());
    const Waiting waiting(*this);
    auto written = write();
    if (!written && makes_room && MakeRoom(written.error())) written = write();
    return writes().Noted(std::move(written));
  }

  // Looks at the disk, and waits for its answer: takes the reserve back where there is room again,
  // which others may have made. To be called now and then.
  void Look();

  // That it answers. Fails with kUnavailable, naming it, while a write waits longer than
  // answer_time_max: another one would wait behind it. A write that waits goes on, and takes effect
  // when the disk answers. Waits for nobody.
  Result<void> CheckAnswers() const;
  // How long it has been waited for; 0 if it is not.
  Clock::duration waiting_time() const;

 private:
  // A write that waits for the disk.
  class Waiting {
   public:
    explicit Waiting(HomeDisk& home);
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting();

   private:
    HomeDisk& home_;
    const ReadHealth::Running running_;
  };
  static constexpr auto kNever = Clock::time_point::max();

  bool MakeRoom(const Error& error);

  const Options options_;
  DiskReserve reserve_;
  WriteHealth own_writes_;
  ReadHealth own_reads_;
  WriteHealth* writes_ = &own_writes_;
  ReadHealth* reads_ = &own_reads_;
  std::atomic<Clock::time_point> waiting_since_{kNever};
};

}  // namespace ffrecord::server
