#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_record.h"
#include "libffrecord/record/read/index_fetches.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// One record of a batch; the same index twice is one record.
struct PlannedRecord {
  static constexpr std::uint32_t kNoRead = std::numeric_limits<std::uint32_t>::max();

  std::uint64_t index = 0;  // In its file.
  std::uint32_t file = 0;
  ErrorCode status = ErrorCode::kOk;
  // Its raw bytes have room of their own: they are decompressed from the stored ones. All others
  // are read where they will be, and a sample of a file of another kind is formed there.
  bool has_own_room = false;
  std::uint32_t read = kNoRead;  // The read of its stored bytes; none if it is empty or bad.
  RecordLocation location;
  std::uint64_t arena_begin_bytes = 0;  // Where its raw bytes will be.
};

// One read of a file, widened to the file's alignment.
struct PlannedRead {
  std::uint32_t file = 0;
  bool into_scratch = false;  // All its records have room of their own: the bytes are not kept.
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
  std::uint64_t buffer_begin_bytes = 0;  // In the arena, or in the scratch memory.
  std::size_t first_record = 0;          // Its records lie in [first_record, end_record), among
  std::size_t end_record = 0;            // others that need no read.

  std::uint64_t size_bytes() const noexcept { return end_bytes - begin_bytes; }
};

// The reads of a batch, and where each byte goes: records sorted by file and offset, neighbours
// read together, nothing read twice. The arena holds the reads that bring raw records and samples,
// then the records that are decompressed from scratch memory or from the arena itself.
struct BatchPlan {
  struct Wish {
    std::uint64_t index;
    std::uint64_t position;  // In the request.
  };

  std::vector<Wish> wishes;   // Sorted by index.
  std::vector<Wish> sorting;  // Memory that sorting needs.
  std::vector<PlannedRecord> records;
  std::vector<PlannedRead> reads;
  std::uint64_t arena_size_bytes = 0;
  std::uint64_t scratch_size_bytes = 0;
  std::uint64_t decompressed_size_bytes = 0;  // Bytes of the arena that decompression fills.
};

// Fills `plan` and reuses its memory. Touches index pages, but reads no record. Fails with kIo
// (ENOMEM) if the batch cannot fit in memory, with kDeadlineExceeded once `patience` is over.
// Records that need what is among `failures` have that status. Requires every index to be below the
// record count.
Result<void> PlanBatch(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                       const IndexFailures& failures, BatchPlan& plan, Patience& patience);

}  // namespace ffrecord
