#include "libffrecord/source/gathered_reads.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/buffer_pool.h"

namespace ffrecord {
namespace {

// Smaller blocks share memory.
constexpr std::uint64_t kOwnMemoryBytesMin = BufferPool::kAlignment;

// Another try may bring other bytes, from another copy, or memory.
bool IsReadAgain(ErrorCode code) {
  return code == ErrorCode::kCorruption || code == ErrorCode::kIo;
}

}  // namespace

Result<RangeReader::IndexBytes> GatheredReads::MapInside(std::uint32_t file,
                                                         std::uint64_t offset_bytes,
                                                         std::uint64_t size_bytes) const {
  const Place place(file, offset_bytes, size_bytes);
  const auto [piece, is_new] = pieces_.try_emplace(place);
  if (piece->second) {
    if (piece->second->outcome) return piece->second->bytes;
    const Error& why = piece->second->outcome.error();
    return IsReadAgain(why.code) ? reader_.MapIndex(file, offset_bytes, size_bytes) : why;
  }
  if (is_new) noted_.push_back(place);
  ++miss_count_;
  return Error{ErrorCode::kUnavailable, "not read yet"};
}

Result<void> GatheredReads::ReadNoted(Patience& patience) {
  auto blocks = PlanBlocks();
  auto read = TakeMemory(blocks);
  std::vector<RangeRead> ranges;
  if (read) {
    for (const Block& block : blocks)
      ranges.insert(ranges.end(), block.ranges.begin(), block.ranges.end());
    read = reader_.ReadEach(
        ranges, [](RangeRead&) {}, patience);
    if (patience.was_over()) return GivenUp();
    auto arrived = ranges.begin();
    for (Block& block : blocks)
      for (RangeRead& range : block.ranges) range.status = (arrived++)->status;
  }
  for (const Block& block : blocks) End(block, read);
  noted_.clear();
  return {};
}

void GatheredReads::Clear() {
  pieces_.clear();
  noted_.clear();
}

std::vector<GatheredReads::Block> GatheredReads::PlanBlocks() const {
  std::ranges::sort(noted_);
  std::vector<Block> blocks;
  for (const Place& place : noted_) {
    const auto& [file, offset_bytes, size_bytes] = place;
    const std::uint64_t alignment = alignment_bytes(file);
    const std::uint64_t begin = AlignDown(offset_bytes, alignment);
    const std::uint64_t end = AlignUp(offset_bytes + size_bytes, alignment);
    if (blocks.empty() || blocks.back().file != file || blocks.back().end_bytes < begin)
      blocks.push_back({file, begin, end, {}});
    blocks.back().end_bytes = std::max(blocks.back().end_bytes, end);
    blocks.back().places.push_back(place);
  }
  return blocks;
}

// Fails with kIo (ENOMEM).
Result<void> GatheredReads::TakeMemory(std::span<Block> blocks) const {
  const auto is_small = [&](const Block& block) {
    return block.size_bytes() < kOwnMemoryBytesMin && alignment_bytes(block.file) == 1;
  };
  std::uint64_t small_bytes = 0;
  for (const Block& block : blocks)
    if (is_small(block)) small_bytes += block.size_bytes();
  PooledBuffer shared;
  if (small_bytes > 0) shared = FFR_TRY(BufferPool::Process().Take(small_bytes));
  std::span<std::byte> left = shared ? *shared : std::span<std::byte>();
  const std::uint64_t range_bytes_max = reader_.coalescing().piece_bytes_max;
  for (Block& block : blocks) {
    const std::uint64_t size = block.size_bytes();
    if (is_small(block)) {
      block.owner = shared;
      block.memory = left.first(size);
      left = left.subspan(size);
    } else {
      block.owner = FFR_TRY(BufferPool::Process().Take(size));
      block.memory = *block.owner;
    }
    for (std::uint64_t at = 0; at < size; at += range_bytes_max)
      block.ranges.push_back({block.file, block.begin_bytes + at,
                              block.memory.subspan(at, std::min(range_bytes_max, size - at))});
  }
  return {};
}

// `read`: of all blocks as a whole.
void GatheredReads::End(const Block& block, const Result<void>& read) {
  for (const Place& place : block.places) {
    auto outcome = read ? OutcomeOf(place, block) : read;
    IndexBytes bytes;
    if (outcome)
      bytes = {block.owner,
               block.memory.subspan(std::get<1>(place) - block.begin_bytes, std::get<2>(place))};
    pieces_.at(place) = Piece{std::move(bytes), std::move(outcome)};
  }
}

Result<void> GatheredReads::OutcomeOf(const Place& place, const Block& block) const {
  const auto& [file, offset_bytes, size_bytes] = place;
  for (const RangeRead& range : block.ranges) {
    const std::uint64_t end_bytes = range.offset_bytes + range.destination.size();
    if (range.offset_bytes >= offset_bytes + size_bytes || end_bytes <= offset_bytes) continue;
    if (range.status != ErrorCode::kOk)
      return NotRead(reader_, file, offset_bytes, size_bytes, range.status);
  }
  return {};
}

}  // namespace ffrecord
