#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord {

// A folder on a local disk that keeps blocks of files that are slow to reach, within a bound.
//
// Many processes may use one folder at once. A block is used only if it passes its checksum, which
// also covers the file and the place it belongs to: a block that is damaged, half written, of
// another version or gone is a miss, never an error. Nothing needs to survive a crash. Evicts the
// least recently used entries of 16 MiB first. When the disk is full, the cache keeps nothing new
// for a while.
//
// The bound holds for all processes together, plus at most one chunk (an eighth of the bound or
// less) for each. Thread-safe; a forked child may go on using it.
class BlockCache {
 public:
  static constexpr std::uint64_t kBlockBytes = 4096;
  static constexpr std::uint64_t kEntryBytes = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kSizeMin = std::uint64_t{64} << 20;
  // Where the blocks of an entry begin, in its file.
  static constexpr std::uint64_t kDataBegin =
      kBlockBytes + kEntryBytes / kBlockBytes * sizeof(std::uint64_t);

  // Makes the folder if there is none, for this user alone. Fails with kInvalidArgument if the
  // bound is below kSizeMin, with kIo if the folder cannot be made or written.
  static Result<std::shared_ptr<const BlockCache>> Open(const std::filesystem::path& folder,
                                                        std::uint64_t size_bytes_max);

  // One version of one file.
  struct File {
    Digest128 id;  // A digest of all that identifies the version.
    std::uint64_t size_bytes;
  };

  // A file of the folder, open.
  struct Entry {
    UniqueFd fd;
    std::uint64_t number = 0;
    std::uint64_t inode = 0;
    std::atomic<std::int64_t> touched_ms{0};
  };

  // Where to find blocks in the cache: read `size_bytes` at `offset_bytes` of the entry, then call
  // IsGood().
  struct Piece {
    std::shared_ptr<Entry> entry;  // Null: some of the blocks are missing.
    std::uint64_t offset_bytes = 0;
    std::vector<std::uint64_t> checks;  // One for each block.
  };
  // Requires a range of whole blocks, the file's last one perhaps cut, inside one entry.
  Piece Find(const File& file, std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  static bool IsGood(const File& file, std::uint64_t offset_bytes, const Piece& piece,
                     std::span<const std::byte> bytes);

  // Keeps the bytes, if that is possible now. Requires a range as Find(), but in any entries. Calls
  // `kept` for the part in each entry that was kept.
  using Kept = std::function<void(const std::shared_ptr<Entry>& entry, std::uint64_t offset_bytes,
                                  std::uint64_t size_bytes)>;
  void Keep(const File& file, std::uint64_t offset_bytes, std::span<const std::byte> bytes,
            const Kept& kept) const;

  // The file's entry of that number; null if there is none.
  std::shared_ptr<Entry> EntryAt(const File& file, std::uint64_t number) const {
    return EntryOf(file, number, false);
  }
  // The checks of the entry's blocks from `first_block` on; 0 for one that is not there. False if
  // they cannot be read.
  static bool ReadChecks(const Entry& entry, std::uint64_t first_block,
                         std::span<std::uint64_t> checks);
  // How many entries this object has removed to make room.
  std::uint64_t eviction_count() const noexcept { return evictions_.load(); }

  // Says that the entry of that number is in use. False if it is gone, or another one now.
  bool Touch(const File& file, std::uint64_t number, std::uint64_t inode) const;

 private:
  using EntryName = std::pair<Digest128, std::uint64_t>;
  struct OpenEntryOf {
    std::shared_ptr<Entry> entry;
    std::list<EntryName>::iterator place;
  };
  // The state of one process.
  struct Opened {
    std::mutex mutex;
    UniqueFd folder;
    std::map<EntryName, OpenEntryOf> entries;
    std::list<EntryName> by_use;  // The most recently used first.
    std::uint64_t reserved_bytes = 0;
    std::int64_t paused_until_ms = 0;  // Nothing is kept before this time.
  };

  BlockCache(std::filesystem::path folder, std::uint64_t size_bytes_max);
  Result<void> OpenFolder(Opened& opened) const;
  std::shared_ptr<Entry> EntryOf(const File& file, std::uint64_t number, bool make) const;
  UniqueFd OpenEntry(Opened& opened, const File& file, std::uint64_t number) const;
  UniqueFd MakeEntry(Opened& opened, const File& file, std::uint64_t number) const;
  void KeepInEntry(const File& file, std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                   const Kept& kept) const;
  bool Reserve(Opened& opened, std::uint64_t size_bytes) const;
  std::uint64_t Evict(int folder, std::uint64_t size_bytes_max) const;
  void Pause() const;

  const std::filesystem::path folder_;
  const std::uint64_t size_bytes_max_;
  const std::uint64_t chunk_bytes_;
  mutable std::atomic<std::uint64_t> evictions_{0};
  mutable PerProcess<Opened> opened_{[] { return new Opened; }};
};

}  // namespace ffrecord
