#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/fingerprint.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"

namespace ffrecord {

// The output of a stream: bytes are only appended. After a failure every later call returns the
// same error.
class V2Output {
 public:
  virtual ~V2Output() = default;

  virtual Result<void> Append(std::span<const std::byte> bytes) = 0;
  virtual Result<void> AppendZeros(std::uint64_t count_bytes) = 0;
  // The size of the file, where the next byte goes.
  virtual std::uint64_t size_bytes() const noexcept = 0;

  // Bytes appended before it become durable before any that are appended later.
  virtual Result<void> Barrier() = 0;
  // Makes all appended bytes durable, and visible under the file's name.
  virtual Result<void> Commit() = 0;
  // Takes back what was appended from `size_bytes` on, which is not below the last Commit().
  virtual Result<void> CutTo(std::uint64_t size_bytes) = 0;
};

// The newest commit of a file, which a stream continues.
struct V2Resume {
  V2Footer footer;
  std::vector<std::uint64_t> segment_offsets;
  // The pages of the last segment if it is not full, else empty.
  std::vector<std::byte> last_pages;
};

// Makes the structures of a version 2 file (format.md) out of records, and keeps what the
// footer will state: totals, fingerprint, sections, the place of each index segment.
//
// Memory: the pages of one segment (1 MiB), 8 bytes for each segment written (43,520 records).
// Borrows the output, which outlives it. Failures of the output are passed on; after one only the
// output may be destroyed. Thread-bound.
class V2Stream {
 public:
  // A new file; `schema_section` is empty if there is none. Call WriteFront() first.
  V2Stream(V2Output& output, const V2Header& header, std::span<const std::byte> schema_section);
  // Continues behind a commit; the output is at its end.
  V2Stream(V2Output& output, const V2Header& header, V2Resume resume);

  // The header and, if there is one, the schema section. Dictionaries may follow at once.
  Result<void> WriteFront(std::span<const std::byte> schema_section);

  // Where the payload of the next record would begin.
  std::uint64_t next_payload_offset_bytes() const noexcept;

  // One record whose stored bytes are `raw` or its zstd frame. Requires what format.md
  // requires of both, and !segment_is_full().
  Result<void> AddRecord(std::span<const std::byte> raw, std::span<const std::byte> stored);

  // One record whose stored bytes are in the file already, at that offset: in the hole of an index
  // in place. Requires !segment_is_full().
  void AddRecordAt(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                   std::span<const std::byte> stored);

  // The number of records that are in no written segment yet, and whether they fill one: then call
  // EndSegment() before the next record.
  std::uint64_t pending_count() const noexcept { return pending_count_; }
  bool segment_is_full() const noexcept;
  // Number of the segment that the newest record belongs to. Requires a record.
  std::uint64_t segment_number() const noexcept;
  // Writes the segment of the newest records; it replaces an older one that was not full. Requires
  // pending_count() > 0.
  Result<void> EndSegment();

  // Appends zeros up to the next multiple of `alignment_bytes`, a power of two, and returns that
  // offset: for structures that contain their own offset.
  Result<std::uint64_t> AlignTo(std::uint64_t alignment_bytes);
  // Appends `bytes` at the next multiple of `alignment_bytes`, a power of two, and returns their
  // offset. For structures between the records that a section lists: key blocks and runs, column
  // chunks.
  Result<std::uint64_t> AppendStructure(std::span<const std::byte> bytes,
                                        std::uint64_t alignment_bytes);

  // A section behind its header, listed in every footer from here on. Fails with kInvalidArgument
  // if there are too many.
  Result<void> AddSection(std::uint32_t type, std::span<const std::byte> bytes);
  // Removes the sections of that type from the list, because a new one replaces them.
  void ForgetSections(std::uint32_t type) noexcept;

  // Marks this place between two records, to which ReturnToMark() takes the stream and its output
  // back, until ForgetMark(). Commit() may not be called meanwhile.
  void SetMark();
  Result<void> ReturnToMark();
  void ForgetMark() noexcept { mark_.reset(); }
  bool has_mark() const noexcept { return mark_.has_value(); }
  // Commits once more what the last commit had, so that readers find a commit near the end of the
  // file however much follows it. Requires a commit.
  Result<void> CommitAgain();

  // The rest of a commit: the last segment, the segment directory, footer and tail; all of it
  // durable. May be followed by more records if the output can go on.
  Result<void> Commit();

  const V2Header& header() const noexcept { return header_; }
  // Record count, sizes, fingerprint and sections as the next footer will state them.
  const V2Footer& totals() const noexcept { return totals_; }
  std::span<const std::uint64_t> segment_offsets() const noexcept { return segment_offsets_; }

 private:
  // A footer's statement of the stream at some moment.
  struct Snapshot {
    V2Footer totals;
    std::uint64_t segment_count = 0;  // The last of them may be replaced later.
    std::uint64_t last_segment_offset = 0;
  };
  struct Mark {
    Snapshot snapshot;
    std::uint64_t size_bytes = 0;  // Size of the output.
    std::uint64_t pending_count = 0;
    std::vector<std::byte> pages = {};  // If the segment of the mark has ended.
  };

  std::uint64_t entries_per_segment() const noexcept {
    return kIndexEntriesPerPage * header_.pages_per_segment;
  }
  RecordLocation LocationOf(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                            std::span<const std::byte> stored) const;
  void Note(const RecordLocation& location, std::span<const std::byte> raw);
  Result<void> AppendListed(std::uint32_t type, std::span<const std::byte> bytes,
                            std::uint64_t check);
  // The segment directory, footer and tail of a commit with these totals; all of it durable.
  Result<void> EndCommit(V2Footer& totals, std::span<const std::uint64_t> segment_offsets);
  Result<void> AppendFooterAndTail(const V2Footer& totals);
  Snapshot TakeSnapshot() const;
  std::vector<std::uint64_t> SegmentOffsetsOf(const Snapshot& snapshot) const;

  V2Output* output_;
  V2Header header_;
  FingerprintChain fingerprint_;
  V2Footer totals_;
  std::vector<std::byte> pages_;  // Pages of the segment to come, zero behind the last entry.
  std::vector<std::uint64_t> segment_offsets_;
  std::uint64_t pending_count_ = 0;
  std::optional<Mark> mark_;
  std::optional<Snapshot> committed_;
};

}  // namespace ffrecord
