#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/streaming_copy.h"

namespace ffrecord {
namespace {

constexpr std::size_t kLine = 64;
// Smaller copies may well be read out of the caches, and cost little either way.
constexpr std::size_t kStreamedMin = std::size_t{16} << 10;

void CopyLine(std::byte* to, const std::byte* from) noexcept {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i first = _mm_loadu_si128(in);
  const __m128i second = _mm_loadu_si128(in + 1);
  const __m128i third = _mm_loadu_si128(in + 2);
  const __m128i fourth = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, first);
  _mm_stream_si128(out + 1, second);
  _mm_stream_si128(out + 2, third);
  _mm_stream_si128(out + 3, fourth);
}

}  // namespace

// SSE2, which every x86-64 has, fills a line as fast as wider registers do: memory is the limit.
void StreamingCopy(std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  FFR_ASSERT(to.size() >= from.size());
  if (from.empty()) return;
  std::byte* out = to.data();
  const std::byte* in = from.data();
  std::size_t left = from.size();
  if (left >= kStreamedMin) {
    const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine;
    std::memcpy(out, in, head);
    out += head, in += head, left -= head;
    for (; left >= kLine; out += kLine, in += kLine, left -= kLine) CopyLine(out, in);
    _mm_sfence();  // Before a flag that says so to other threads.
  }
  std::memcpy(out, in, left);
}

}  // namespace ffrecord
