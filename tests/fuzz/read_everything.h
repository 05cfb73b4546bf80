#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/record/range_reader.h"
#include "libffrecord/record/verify_source.h"
#include "tests/support/memory_files.h"

namespace ffrecord::fuzz {

// Opens a file of these bytes, reads and verifies what it is said to hold. Traps if the reader and
// the verifier contradict each other, or if a record lies outside its batch.
inline void ReadEverything(std::string content, const RecordReader::Options& options) {
  constexpr std::uint64_t kIndicesMax = 512;
  const std::shared_ptr<test::MemoryFiles> file = test::InMemory(std::move(content));
  const auto report = VerifySource(*file);
  const bool is_whole = report && report.value().whole();
  const auto reader = OpenRecords(file, options);
  if (!reader) {
    if (is_whole) __builtin_trap();
    return;
  }
  if (!reader.value().metadata(0) && is_whole) __builtin_trap();
  std::vector<std::uint64_t> indices(std::min(reader.value().record_count(), kIndicesMax));
  std::iota(indices.begin(), indices.end(), std::uint64_t{0});
  if (indices.empty()) return;
  indices.push_back(reader.value().record_count() - 1);
  const auto batch = reader.value().ReadBatch(indices);
  if (!batch) return;
  const std::span<const std::byte> data = batch.value().data();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::span<const std::byte> record = batch.value().record(i);
    const ErrorCode status = batch.value().statuses()[i];
    if (status != ErrorCode::kOk && (is_whole || !record.empty())) __builtin_trap();
    if (!record.empty() &&
        (record.data() < data.data() || record.data() + record.size() > data.data() + data.size()))
      __builtin_trap();
    if (status != ErrorCode::kOk) (void)reader.value().Describe(indices[i], status);
  }
  for (std::size_t column = 0; column < reader.value().schema().columns().size(); ++column)
    (void)batch.value().field(column);
}

}  // namespace ffrecord::fuzz
