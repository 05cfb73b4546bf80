#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_keys.h"
#include "libffrecord/record/write/record_writer_impl.h"
#include "libffrecord/source/file_window.h"

namespace ffrecord {

// Brings the keys of a damaged file to the new one that is made of its records.
//
// They come out of their blocks while the file is scanned; from a damaged block it takes each key
// whose bytes still have the hash that a page of a run states. Memory: 16 bytes for each block and
// for each gap between the records that are kept, 24 for each key of a damaged block. Borrows the
// window. Thread-bound.
class KeyRecovery {
 public:
  KeyRecovery(FileWindow& window, std::uint64_t file_size_bytes, const FileId& id)
      : window_(window), file_size_bytes_(file_size_bytes), id_(id) {}

  // Record `old_index` became the record `new_index`; both ascend from call to call.
  void NoteKept(std::uint64_t old_index, std::uint64_t new_index);

  // Writes the keys of the block that begins there, for the records that were noted; returns where
  // it ends, or nothing unless a whole block begins there. Fails as the writer.
  Result<std::optional<std::uint64_t>> TakeBlock(std::uint64_t header_offset_bytes,
                                                 RecordWriter::Impl& writer);
  // Looks through the whole file for pages of runs, and writes what they have of other keys. To be
  // called when all blocks were. Fails as the writer.
  Result<void> TakeFromRuns(RecordWriter::Impl& writer);

  std::uint64_t written_count() const noexcept { return written_count_; }
  // Keys that were found, those of records that are not kept included.
  std::uint64_t found_count() const noexcept { return found_count_; }
  // Keys of records that are kept, which runs list and whose bytes are damaged.
  std::uint64_t damaged_count() const noexcept { return damaged_count_; }

 private:
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  std::optional<std::uint64_t> NewIndexOf(std::uint64_t old_index) const;
  bool LiesInWholeBlock(const KeyEntry& entry) const;
  void CollectFromPage(std::span<const std::byte> page, std::uint64_t offset_bytes,
                       std::vector<KeyEntry>& entries) const;
  // True if the bytes are those of the key.
  Result<bool> TakeEntry(const KeyEntry& entry, RecordWriter::Impl& writer);

  FileWindow& window_;
  const std::uint64_t file_size_bytes_;
  const FileId id_;
  std::vector<Range> kept_;             // Old indices, ascending.
  std::vector<std::uint64_t> kept_as_;  // The new index of the first of each range.
  std::vector<Range> blocks_;           // Contents of whole blocks, ascending.
  std::uint64_t written_count_ = 0;
  std::uint64_t found_count_ = 0;
  std::uint64_t damaged_count_ = 0;
  std::optional<std::uint64_t> last_index_;  // New, of the last key taken from a block.
};

}  // namespace ffrecord
