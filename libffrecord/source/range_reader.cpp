#include "libffrecord/source/range_reader.h"

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/source/threaded_queue.h"

namespace ffrecord {
namespace {

// Neither sum may overflow: offsets come from files.
bool PassesEndOf(std::uint64_t file_size_bytes, std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) noexcept {
  return offset_bytes > file_size_bytes || size_bytes > file_size_bytes - offset_bytes;
}

}  // namespace

bool RangeReader::PassesEnd(const RangeRead& range) const noexcept {
  const std::uint64_t block = alignment_bytes(range.file);
  const std::uint64_t end = (file_size_bytes(range.file) + block - 1) & ~(block - 1);
  return PassesEndOf(end, range.offset_bytes, range.destination.size());
}

Result<std::unique_ptr<RangeQueue>> RangeReader::MakeQueue(QueueUse /*use*/) const {
  return MakeThreadedQueue(*this);
}

Result<RangeReader::IndexBytes> RangeReader::MapIndex(std::uint32_t file,
                                                      std::uint64_t offset_bytes,
                                                      std::uint64_t size_bytes) const {
  if (PassesEndOf(file_size_bytes(file), offset_bytes, size_bytes))
    return Error{ErrorCode::kCorruption,
                 file_name(file) + ": an index of " + std::to_string(size_bytes) + " bytes at " +
                     std::to_string(offset_bytes) + " passes the end of the file"};
  if (size_bytes == 0) return IndexBytes{};
  return MapInside(file, offset_bytes, size_bytes);
}

Error RangeReader::NotRead(const RangeReader& reader, std::uint32_t file,
                           std::uint64_t offset_bytes, std::uint64_t size_bytes, ErrorCode status) {
  const std::string trouble = reader.Trouble(file, status);
  return {status, reader.file_name(file) + ": cannot read " + std::to_string(size_bytes) +
                      " bytes of index at " + std::to_string(offset_bytes) +
                      (trouble.empty() ? "" : ": " + trouble)};
}

Result<RangeReader::IndexBytes> RangeReader::MapInside(std::uint32_t file,
                                                       std::uint64_t offset_bytes,
                                                       std::uint64_t size_bytes) const {
  FFR_ASSERT(alignment_bytes(file) == 1);
  auto memory = FFR_TRY(BufferPool::Process().Take(size_bytes));
  RangeRead range{file, offset_bytes, *memory};
  FFR_TRY(Read({&range, 1}));
  if (range.status != ErrorCode::kOk)
    return NotRead(*this, file, offset_bytes, size_bytes, range.status);
  const std::span<const std::byte> bytes = *memory;
  return IndexBytes{std::move(memory), bytes};
}

}  // namespace ffrecord
