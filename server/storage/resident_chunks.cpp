#include "server/storage/resident_chunks.h"

#include <algorithm>

#include "libffrecord/io/page_cache.h"

namespace ffrecord::server {
namespace {

// Runs before a chunk that was not all there is asked for again.
constexpr std::int16_t kPatienceRuns = 60;

}  // namespace

bool ResidentChunks::Contains(std::span<const std::byte> mapped, std::size_t offset,
                              std::size_t size, Clock::time_point now) {
  if (chunks_.empty()) chunks_.resize((mapped.size() + kChunkBytes - 1) / kChunkBytes);
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - made_);
  // It wraps after 49 days, which then costs a few questions more.
  const auto now_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(age.count(), 0));
  for (const std::size_t end = offset + size; offset < end;) {
    const std::size_t number = offset / kChunkBytes;
    const std::size_t begin = number * kChunkBytes;
    const auto whole = mapped.subspan(begin, std::min(kChunkBytes, mapped.size() - begin));
    const std::size_t part_end = std::min(end, begin + whole.size());
    if (!Ask(chunks_[number], whole, mapped.subspan(offset, part_end - offset), now_ms))
      return false;
    offset = part_end;
  }
  return true;
}

bool ResidentChunks::Ask(Chunk& chunk, std::span<const std::byte> whole,
                         std::span<const std::byte> part, std::uint32_t now_ms) {
  constexpr auto kBelievedMs = static_cast<std::uint32_t>(kBelievedFor.count());
  if (chunk.believed_until_ms - now_ms - 1 < kBelievedMs) return true;
  if (now_ms - chunk.asked_since_ms >= kBelievedMs) {
    chunk.asked_since_ms = now_ms;
    chunk.asked_count = 0;
  }
  if (++chunk.asked_count <= kSingleRuns) return IsInMemory(part);
  if (!IsInMemory(whole)) {
    chunk.asked_count = -kPatienceRuns;
    return IsInMemory(part);
  }
  chunk.asked_count = 0;
  chunk.believed_until_ms = now_ms + kBelievedMs;
  return true;
}

}  // namespace ffrecord::server
