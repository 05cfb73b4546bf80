#include "libffrecord/record/write/magic_scan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kBlockBytes = 4096;

constexpr std::size_t kMagicBytes = std::tuple_size_v<Magic>;

// The place of the first of them in `bytes`, or the size of these.
std::size_t PlaceOf(std::span<const Magic> magics, std::span<const std::byte> bytes) {
  const std::uint8_t first = magics.front().front();
  std::size_t begin = 0;
  while (begin + kMagicBytes <= bytes.size()) {
    const void* found =
        std::memchr(bytes.data() + begin, first, bytes.size() - begin - (kMagicBytes - 1));
    if (found == nullptr) break;
    begin = static_cast<std::size_t>(static_cast<const std::byte*>(found) - bytes.data());
    if (std::any_of(magics.begin(), magics.end(), [&](const Magic& magic) {
          return std::memcmp(found, magic.data(), magic.size()) == 0;
        }))
      return begin;
    ++begin;
  }
  return bytes.size();
}

}  // namespace

std::uint64_t FindMagic(FileWindow& window, std::uint64_t size_bytes, std::span<const Magic> magics,
                        std::uint64_t offset_bytes) {
  FFR_ASSERT(!magics.empty());
  while (offset_bytes < size_bytes && size_bytes - offset_bytes >= kMagicBytes) {
    std::uint64_t size = std::min(kPieceBytes, size_bytes - offset_bytes);
    auto piece = window.View(offset_bytes, size);
    if (!piece) {
      // The rest of this block, and enough of the next for a magic that lies across.
      const std::uint64_t rest = kBlockBytes - offset_bytes % kBlockBytes;
      size = std::min(std::max<std::uint64_t>(rest, kMagicBytes), size_bytes - offset_bytes);
      piece = window.View(offset_bytes, size);
      if (!piece) {
        offset_bytes += rest;
        continue;
      }
    }
    const std::size_t place = PlaceOf(magics, piece.value());
    if (place < piece.value().size()) return offset_bytes + place;
    if (size == size_bytes - offset_bytes) break;
    offset_bytes += size - (kMagicBytes - 1);
  }
  return size_bytes;
}

}  // namespace ffrecord
