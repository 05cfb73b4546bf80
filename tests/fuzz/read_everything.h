#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/range_reader.h"
#include "tests/support/memory_files.h"

namespace ffrecord::fuzz {

// Of a column that is read: a forged schema may have columns as wide as it likes.
inline constexpr std::uint64_t kWidthBytesMax = 4096;

// Searches for keys, of which the file may have some. Traps if a search contradicts the verifier or
// the same search among others, or names a record that there is not.
inline void FindKeys(const RecordReader& reader, std::span<const std::string> keys, bool is_whole) {
  std::vector<std::span<const std::byte>> wanted;
  for (const std::string& key : keys) wanted.push_back(std::as_bytes(std::span(key)));
  const auto all = reader.FindAll(wanted);
  const bool has_no_keys = !all && all.error().code == ErrorCode::kInvalidArgument;
  if (!all && is_whole && !has_no_keys) __builtin_trap();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto found = reader.Find(wanted[i]);
    if (all && (!found || found.value() != all.value()[i])) __builtin_trap();
    if (found && found.value() && *found.value() >= reader.record_count()) __builtin_trap();
  }
}

// Reads the columns of the first records, which `batch` begins with. Traps if what is said to be
// whole cannot be read, or differs from the records.
inline void ReadColumns(const RecordReader& reader, const Batch& batch, std::uint64_t count,
                        bool is_whole) {
  for (std::size_t column = 0; column < reader.schema().columns().size(); ++column) {
    (void)batch.field(column);
    const std::uint64_t width = reader.schema().width_bytes(column);
    if (width == 0 || width > kWidthBytesMax) continue;
    std::vector<std::byte> of_records(batch.size() * width);
    std::vector<std::byte> values(count * width);
    const auto gathered = batch.GatherFixed(column, of_records);
    const auto read = reader.ReadColumn(column, 0, count, values);
    if (!is_whole || !gathered) continue;
    if (!read || !std::equal(values.begin(), values.end(), of_records.begin())) __builtin_trap();
  }
}

// Opens a file of these bytes, reads and verifies what it is said to hold, and searches it for
// `keys`. Traps if the reader and the verifier contradict each other, or if a record lies outside
// its batch.
inline void ReadEverything(std::string content, const RecordReader::Options& options,
                           std::span<const std::string> keys = {}) {
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
  FindKeys(reader.value(), keys, is_whole);
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
  ReadColumns(reader.value(), batch.value(), indices.size() - 1, is_whole);
}

}  // namespace ffrecord::fuzz
