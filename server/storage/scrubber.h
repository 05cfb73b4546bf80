#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Reads all extents again and again, slowly, and marks those whose bytes are no longer those of
// their checksum, whose trailer is not theirs, or that cannot be read. Nothing is changed on the
// disk.
//
// Owns a thread of low priority; reads past the page cache where the file system allows it.
class Scrubber {
 public:
  struct Options {
    std::uint64_t bytes_per_s = 0;                                // 0: does nothing.
    std::chrono::milliseconds interval = std::chrono::hours(24);  // From pass to pass at the least.
  };
  // Called on the scrubber's thread when an extent is found bad, or good again.
  using Found = std::function<void(const Extent& extent, const std::string& why_bad)>;

  // The store outlives it.
  Scrubber(ExtentStore& extents, const Options& options, Found found);
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;
  ~Scrubber();  // Ends the pass where it stands.

  std::uint64_t read_bytes() const noexcept { return read_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t pass_count() const noexcept { return pass_count_.load(std::memory_order_relaxed); }
  // Since the last whole pass ended, or since the start.
  std::chrono::seconds age() const noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  void Run();
  void Pass();
  // Why the extent is bad; empty: it is not, or it is to be left alone.
  std::string Examine(const Extent& extent);
  Result<std::uint64_t> Sum(const Extent& extent);
  bool Sleep(Clock::time_point until);  // False: it is to end.
  bool IsEnding();

  ExtentStore& extents_;
  const Options options_;
  const Found found_;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> pass_count_{0};
  std::atomic<Clock::rep> last_end_;
  Clock::time_point due_;  // When the next piece may be read.
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;  // Last: it uses all the others.
};

}  // namespace ffrecord::server
