#include "libffrecord/record/stream/gather_columns.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/buffer_pool.h"

namespace ffrecord {
namespace {

constexpr std::size_t kAlignment = 64;

// The records, if they lie back to back in request order, and are aligned for any number.
std::span<const std::byte> InPlace(const Batch& batch, std::uint64_t width) {
  constexpr std::size_t kNumberAlignment = 8;
  const auto starts = batch.starts_bytes();
  const auto sizes = batch.sizes_bytes();
  std::int64_t wrong = 0;  // Without branches: vectors of records at a time.
  for (std::size_t i = 0; i < starts.size(); ++i)
    wrong |= (starts[i] - starts[0] - static_cast<std::int64_t>(i * width)) |
             (sizes[i] - static_cast<std::int64_t>(width));
  if (wrong != 0) return {};
  const auto rows =
      batch.data().subspan(static_cast<std::size_t>(starts[0]), starts.size() * width);
  return reinterpret_cast<std::uintptr_t>(rows.data()) % kNumberAlignment == 0
             ? rows
             : std::span<const std::byte>();
}

// Any byte may stand in a file; as a bool it must be 0 or 1.
void MakeBools(std::span<std::byte> values) {
  for (std::byte& value : values) value = std::byte{value != std::byte{0}};
}

}  // namespace

bool GatherColumns(const Batch& batch, std::span<const std::uint32_t> wanted,
                   std::vector<ColumnValues>& columns) {
  if (wanted.empty()) return true;
  if (batch.size() == 0) return false;
  const Schema& schema = batch.schema();
  const auto is_bool = [&](std::uint32_t column) {
    return schema.columns()[column].type == ColumnType::kBool;
  };
  if (schema.columns().size() == 1 && !is_bool(0)) {
    if (const auto rows = InPlace(batch, schema.width_bytes(0)); !rows.empty()) {
      columns.insert(columns.end(), wanted.size(), {rows, nullptr});  // One may be wanted twice.
      return true;
    }
  }
  const auto size_of = [&](std::uint32_t column) {
    return schema.width_bytes(column) * batch.size();
  };
  std::uint64_t size_bytes = 0;
  for (const std::uint32_t column : wanted) size_bytes += AlignUp(size_of(column), kAlignment);
  auto memory = BufferPool::Process().Take(size_bytes);
  if (!memory) return false;
  std::vector<std::span<std::byte>> places(schema.columns().size());
  std::uint64_t begin = 0;
  for (const std::uint32_t column : wanted) {
    places[column] = memory.value()->subspan(begin, size_of(column));
    begin += AlignUp(places[column].size(), kAlignment);
  }
  if (!batch.GatherFixed(places)) return false;
  for (const std::uint32_t column : wanted) {
    if (is_bool(column)) MakeBools(places[column]);
    columns.push_back({places[column], memory.value()});
  }
  return true;
}

}  // namespace ffrecord
