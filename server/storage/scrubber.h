#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/clock.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Reads all extents of a disk again and again, slowly, and marks those whose bytes are no longer
// those of their checksum, whose trailer is not theirs, or that cannot be read. Nothing is changed
// on the disk.
//
// A pass reads what is there when it begins, or goes on, in order of the ids, as fast as it must to
// be through in its period, and the next one begins when the period is over. Where it stands is
// saved, with what is bad: a daemon that is started again goes on there.
//
// Owns a thread of low priority; reads past the page cache where the file system allows it.
class Scrubber {
 public:
  // By the wall clock, since a pass outlives the daemon.
  using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

  struct Options {
    std::chrono::milliseconds period{0};  // In which all is read; 0: does nothing.
    // Though less would do: what is little is read soon.
    std::uint64_t bytes_per_s_min = std::uint64_t{1} << 20;
    std::chrono::milliseconds save_interval = std::chrono::minutes(1);
  };

  // How far a pass has come.
  struct Position {
    WallTime pass_begin{};  // Begin of this pass, or of the last one. 1970: there was none.
    WallTime last_end{};    // When the last whole pass ended. 1970: none has.
    bool is_under_way = false;
    ExtentId after{};           // Those up to here have been read.
    std::vector<ExtentId> bad;  // Found bad, in this pass or before.

    bool operator==(const Position&) const = default;
    std::vector<std::byte> Encode() const;
    // The beginning if `bytes` are no position.
    static Position Decode(std::span<const std::byte> bytes);
  };

  // Called on the scrubber's thread when an extent is found bad, or good again.
  using Found = std::function<void(const Extent& extent, const std::string& why_bad)>;
  // Called on the scrubber's thread now and then, when a pass begins or ends, and at the end.
  using Save = std::function<void(const Position&)>;

  // The store and its disk outlive it; what `from` says is bad is marked in the store.
  Scrubber(ExtentStore& extents, const Disk& disk, const Options& options, const Position& from,
           Save save, Found found);
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;
  ~Scrubber();  // Ends the pass where it stands.

  std::uint64_t read_bytes() const noexcept { return read_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t pass_count() const noexcept { return pass_count_.load(std::memory_order_relaxed); }
  // At which it reads now.
  std::uint64_t bytes_per_s() const noexcept {
    return bytes_per_s_.load(std::memory_order_relaxed);
  }
  // Since the last whole pass ended; before the first has, since that began.
  std::chrono::seconds age() const noexcept;

 private:
  void Run();
  // False: it is to end.
  bool AwaitPass();
  bool Pass();
  std::vector<ExtentId> Left() const;  // Extents that this pass has left, in their order.
  void SetRate(std::span<const ExtentId> left);
  void SavePosition();
  void Judge(const Extent& extent, const std::string& why_bad);
  // Reads it, twice if it seems bad, for what fails but once is not the disk's.
  void Check(const Extent& extent);
  // Why the extent is bad; empty: it is not. None: that is not known, and it is to be left alone.
  std::optional<std::string> Examine(const Extent& extent);
  Result<std::uint64_t> Sum(const Extent& extent);
  bool Sleep(Clock::time_point until);  // False: it is to end.
  bool IsEnding();

  ExtentStore& extents_;
  const Disk& disk_;
  const Options options_;
  const Save save_;
  const Found found_;
  Position position_;  // The thread's.
  Clock::time_point saved_;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> pass_count_{0};
  std::atomic<std::uint64_t> bytes_per_s_{0};
  std::atomic<WallTime> age_begin_;
  Clock::time_point due_;  // When the next piece may be read.
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;  // Last: it uses all the others.
};

}  // namespace ffrecord::server
