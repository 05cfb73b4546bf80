#include "libffrecord/decode/jpeg.h"

namespace ffrecord {
namespace {

// Numbers of a TIFF block, in its own byte order; 0 beyond its end.
class Tiff {
 public:
  explicit Tiff(std::span<const std::byte> bytes) noexcept : bytes_(bytes), little_(At(0) == 'I') {}

  std::uint32_t U16(std::uint64_t at) const noexcept {
    return little_ ? At(at) | At(at + 1) << 8 : At(at) << 8 | At(at + 1);
  }
  std::uint32_t U32(std::uint64_t at) const noexcept {
    return little_ ? U16(at) | U16(at + 2) << 16 : U16(at) << 16 | U16(at + 2);
  }
  bool has(std::uint64_t at, std::uint64_t size) const noexcept {
    return at <= bytes_.size() && size <= bytes_.size() - at;
  }

 private:
  std::uint32_t At(std::uint64_t at) const noexcept {
    return at < bytes_.size() ? std::to_integer<std::uint32_t>(bytes_[at]) : 0;
  }
  std::span<const std::byte> bytes_;
  bool little_;
};

constexpr std::size_t kPrefixSize = 6;  // "Exif", two zeros.
constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint64_t kEntrySize = 12;

}  // namespace

std::uint32_t ExifOrientation(std::span<const std::byte> segment) noexcept {
  constexpr unsigned char kPrefix[kPrefixSize] = {'E', 'x', 'i', 'f', 0, 0};
  if (segment.size() < kPrefixSize + 8) return 1;
  for (std::size_t i = 0; i < kPrefixSize; ++i)
    if (std::to_integer<unsigned char>(segment[i]) != kPrefix[i]) return 1;
  const Tiff tiff(segment.subspan(kPrefixSize));
  const std::uint64_t directory = tiff.U32(4);
  if (!tiff.has(directory, 2)) return 1;
  const std::uint32_t count = tiff.U16(directory);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t entry = directory + 2 + kEntrySize * i;
    if (!tiff.has(entry, kEntrySize)) return 1;
    if (tiff.U16(entry) != kOrientationTag) continue;
    const std::uint32_t orientation = tiff.U16(entry + 8);
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
  }
  return 1;
}

}  // namespace ffrecord
