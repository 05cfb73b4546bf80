#include "libffrecord/record/read/read_batch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/align.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/shared_work.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/record/read/batch_block.h"
#include "libffrecord/record/read/batch_plan.h"
#include "libffrecord/record/read/decompression.h"
#include "libffrecord/record/read/resident_batch.h"

namespace ffrecord {
namespace {

struct Progress {  // Of one planned read.
  std::uint32_t pieces_left = 0;
  ErrorCode status = ErrorCode::kOk;
};

// Memory that one batch leaves to the next of its thread, so that none is allocated for each
// record.
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

// One batch on its way: reads what the plan says, checks and decompresses records as they arrive.
class BatchExecution {
 public:
  BatchExecution(const RecordReader::Impl& reader, Workspace& workspace, std::span<std::byte> arena,
                 std::span<std::byte> scratch, Patience& patience)
      : reader_(reader),
        patience_(patience),
        plan_(workspace.plan),
        ranges_(workspace.ranges),
        range_reads_(workspace.range_reads),
        progress_(workspace.progress),
        waiting_(workspace.waiting),
        piece_ends_(workspace.piece_ends),
        arena_(arena),
        scratch_(scratch) {}

  Result<void> Run() {
    for (PlannedRecord& record : plan_.records)
      if (record.status == ErrorCode::kOk && record.read == PlannedRecord::kNoRead)
        Finish(record, {});
    PlanRanges();
    AskForHelp();
    FFR_TRY(reader_.source->ReadEach(
        ranges_, [this](RangeRead& range) { Arrived(range); }, patience_));
    if (workers_) FinishPieces();
    if (patience_.was_over()) return GivenUp();
    return ReadAgain();
  }

 private:
  void AskForHelp() {
    if (plan_.decompressed_size_bytes < kDecompressedBytesMin ||
        reader_.options.worker_count_max == 0)
      return;
    workers_.emplace(
        reader_.options.worker_count_max,
        [this](std::size_t piece, std::uint32_t slot) { DecompressPiece(piece, slot); });
    if (workers_->worker_count() == 0) return workers_.reset();
    // They look at these while more is written behind.
    waiting_.resize(plan_.records.size());
    piece_ends_.resize(plan_.records.size());
  }

  // Leaves the record to whoever comes first.
  void Postpone(std::size_t record) {
    waiting_[waiting_count_++] = static_cast<std::uint32_t>(record);
    piece_bytes_ += plan_.records[record].location.raw_size_bytes;
    if (piece_bytes_ >= kDecompressedPieceBytes) EndPiece();
  }

  void EndPiece() {
    piece_ends_[piece_count_++] = waiting_count_;
    piece_bytes_ = 0;
    workers_->Ready(piece_count_);
  }

  void FinishPieces() {
    if (piece_bytes_ > 0) EndPiece();
    workers_->Finish();
  }

  void DecompressPiece(std::size_t piece, std::uint32_t slot) {
    if (slot == 0 && patience_.IsOver()) is_given_up_.store(true, std::memory_order_relaxed);
    if (is_given_up_.load(std::memory_order_relaxed)) return;
    const std::uint32_t begin = piece > 0 ? piece_ends_[piece - 1] : 0;
    for (std::uint32_t i = begin; i < piece_ends_[piece]; ++i) {
      PlannedRecord& record = plan_.records[waiting_[i]];
      Finish(record, StoredOf(record));
    }
  }

  std::span<const std::byte> StoredOf(const PlannedRecord& record) const {
    const PlannedRead& read = plan_.reads[record.read];
    return BufferOf(read).subspan(record.location.offset_bytes - read.begin_bytes,
                                  record.location.stored_size_bytes);
  }

  std::span<std::byte> BufferOf(const PlannedRead& read) const {
    return (read.into_scratch ? scratch_ : arena_)
        .subspan(read.buffer_begin_bytes, read.size_bytes());
  }

  // A read that was merged fits one piece; only a large record has more.
  void PlanRanges() {
    const std::uint64_t piece_bytes_max = reader_.source->coalescing().piece_bytes_max;
    progress_.assign(plan_.reads.size(), {});
    ranges_.clear();
    range_reads_.clear();
    for (std::uint32_t number = 0; number < plan_.reads.size(); ++number) {
      const PlannedRead& read = plan_.reads[number];
      const std::span<std::byte> buffer = BufferOf(read);
      for (std::uint64_t begin = 0; begin < buffer.size(); begin += piece_bytes_max) {
        const std::uint64_t size = std::min(piece_bytes_max, buffer.size() - begin);
        ranges_.push_back({read.file, read.begin_bytes + begin, buffer.subspan(begin, size)});
        range_reads_.push_back(number);
        ++progress_[number].pieces_left;
      }
    }
  }

  void Arrived(RangeRead& range) {
    const std::uint32_t number = range_reads_[static_cast<std::size_t>(&range - ranges_.data())];
    Progress& progress = progress_[number];
    if (range.status != ErrorCode::kOk) progress.status = range.status;
    if (--progress.pieces_left > 0) return;
    const PlannedRead& read = plan_.reads[number];
    for (std::size_t i = read.first_record; i < read.end_record; ++i) {
      PlannedRecord& record = plan_.records[i];
      if (record.read != number) continue;
      record.status = progress.status;
      if (record.status != ErrorCode::kOk) continue;
      if (workers_ && record.location.compressed())
        Postpone(i);
      else
        Finish(record, StoredOf(record));
    }
  }

  // Checks the stored bytes and brings the raw ones to their place.
  void Finish(PlannedRecord& record, std::span<const std::byte> stored) {
    if (reader_.options.verify_checksums &&
        !reader_.indexes[record.file]->Matches(record.index, record.location.check, stored)) {
      record.status = ErrorCode::kCorruption;
      return;
    }
    if (!record.location.compressed()) return;
    const auto decompressed = reader_.indexes[record.file]->Decompress(
        stored, arena_.subspan(record.arena_begin_bytes, record.location.raw_size_bytes));
    if (!decompressed) record.status = decompressed.error().code;
  }

  // What was read together failed together: bytes of one record, or of a gap that nobody asked
  // for, must not cost their neighbours. A connection that is gone is not tried again here.
  Result<void> ReadAgain() {
    for (std::size_t number = 0; number < plan_.reads.size(); ++number) {
      const ErrorCode status = progress_[number].status;
      if (status != ErrorCode::kIo && status != ErrorCode::kCorruption) continue;
      const PlannedRead& read = plan_.reads[number];
      for (std::size_t i = read.first_record; i < read.end_record; ++i) {
        if (plan_.records[i].read != number) continue;
        if (patience_.IsOver()) return GivenUp();
        auto read_again = ReadAlone(plan_.records[i]);
        if (!read_again) return read_again;
      }
    }
    return {};
  }

  // Reads into memory of its own: a widened read would overwrite neighbours that were checked.
  Result<void> ReadAlone(PlannedRecord& record) {
    const std::uint64_t alignment = reader_.source->alignment_bytes(record.file);
    const std::uint64_t begin = AlignDown(record.location.offset_bytes, alignment);
    const std::uint64_t end =
        AlignUp(record.location.offset_bytes + record.location.stored_size_bytes, alignment);
    const auto memory = FFR_TRY(BufferPool::Process().Take(end - begin));
    RangeRead range{record.file, begin, *memory};
    auto read = reader_.source->Read({&range, 1});
    if (!read) return read;
    record.status = range.status;
    if (range.status != ErrorCode::kOk) return {};
    const auto stored =
        memory->subspan(record.location.offset_bytes - begin, record.location.stored_size_bytes);
    Finish(record, stored);
    if (record.status == ErrorCode::kOk && !record.location.compressed())
      std::memcpy(arena_.data() + record.arena_begin_bytes, stored.data(), stored.size());
    return {};
  }

  const RecordReader::Impl& reader_;
  Patience& patience_;  // Of this thread, for workers too.
  std::atomic<bool> is_given_up_{false};
  BatchPlan& plan_;
  std::vector<RangeRead>& ranges_;
  std::vector<std::uint32_t>& range_reads_;
  std::vector<Progress>& progress_;
  std::vector<std::uint32_t>& waiting_;
  std::vector<std::uint32_t>& piece_ends_;
  std::uint32_t waiting_count_ = 0;
  std::uint32_t piece_count_ = 0;
  std::uint64_t piece_bytes_ = 0;  // Of the piece that is being made.
  const std::span<std::byte> arena_;
  const std::span<std::byte> scratch_;
  std::optional<SharedWork> workers_;  // Ends before what it works on.
};

void FillTables(const BatchPlan& plan, const BatchBlock& block) {
  const PlannedRecord* record = plan.records.data();
  for (std::size_t i = 0; i < plan.wishes.size(); ++i) {
    if (i > 0 && plan.wishes[i].index != plan.wishes[i - 1].index) ++record;
    const std::uint64_t position = plan.wishes[i].position;
    const bool whole = record->status == ErrorCode::kOk;
    block.statuses[position] = record->status;
    block.starts_bytes[position] = whole ? static_cast<std::int64_t>(record->arena_begin_bytes) : 0;
    block.sizes_bytes[position] =
        whole ? static_cast<std::int64_t>(record->location.raw_size_bytes) : 0;
  }
}

Result<void> CheckIndices(const RecordReader::Impl& reader,
                          std::span<const std::uint64_t> indices) {
  const std::uint64_t record_count = reader.record_count();
  const auto out =
      std::ranges::find_if(indices, [&](std::uint64_t index) { return index >= record_count; });
  if (out == indices.end()) return {};
  return Error{ErrorCode::kOutOfRange, "record index " +
                                           std::to_string(static_cast<std::int64_t>(*out)) +
                                           " at position " + std::to_string(out - indices.begin()) +
                                           " of the batch is out of range: there are " +
                                           std::to_string(record_count) + " records"};
}

Result<Batch> Read(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                   Workspace& workspace, Patience& patience) {
  FFR_TRY(PlanBatch(reader, indices, workspace.plan, patience));
  const BatchPlan& plan = workspace.plan;
  const auto block =
      FFR_TRY(BatchBlock::Take(*reader.source, plan.arena_size_bytes, indices.size()));
  PooledBuffer scratch;
  if (plan.scratch_size_bytes > 0)
    scratch = FFR_TRY(reader.source->TakeMemory(plan.scratch_size_bytes));
  BatchExecution execution(reader, workspace, block.data,
                           scratch ? *scratch : std::span<std::byte>(), patience);
  FFR_TRY(execution.Run());
  FillTables(plan, block);
  return block.Finish(reader.schema);
}

}  // namespace

Result<Batch> ReadRecords(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                          Patience& patience) {
  FFR_TRY(CheckIndices(reader, indices));
  if (auto resident = CopyResident(reader, indices, patience)) {
    reader.batches_from_memory.fetch_add(1, std::memory_order_relaxed);
    return *std::move(resident);
  }
  if (patience.was_over()) return GivenUp();
  reader.batches_read.fetch_add(1, std::memory_order_relaxed);
  const ThreadScratch<Workspace> workspace;
  return Read(reader, indices, *workspace, patience);
}

}  // namespace ffrecord
