#include "libffrecord/record/read/batch_read.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/record/read/decompression.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord {

BatchRead::BatchRead(const RecordReader::Impl& reader, Workspace& workspace)
    : reader_(reader),
      plan_(workspace.plan),
      ranges_(workspace.ranges),
      range_reads_(workspace.range_reads),
      progress_(workspace.progress),
      waiting_(workspace.waiting),
      piece_ends_(workspace.piece_ends) {}

Result<void> BatchRead::Plan(std::span<const std::uint64_t> indices,
                             const IndexFailures& failures) {
  FFR_TRY(PlanBatch(reader_, indices, failures, plan_, Patience::OfThread()));
  block_ = FFR_TRY(BatchBlock::Take(*reader_.source, plan_.arena_size_bytes, indices.size()));
  if (plan_.scratch_size_bytes > 0)
    scratch_ = FFR_TRY(reader_.source->TakeMemory(plan_.scratch_size_bytes));
  for (PlannedRecord& record : plan_.records)
    if (record.status == ErrorCode::kOk && record.read == PlannedRecord::kNoRead)
      FinishRecord(record, {});
  PlanRanges();
  AskForHelp();
  return {};
}

Result<Batch> BatchRead::Finish() {
  if (workers_) FinishPieces();
  if (is_given_up_ || Patience::OfThread().was_over()) return GivenUp();
  FFR_TRY(ReadAgain());
  FillTables();
  return block_.Finish(reader_.schema);
}

void BatchRead::AskForHelp() {
  if (plan_.decompressed_size_bytes < kDecompressedBytesMin ||
      reader_.options.worker_count_max == 0)
    return;
  workers_.emplace(reader_.options.worker_count_max,
                   [this](std::size_t piece, std::uint32_t slot) { DecompressPiece(piece, slot); });
  if (workers_->worker_count() == 0) return workers_.reset();
  // Workers read their fronts while more is appended, so the vectors must not grow.
  waiting_.resize(plan_.records.size());
  piece_ends_.resize(plan_.records.size());
}

// Queues the record for any thread.
void BatchRead::Postpone(std::size_t record) {
  waiting_[waiting_count_++] = static_cast<std::uint32_t>(record);
  piece_bytes_ += plan_.records[record].location.raw_size_bytes;
  if (piece_bytes_ >= kDecompressedPieceBytes) EndPiece();
}

void BatchRead::EndPiece() {
  piece_ends_[piece_count_++] = waiting_count_;
  piece_bytes_ = 0;
  workers_->Ready(piece_count_);
}

void BatchRead::FinishPieces() {
  if (piece_bytes_ > 0) EndPiece();
  workers_->Finish();
}

void BatchRead::DecompressPiece(std::size_t piece, std::uint32_t slot) {
  if (slot == 0 && Patience::OfThread().IsOver())
    is_given_up_.store(true, std::memory_order_relaxed);
  if (is_given_up_.load(std::memory_order_relaxed)) return;
  const std::uint32_t begin = piece > 0 ? piece_ends_[piece - 1] : 0;
  for (std::uint32_t i = begin; i < piece_ends_[piece]; ++i) {
    PlannedRecord& record = plan_.records[waiting_[i]];
    FinishRecord(record, StoredOf(record));
  }
}

std::span<std::byte> BatchRead::StoredOf(const PlannedRecord& record) const {
  const PlannedRead& read = plan_.reads[record.read];
  return BufferOf(read).subspan(record.location.offset_bytes - read.begin_bytes,
                                record.location.stored_size_bytes);
}

std::span<std::byte> BatchRead::BufferOf(const PlannedRead& read) const {
  return (read.into_scratch ? *scratch_ : block_.data)
      .subspan(read.buffer_begin_bytes, read.size_bytes());
}

// A read that was merged fits one piece; only a large record has more.
void BatchRead::PlanRanges() {
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

void BatchRead::Arrived(RangeRead& range) {
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
    if (workers_ && record.has_own_room)
      Postpone(i);
    else
      FinishRecord(record, StoredOf(record));
  }
}

// Checks the stored bytes and puts the raw ones in their place. Stored bytes of a record without
// room of its own are StoredOf() it.
void BatchRead::FinishRecord(PlannedRecord& record, std::span<const std::byte> stored) {
  if (reader_.options.verify_checksums &&
      !reader_.indexes[record.file]->Matches(record.index, record.location.check, stored)) {
    record.status = ErrorCode::kCorruption;
    return;
  }
  if (!record.location.compressed()) return;
  if (!record.has_own_room) return FormRecord(record);
  const auto decompressed = reader_.indexes[record.file]->Decompress(
      stored, block_.data.subspan(record.arena_begin_bytes, record.location.raw_size_bytes));
  if (!decompressed) record.status = decompressed.error().code;
}

void BatchRead::FormRecord(PlannedRecord& record) {
  const std::span<std::byte> stored = StoredOf(record);
  const auto begin =
      reader_.indexes[record.file]->FormWithin(stored, record.location.raw_size_bytes);
  if (begin)
    record.arena_begin_bytes =
        static_cast<std::uint64_t>(stored.data() - block_.data.data()) + begin.value();
  else
    record.status = begin.error().code;
}

// Reads the records of a failed merged read again one by one: one bad record, or a bad gap between
// two, must not cost its neighbours. Does not retry after a lost connection.
Result<void> BatchRead::ReadAgain() {
  for (std::size_t number = 0; number < plan_.reads.size(); ++number) {
    const ErrorCode status = progress_[number].status;
    if (status != ErrorCode::kIo && status != ErrorCode::kCorruption) continue;
    const PlannedRead& read = plan_.reads[number];
    for (std::size_t i = read.first_record; i < read.end_record; ++i) {
      if (plan_.records[i].read != number) continue;
      if (Patience::OfThread().IsOver()) return GivenUp();
      auto read_again = ReadAlone(plan_.records[i]);
      if (!read_again) return read_again;
    }
  }
  const FileCopies* const copies = FileCopies::Of(*reader_.source);
  if (copies == nullptr) return {};
  for (PlannedRecord& record : plan_.records)
    if (record.status == ErrorCode::kCorruption && record.read != PlannedRecord::kNoRead)
      FFR_TRY(ReadFromCopies(*copies, record));
  return {};
}

// Reads into memory of its own: a widened read would overwrite neighbours that were checked.
Result<void> BatchRead::ReadAlone(PlannedRecord& record) {
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
  Replace(record, stored);
  return {};
}

// A record that is damaged in one copy of the file may be whole in another.
Result<void> BatchRead::ReadFromCopies(const FileCopies& copies, PlannedRecord& record) {
  const auto is_right = [&](std::span<const std::byte> stored) {
    return reader_.indexes[record.file]->Matches(record.index, record.location.check, stored);
  };
  auto& patience = Patience::OfThread();
  const auto copy = copies.ReadFromCopies(record.file, record.location.offset_bytes,
                                          record.location.stored_size_bytes, is_right, patience);
  if (patience.was_over()) return GivenUp();
  record.status = copy ? ErrorCode::kOk : copy.error().code;
  if (copy) Replace(record, *copy.value());
  return {};
}

// Puts the record in its place anew.
void BatchRead::Replace(PlannedRecord& record, std::span<const std::byte> stored) {
  if (record.has_own_room) return FinishRecord(record, stored);
  const std::span<std::byte> place = StoredOf(record);
  std::ranges::copy(stored, place.begin());
  FinishRecord(record, place);
}

void BatchRead::FillTables() const {
  const PlannedRecord* record = plan_.records.data();
  for (std::size_t i = 0; i < plan_.wishes.size(); ++i) {
    if (i > 0 && plan_.wishes[i].index != plan_.wishes[i - 1].index) ++record;
    const std::uint64_t position = plan_.wishes[i].position;
    const bool whole = record->status == ErrorCode::kOk;
    block_.statuses[position] = record->status;
    block_.starts_bytes[position] =
        whole ? static_cast<std::int64_t>(record->arena_begin_bytes) : 0;
    block_.sizes_bytes[position] =
        whole ? static_cast<std::int64_t>(record->location.raw_size_bytes) : 0;
  }
}

}  // namespace ffrecord
