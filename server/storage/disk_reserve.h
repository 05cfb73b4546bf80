#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <mutex>

namespace ffrecord::server {

// Room on the disk that is taken by a file of nothing, so that a disk that is full can still be
// emptied: to delete is to write a record first. While the reserve is out, its owner lets only
// deletions write.
//
// Sizes are bytes. Thread-safe. A reserve that was out when the daemon ended is out when it starts.
class DiskReserve {
 public:
  // Reserves `size_bytes`, but at most a 64th of a small disk, in the file `path`. Made whole at
  // once if the disk has room.
  DiskReserve(std::filesystem::path path, std::uint64_t size_bytes);
  DiskReserve(const DiskReserve&) = delete;
  DiskReserve& operator=(const DiskReserve&) = delete;

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  bool is_whole() const noexcept { return is_whole_.load(std::memory_order_acquire); }

  // Why it could not be taken: ENOSPC as well where it was given away.
  int missing_errno() const noexcept { return missing_errno_.load(std::memory_order_acquire); }
  const std::filesystem::path& path() const noexcept { return path_; }

  // Gives the room to the disk. False if it was out already.
  bool Release();
  // Takes it back where `free_bytes` are free and leave at least as much to others.
  void Restore(std::uint64_t free_bytes);

 private:
  // Notes whether it could, or why not.
  void Take();
  int TryTake() const;  // 0 or an errno.

  const std::filesystem::path path_;
  const std::uint64_t size_bytes_;
  std::mutex mutex_;  // Guards changes.
  std::atomic<int> missing_errno_{ENOSPC};
  std::atomic<bool> is_whole_{false};
};

}  // namespace ffrecord::server
