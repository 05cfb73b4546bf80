#include "libffrecord/record/read_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/record/batch_plan.h"
#include "libffrecord/record/coalesce.h"

namespace ffrecord {
namespace {

// One batch on its way: reads what the plan says, checks and expands records as they arrive.
class BatchExecution {
 public:
  BatchExecution(const RecordReader::Impl& reader, BatchPlan& plan, std::span<std::byte> arena,
                 std::span<std::byte> scratch)
      : reader_(reader), plan_(plan), arena_(arena), scratch_(scratch) {}

  Result<void> Run() {
    for (PlannedRecord& record : plan_.records)
      if (record.status == ErrorCode::kOk && record.read == PlannedRecord::kNoRead)
        Finish(record, {});
    PlanRanges();
    auto read = reader_.source->ReadEach(ranges_, [this](RangeRead& range) { Arrived(range); });
    if (!read) return read;
    return ReadAgain();
  }

 private:
  struct Progress {
    std::uint32_t pieces_left = 0;
    ErrorCode status = ErrorCode::kOk;
  };

  std::span<std::byte> BufferOf(const PlannedRead& read) const {
    return (read.into_scratch ? scratch_ : arena_)
        .subspan(read.buffer_begin_bytes, read.size_bytes());
  }

  // A read that was merged fits one piece; only a large record has more.
  void PlanRanges() {
    progress_.resize(plan_.reads.size());
    ranges_.reserve(plan_.reads.size());
    for (std::uint32_t number = 0; number < plan_.reads.size(); ++number) {
      const PlannedRead& read = plan_.reads[number];
      const std::span<std::byte> buffer = BufferOf(read);
      for (std::uint64_t begin = 0; begin < buffer.size(); begin += kPieceBytesMax) {
        const std::uint64_t size = std::min(kPieceBytesMax, buffer.size() - begin);
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
    const std::span<const std::byte> buffer = BufferOf(read);
    for (std::size_t i = read.first_record; i < read.end_record; ++i) {
      PlannedRecord& record = plan_.records[i];
      if (record.read != number) continue;
      record.status = progress.status;
      if (record.status == ErrorCode::kOk)
        Finish(record, buffer.subspan(record.location.offset_bytes - read.begin_bytes,
                                      record.location.stored_size_bytes));
    }
  }

  // Checks the stored bytes and brings the raw ones to their place.
  void Finish(PlannedRecord& record, std::span<const std::byte> stored) {
    if (reader_.options.verify_checksums &&
        !reader_.indexes[record.file]->Matches(record.index, record.location, stored)) {
      record.status = ErrorCode::kCorruption;
      return;
    }
    if (!record.location.compressed()) return;
    const auto expanded = reader_.indexes[record.file]->Expand(
        stored, arena_.subspan(record.arena_begin_bytes, record.location.raw_size_bytes));
    if (!expanded) record.status = expanded.error().code;
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
  BatchPlan& plan_;
  const std::span<std::byte> arena_;
  const std::span<std::byte> scratch_;
  std::vector<RangeRead> ranges_;
  std::vector<std::uint32_t> range_reads_;  // For each range, the read that it is a piece of.
  std::vector<Progress> progress_;          // For each read.
};

Batch MakeBatch(const RecordReader::Impl& reader, const BatchPlan& plan, PooledBuffer arena) {
  const std::size_t count = plan.wishes.size();
  std::vector<std::int64_t> starts(count);
  std::vector<std::int64_t> sizes(count);
  std::vector<ErrorCode> statuses(count);
  const PlannedRecord* record = plan.records.data();
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && plan.wishes[i].index != plan.wishes[i - 1].index) ++record;
    const std::uint64_t position = plan.wishes[i].position;
    statuses[position] = record->status;
    if (record->status != ErrorCode::kOk) continue;
    starts[position] = static_cast<std::int64_t>(record->arena_begin_bytes);
    sizes[position] = static_cast<std::int64_t>(record->location.raw_size_bytes);
  }
  const std::span<const std::byte> data = arena ? *arena : std::span<std::byte>();
  return Batch(std::move(arena), data, std::move(starts), std::move(sizes), std::move(statuses),
               reader.schema);
}

// No block at all for no bytes.
Result<PooledBuffer> TakeMemory(const RangeReader& source, std::uint64_t size_bytes) {
  if (size_bytes == 0) return PooledBuffer();
  return source.TakeMemory(size_bytes);
}

}  // namespace

Result<Batch> ReadRecords(const RecordReader::Impl& reader,
                          std::span<const std::uint64_t> indices) {
  auto plan = FFR_TRY(PlanBatch(reader, indices));
  auto arena = FFR_TRY(TakeMemory(*reader.source, plan.arena_size_bytes));
  const auto scratch = FFR_TRY(TakeMemory(*reader.source, plan.scratch_size_bytes));
  BatchExecution execution(reader, plan, arena ? *arena : std::span<std::byte>(),
                           scratch ? *scratch : std::span<std::byte>());
  auto run = execution.Run();
  if (!run) return std::move(run).error();
  return MakeBatch(reader, plan, std::move(arena));
}

}  // namespace ffrecord
