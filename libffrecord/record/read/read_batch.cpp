#include "libffrecord/record/read/read_batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/record/read/batch_read.h"
#include "libffrecord/record/read/index_fetches.h"
#include "libffrecord/record/read/resident_batch.h"

namespace ffrecord {

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

Result<Batch> ReadRecords(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                          Patience& patience) {
  FFR_TRY(CheckIndices(reader, indices));
  StageClock clock(reader.stages);
  const IndexFailures failures = FetchLacking(reader, indices, patience);
  // It would try again.
  if (failures.empty()) {
    if (auto resident = CopyResident(reader, indices, clock, patience)) {
      reader.batches_from_memory.fetch_add(1, std::memory_order_relaxed);
      return *std::move(resident);
    }
  }
  if (patience.was_over()) return GivenUp();
  reader.batches_read.fetch_add(1, std::memory_order_relaxed);
  const ThreadScratch<BatchRead::Workspace> workspace;
  BatchRead batch(reader, *workspace);
  auto planned = batch.Plan(indices, failures);
  clock.Lap(reader.stages.submit);
  if (!planned) return std::move(planned).error();
  auto result = reader.source->ReadEach(
      batch.ranges(), [&](RangeRead& range) { batch.Arrived(range); }, patience);
  auto read = result ? batch.Finish() : Result<Batch>(std::move(result).error());
  clock.Lap(batch.check_stage());
  return read;
}

}  // namespace ffrecord
