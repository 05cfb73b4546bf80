#include "libffrecord/record/read/batch_plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/source/coalesce.h"

namespace ffrecord {
namespace {

// Alignment of records and reads in memory, so that none share a cache line.
constexpr std::uint64_t kPlaceAlignmentBytes = 64;
// More than any machine has; far from overflow, with the sizes of one more record added.
constexpr std::uint64_t kBatchSizeBytesMax = std::uint64_t{1} << 46;

// Radix sort by the lowest digit first: two passes for a million records, where comparing would
// take twelve for a batch of 4096.
void SortByIndex(std::uint64_t index_max, std::vector<BatchPlan::Wish>& wishes,
                 std::vector<BatchPlan::Wish>& sorting) {
  constexpr int kDigitBits = 11;
  constexpr std::size_t kDigitCount = std::size_t{1} << kDigitBits;
  const auto by_index = [](const auto& a, const auto& b) { return a.index < b.index; };
  if (std::is_sorted(wishes.begin(), wishes.end(), by_index)) return;
  if (wishes.size() < kDigitCount / 4) {  // Counting digits would take longer.
    std::sort(wishes.begin(), wishes.end(), by_index);
    return;
  }
  sorting.resize(wishes.size());
  for (int shift = 0; shift < 64 && index_max >> shift != 0; shift += kDigitBits) {
    const auto digit = [shift](const BatchPlan::Wish& wish) {
      return wish.index >> shift & (kDigitCount - 1);
    };
    std::array<std::size_t, kDigitCount> ends{};
    for (const auto& wish : wishes) ++ends[digit(wish)];
    std::size_t begin = 0;
    for (std::size_t& end : ends) begin += std::exchange(end, begin);
    for (const auto& wish : wishes) sorting[ends[digit(wish)]++] = wish;
    wishes.swap(sorting);
  }
}

// Records that are planned between two checks of the caller's patience: about a millisecond of
// work.
constexpr std::size_t kStepRecords = 4096;

// In a file offsets rise with the index, so records sorted by index are sorted by offset.
Result<void> LocateRecords(const RecordReader::Impl& reader, const IndexFailures& failures,
                           BatchPlan& plan, Patience& patience) {
  std::uint32_t file = 0;
  std::uint64_t file_begin = 0;
  std::uint64_t file_end = 0;
  for (std::size_t i = 0; i < plan.wishes.size(); ++i) {
    if (i % kStepRecords == 0 && patience.IsOver()) return GivenUp();
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
    if (!failures.empty()) record.status = failures.Of(*reader.indexes[file], record.index);
  }
  // Index pages that are not in memory are fetched side by side, not one after the other.
  constexpr std::size_t kAhead = 16;
  const auto prefetch = [&](std::size_t i) {
    if (i >= plan.records.size()) return;
    const PlannedRecord& record = plan.records[i];
    if (record.status == ErrorCode::kOk) reader.indexes[record.file]->Prefetch(record.index);
  };
  for (std::size_t i = 0; i < kAhead; ++i) prefetch(i);
  for (std::size_t i = 0; i < plan.records.size(); ++i) {
    if (i % kStepRecords == 0 && patience.IsOver()) return GivenUp();
    prefetch(i + kAhead);
    PlannedRecord& record = plan.records[i];
    if (record.status == ErrorCode::kOk)
      record.status = reader.indexes[record.file]->Locate(record.index, record.location);
    record.has_own_room = record.location.compressed();
  }
  return {};
}

// Samples of files of another kind become records where they are read. One that overlaps another
// would change its bytes; no writer makes such an index.
void FormInPlace(const RecordReader::Impl& reader, BatchPlan& plan) {
  const PlannedRecord* before = nullptr;
  for (PlannedRecord& record : plan.records) {
    if (record.status != ErrorCode::kOk ||
        reader.source->form(record.file).records == RecordForm::kPlain)
      continue;
    if (before != nullptr && before->file == record.file &&
        record.location.offset_bytes <
            before->location.offset_bytes + before->location.stored_size_bytes) {
      record.status = ErrorCode::kCorruption;
      continue;
    }
    record.has_own_room = record.location.raw_size_bytes > record.location.stored_size_bytes;
    before = &record;
  }
}

// One read for each run of neighbours.
void MergeReads(const CoalescingOptions& coalescing, BatchPlan& plan) {
  CoalescedRead run;
  for (std::size_t i = 0; i < plan.records.size(); ++i) {
    PlannedRecord& record = plan.records[i];
    if (record.status != ErrorCode::kOk || record.location.stored_size_bytes == 0) continue;
    const std::uint64_t begin = record.location.offset_bytes;
    const std::uint64_t end = begin + record.location.stored_size_bytes;
    const bool merged = !plan.reads.empty() && plan.reads.back().file == record.file &&
                        run.Absorb(begin, end, coalescing);
    if (!merged) {
      run = {begin, end};
      plan.reads.push_back({record.file, true, begin, end, 0, i, i});
    }
    PlannedRead& read = plan.reads.back();
    read.end_bytes = run.end_bytes;
    read.end_record = i + 1;
    read.into_scratch = read.into_scratch && record.has_own_room;
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
    if (record.has_own_room) {
      record.arena_begin_bytes = AlignUp(plan.arena_size_bytes, kPlaceAlignmentBytes);
      plan.arena_size_bytes = record.arena_begin_bytes + record.location.raw_size_bytes;
      plan.decompressed_size_bytes += record.location.raw_size_bytes;
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

Result<void> PlanBatch(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                       const IndexFailures& failures, BatchPlan& plan, Patience& patience) {
  plan.wishes.clear();
  plan.records.clear();
  plan.reads.clear();
  plan.arena_size_bytes = plan.scratch_size_bytes = plan.decompressed_size_bytes = 0;
  for (const std::uint64_t index : indices) plan.wishes.push_back({index, plan.wishes.size()});
  if (patience.IsOver()) return GivenUp();
  SortByIndex(reader.record_count() - 1, plan.wishes, plan.sorting);
  FFR_TRY(LocateRecords(reader, failures, plan, patience));
  if (reader.forms_records) FormInPlace(reader, plan);
  MergeReads(reader.source->coalescing(), plan);
  return PlaceReads(*reader.source, plan);
}

}  // namespace ffrecord
