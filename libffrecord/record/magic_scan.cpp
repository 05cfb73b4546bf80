#include "libffrecord/record/magic_scan.h"

#include <algorithm>
#include <cstring>

namespace ffrecord {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kBlockBytes = 4096;

// The place of `magic` in `bytes`, or their size.
std::size_t PlaceOf(const Magic& magic, std::span<const std::byte> bytes) {
  std::size_t begin = 0;
  while (begin + magic.size() <= bytes.size()) {
    const void* found =
        std::memchr(bytes.data() + begin, magic[0], bytes.size() - begin - (magic.size() - 1));
    if (found == nullptr) break;
    begin = static_cast<std::size_t>(static_cast<const std::byte*>(found) - bytes.data());
    if (std::memcmp(found, magic.data(), magic.size()) == 0) return begin;
    ++begin;
  }
  return bytes.size();
}

}  // namespace

std::uint64_t FindMagic(FileWindow& window, std::uint64_t size_bytes, const Magic& magic,
                        std::uint64_t offset_bytes) {
  while (offset_bytes < size_bytes && size_bytes - offset_bytes >= magic.size()) {
    std::uint64_t size = std::min(kPieceBytes, size_bytes - offset_bytes);
    auto piece = window.View(offset_bytes, size);
    if (!piece) {
      // The rest of this block, and enough of the next for a magic that lies across.
      const std::uint64_t rest = kBlockBytes - offset_bytes % kBlockBytes;
      size = std::min(std::max<std::uint64_t>(rest, magic.size()), size_bytes - offset_bytes);
      piece = window.View(offset_bytes, size);
      if (!piece) {
        offset_bytes += rest;
        continue;
      }
    }
    const std::size_t place = PlaceOf(magic, piece.value());
    if (place < piece.value().size()) return offset_bytes + place;
    if (size == size_bytes - offset_bytes) break;
    offset_bytes += size - (magic.size() - 1);
  }
  return size_bytes;
}

}  // namespace ffrecord
