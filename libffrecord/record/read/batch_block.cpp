#include "libffrecord/record/read/batch_block.h"

#include <utility>

#include "libffrecord/base/align.h"

namespace ffrecord {
namespace {

// Lives in memory that was bytes so far. T is an implicit-lifetime type.
template <class T>
std::span<T> TableAt(std::byte* bytes, std::size_t count) {
  return {std::launder(reinterpret_cast<T*>(bytes)), count};
}

}  // namespace

Result<BatchBlock> BatchBlock::Take(const RangeReader& source, std::uint64_t data_size_bytes,
                                    std::size_t record_count) {
  constexpr std::size_t kRowSizeBytes = 2 * sizeof(std::int64_t) + sizeof(ErrorCode);
  constexpr std::size_t kTableAlignmentBytes = 64;
  BatchBlock block;
  if (data_size_bytes == 0 && record_count == 0) return block;
  const std::uint64_t tables_begin = AlignUp(data_size_bytes, kTableAlignmentBytes);
  block.memory = FFR_TRY(source.TakeMemory(tables_begin + kRowSizeBytes * record_count));
  block.data = block.memory->first(data_size_bytes);
  std::byte* table = block.memory->data() + tables_begin;
  block.starts_bytes = TableAt<std::int64_t>(table, record_count);
  table += block.starts_bytes.size_bytes();
  block.sizes_bytes = TableAt<std::int64_t>(table, record_count);
  table += block.sizes_bytes.size_bytes();
  block.statuses = TableAt<ErrorCode>(table, record_count);
  return block;
}

Batch BatchBlock::Finish(std::shared_ptr<const Schema> schema) const {
  return Batch(memory, std::span<const std::byte>(data),
               std::span<const std::int64_t>(starts_bytes),
               std::span<const std::int64_t>(sizes_bytes), std::span<const ErrorCode>(statuses),
               std::move(schema));
}

}  // namespace ffrecord
