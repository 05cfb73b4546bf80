#include "libffrecord/record/batch_plan.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "libffrecord/record/coalesce.h"

namespace ffrecord {
namespace {

// Where records and reads begin in memory: no cache line is shared.
constexpr std::uint64_t kPlaceAlignmentBytes = 64;
// More than any machine has; far from overflow, with the sizes of one more record added.
constexpr std::uint64_t kBatchSizeBytesMax = std::uint64_t{1} << 46;

Result<std::vector<BatchPlan::Wish>> SortWishes(std::span<const std::uint64_t> indices,
                                                std::uint64_t record_count) {
  std::vector<BatchPlan::Wish> wishes;
  wishes.reserve(indices.size());
  bool sorted = true;
  for (std::uint64_t position = 0; position < indices.size(); ++position) {
    const std::uint64_t index = indices[position];
    if (index >= record_count)
      return Error{ErrorCode::kOutOfRange, "record index " +
                                               std::to_string(static_cast<std::int64_t>(index)) +
                                               " at position " + std::to_string(position) +
                                               " of the batch is out of range: there are " +
                                               std::to_string(record_count) + " records"};
    sorted = sorted && (position == 0 || wishes.back().index <= index);
    wishes.push_back({index, position});
  }
  if (!sorted)
    std::sort(wishes.begin(), wishes.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
  return wishes;
}

// In a file offsets rise with the index, so records sorted by index are sorted by offset.
void LocateRecords(const RecordReader::Impl& reader, BatchPlan& plan) {
  plan.records.reserve(plan.wishes.size());
  std::uint32_t file = 0;
  std::uint64_t file_begin = 0;
  std::uint64_t file_end = 0;
  for (std::size_t i = 0; i < plan.wishes.size(); ++i) {
    const std::uint64_t index = plan.wishes[i].index;
    if (i > 0 && index == plan.wishes[i - 1].index) continue;
    if (index >= file_end) {
      file = reader.FileOf(index);
      file_begin = reader.first_indexes[file];
      file_end = reader.first_indexes[file + 1];
    }
    PlannedRecord& record = plan.records.emplace_back();
    record.index = index - file_begin;
    record.file = file;
    record.status = reader.indexes[file]->Locate(record.index, record.location);
  }
}

// One read for each run of neighbours.
void MergeReads(BatchPlan& plan) {
  CoalescedRead run;
  for (std::size_t i = 0; i < plan.records.size(); ++i) {
    PlannedRecord& record = plan.records[i];
    if (record.status != ErrorCode::kOk || record.location.stored_size_bytes == 0) continue;
    const std::uint64_t begin = record.location.offset_bytes;
    const std::uint64_t end = begin + record.location.stored_size_bytes;
    const bool merged =
        !plan.reads.empty() && plan.reads.back().file == record.file && run.Absorb(begin, end);
    if (!merged) {
      run = {begin, end};
      plan.reads.push_back({record.file, true, begin, end, 0, i, i});
    }
    PlannedRead& read = plan.reads.back();
    read.end_bytes = run.end_bytes;
    read.end_record = i + 1;
    read.into_scratch = read.into_scratch && record.location.compressed();
    record.read = static_cast<std::uint32_t>(plan.reads.size() - 1);
  }
}

Result<void> PlaceReads(const RangeReader& source, BatchPlan& plan) {
  for (PlannedRead& read : plan.reads) {
    const std::uint64_t alignment = source.alignment_bytes(read.file);
    read.begin_bytes = AlignDown(read.begin_bytes, alignment);
    read.end_bytes = AlignUp(read.end_bytes, alignment);
    std::uint64_t& memory_end = read.into_scratch ? plan.scratch_size_bytes : plan.arena_size_bytes;
    read.buffer_begin_bytes = AlignUp(memory_end, std::max(alignment, kPlaceAlignmentBytes));
    memory_end = read.buffer_begin_bytes + read.size_bytes();
    if (memory_end > kBatchSizeBytesMax) break;
  }
  for (PlannedRecord& record : plan.records) {
    if (record.read == PlannedRecord::kNoRead) continue;
    const PlannedRead& read = plan.reads[record.read];
    if (record.location.compressed()) {
      record.arena_begin_bytes = AlignUp(plan.arena_size_bytes, kPlaceAlignmentBytes);
      plan.arena_size_bytes = record.arena_begin_bytes + record.location.raw_size_bytes;
    } else {
      record.arena_begin_bytes =
          read.buffer_begin_bytes + (record.location.offset_bytes - read.begin_bytes);
    }
    if (plan.arena_size_bytes > kBatchSizeBytesMax) break;
  }
  if (plan.arena_size_bytes > kBatchSizeBytesMax || plan.scratch_size_bytes > kBatchSizeBytesMax)
    return Error{ErrorCode::kIo,
                 "the batch of " + std::to_string(plan.wishes.size()) +
                     " records is larger than any memory; read smaller batches",
                 ENOMEM};
  return {};
}

}  // namespace

Result<BatchPlan> PlanBatch(const RecordReader::Impl& reader,
                            std::span<const std::uint64_t> indices) {
  BatchPlan plan;
  plan.wishes = FFR_TRY(SortWishes(indices, reader.record_count()));
  LocateRecords(reader, plan);
  MergeReads(plan);
  auto placed = PlaceReads(*reader.source, plan);
  if (!placed) return std::move(placed).error();
  return plan;
}

}  // namespace ffrecord
