#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_keys.h"
#include "libffrecord/io/scratch_file.h"
#include "libffrecord/record/write/v2_stream.h"

namespace ffrecord {

// Writes the keys of records: blocks of them between the records, and before each commit a run in
// which they are found.
//
// Memory: 24 bytes for each key since the last commit, at most 24 MiB. Further keys are sorted into
// a scratch file and merged from there (up to 24 KiB for each million keys). Each commit merges its
// keys with the older runs that are less than twice as large, up to 2^24 entries, so that commits
// stay near each other. A commit that would need a 65th run fails. Thread-bound.
class KeyWriter {
 public:
  // Reads bytes of the file below its last commit.
  using ReadAt = std::function<Result<void>(std::uint64_t offset_bytes, std::span<std::byte>)>;
  using Hash = std::uint64_t (*)(const FileId& id, std::span<const std::byte> key) noexcept;

  struct Options {
    std::filesystem::path path;         // The record file; scratch files are made beside it.
    std::vector<KeyRun> runs = {};      // Runs of the commit that the append continues.
    ReadAt read_at = nullptr;           // Required if there will be more than one commit.
    std::size_t pending_max = 1 << 20;  // Other values are for tests, as is another hash.
    Hash hash = &KeyHash;
  };
  explicit KeyWriter(Options options);

  // Adds the key of a record that `stream` has. Requires 1 <= key.size() <= kKeySizeBytesMax. Keys
  // come in the order of their records, or a new block is begun. Fails as the stream, or with kIo
  // if the scratch file fails.
  Result<void> Add(std::uint64_t record_index, std::span<const std::byte> key, V2Stream& stream);

  // Writes the keys that are not yet in `stream`, and the key directory. Call it before each
  // commit.
  Result<void> Finish(V2Stream& stream);

  // As those of V2Stream. Requires that Finish() is not called between.
  void SetMark();
  void ReturnToMark();
  void ForgetMark() noexcept { mark_.reset(); }

 private:
  struct Mark {
    std::size_t pending_count = 0;
    std::size_t block_size_bytes = 0;
    std::uint32_t block_key_count = 0;
    std::uint64_t block_last_index = 0;
    std::size_t spill_count = 0;
    // Once the block of the mark was written, what it held; and once the entries were spilled, all
    // of them.
    std::optional<std::vector<std::byte>> block = {};
    std::vector<KeyEntry> block_entries = {};
    std::optional<std::vector<KeyEntry>> pending = {};
  };

  void SaveBlockOfMark();
  void SavePendingOfMark();
  Result<void> WriteBlock(V2Stream& stream);
  Result<void> Spill();
  // Takes the runs to be merged with `entry_count` new entries off the list.
  std::vector<KeyRun> TakeSmallRuns(std::uint64_t entry_count);

  const std::filesystem::path path_;
  const ReadAt read_at_;
  const std::size_t pending_max_;
  const Hash hash_;
  std::vector<KeyRun> runs_;
  std::vector<std::byte> block_;  // Contents of the block to come.
  std::uint32_t block_key_count_ = 0;
  std::uint64_t block_last_index_ = 0;
  std::vector<KeyEntry> pending_;  // The last block_key_count_ of them have offsets in block_.
  std::optional<ScratchFile> scratch_;
  std::vector<std::uint64_t> spill_counts_;  // Entries of each sorted part of it.
  std::optional<Mark> mark_;
};

}  // namespace ffrecord
