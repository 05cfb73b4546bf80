#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/shared_work.h"
#include "libffrecord/record/read/batch_block.h"
#include "libffrecord/record/read/batch_plan.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

class FileCopies;  // file_copies.h

// One batch on its way: plans the ranges to read, and checks and decompresses records as the ranges
// arrive. Its owner reads the ranges.
//
// Thread-bound; long work stops when its thread's patience is over.
class BatchRead {
 public:
  struct Progress {  // Progress of one planned read.
    std::uint32_t pieces_left = 0;
    ErrorCode status = ErrorCode::kOk;
  };

  // Memory that one batch leaves to the next, so that none is allocated for each record.
  struct Workspace {
    bool Recycle() const noexcept {
      constexpr std::size_t kKeptRecordsMax = std::size_t{1} << 16;
      return plan.wishes.capacity() <= kKeptRecordsMax;
    }

    BatchPlan plan;
    std::vector<RangeRead> ranges;
    std::vector<std::uint32_t> range_reads;  // For each range, the read that it is a piece of.
    std::vector<Progress> progress;          // For each read.
    std::vector<std::uint32_t> waiting;      // Records that are to be decompressed by workers,
    std::vector<std::uint32_t> piece_ends;   // cut into pieces.
  };

  // Borrows both.
  BatchRead(const RecordReader::Impl& reader, Workspace& workspace);

  // Plans the batch, takes its memory and sets ranges(). Records that need what is among `failures`
  // have that status. Requires every index to be below the record count. Fails as PlanBatch, and
  // with kIo (ENOMEM).
  Result<void> Plan(std::span<const std::uint64_t> indices, const IndexFailures& failures);

  // The ranges to read, for one ReadEach or one RangeGroup.
  std::span<RangeRead> ranges() noexcept { return ranges_; }
  // Call it as RangeReader::Arrived.
  void Arrived(RangeRead& range);

  // Its memory.
  std::uint64_t size_bytes() const noexcept {
    return block_.data.size() + (scratch_ ? scratch_->size() : 0);
  }

  // The stage that the time of Arrived() and Finish() belongs to.
  StageSums::Sum& check_stage() const noexcept {
    return plan_.decompressed_size_bytes > 0 ? reader_.stages.decompress : reader_.stages.verify;
  }

  // The batch, once all ranges have arrived. If a merged read failed, reads its records again one
  // by one, and damaged records from other copies of their file; blocks meanwhile. Fails with
  // kDeadlineExceeded once the thread's patience is over, and as RangeReader::Read.
  Result<Batch> Finish();

 private:
  void AskForHelp();
  void Postpone(std::size_t record);
  void EndPiece();
  void FinishPieces();
  void DecompressPiece(std::size_t piece, std::uint32_t slot);
  std::span<std::byte> StoredOf(const PlannedRecord& record) const;
  std::span<std::byte> BufferOf(const PlannedRead& read) const;
  void PlanRanges();
  void FinishRecord(PlannedRecord& record, std::span<const std::byte> stored);
  void FormRecord(PlannedRecord& record);
  Result<void> ReadAgain();
  Result<void> ReadAlone(PlannedRecord& record);
  Result<void> ReadFromCopies(const FileCopies& copies, PlannedRecord& record);
  void Replace(PlannedRecord& record, std::span<const std::byte> stored);
  void FillTables() const;

  const RecordReader::Impl& reader_;
  std::atomic<bool> is_given_up_{false};
  BatchPlan& plan_;
  std::vector<RangeRead>& ranges_;
  std::vector<std::uint32_t>& range_reads_;
  std::vector<Progress>& progress_;
  std::vector<std::uint32_t>& waiting_;
  std::vector<std::uint32_t>& piece_ends_;
  std::uint32_t waiting_count_ = 0;
  std::uint32_t piece_count_ = 0;
  std::uint64_t piece_bytes_ = 0;  // Bytes of the piece that is being made.
  BatchBlock block_;
  PooledBuffer scratch_;
  std::optional<SharedWork> workers_;  // Ends before what it works on.
};

}  // namespace ffrecord
