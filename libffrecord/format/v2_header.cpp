#include "libffrecord/format/v2_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::array<std::uint8_t, V2Header::kMagicSizeBytes> kMagic{
    0x89, 'F', 'F', 'R', 'E', 'C', '\r', '\n', 0x1a, '\n', 0x00, 0xff};
constexpr std::size_t kReservedBegin = 64;
constexpr std::size_t kCheckOffset = 120;

Error Corrupt(const std::string& found) {
  return {ErrorCode::kCorruption, "version 2 header: " + found};
}

}  // namespace

bool HasV2Magic(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

bool BeginsLikeAnotherKind(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() < kMagic.size()) return false;
  std::size_t equal_count = 0;
  for (std::size_t i = 0; i < kMagic.size(); ++i)
    equal_count += bytes[i] == std::byte{kMagic[i]} ? 1 : 0;
  // The two highest bytes of a version 1 record count: zeros up to 2^48 records, ones in a negative
  // count, which is damage, and neither in text.
  const auto high = LoadLittleEndian<std::uint16_t>(bytes, 10);
  constexpr std::size_t kEqualMax = 6;
  constexpr int kWrongBitsMax = 1;
  return equal_count <= kEqualMax && high != 0xffff && std::popcount(high) > kWrongBitsMax;
}

Result<V2Header> DecodeV2Header(std::span<const std::byte> bytes) {
  if (bytes.size() < V2Header::kEncodedSizeBytes) return Corrupt("the file is truncated inside it");
  if (!HasV2Magic(bytes)) return Corrupt("magic does not match");
  // The version comes before the check: another version may check otherwise.
  const auto major = LoadLittleEndian<std::uint16_t>(bytes, 12);
  if (major != V2Header::kMajorVersion)
    return Error{ErrorCode::kInvalidArgument,
                 "file has format version " + std::to_string(major) +
                     " and this library reads up to 2; use a newer library"};
  if (LoadLittleEndian<std::uint64_t>(bytes, kCheckOffset) != Xxh3(bytes.first(kCheckOffset)))
    return Corrupt("checksum does not match");

  V2Header header;
  header.minor_version = LoadLittleEndian<std::uint16_t>(bytes, 14);
  header.required_features = LoadLittleEndian<std::uint64_t>(bytes, 16);
  header.append_features = LoadLittleEndian<std::uint64_t>(bytes, 24);
  header.optional_features = LoadLittleEndian<std::uint64_t>(bytes, 32);
  std::memcpy(header.file_id.data(), bytes.data() + 40, header.file_id.size());
  header.alignment_bytes = LoadLittleEndian<std::uint32_t>(bytes, 56);
  header.pages_per_segment = LoadLittleEndian<std::uint32_t>(bytes, 60);

  const std::uint64_t unknown = header.required_features & ~V2Header::kKnownRequired;
  if (unknown != 0)
    return Error{ErrorCode::kInvalidArgument,
                 "file needs features that this library does not know (bits " +
                     std::to_string(unknown) + "); use a newer library"};
  if ((header.required_features & V2Header::kDictionary) != 0 &&
      (header.required_features & V2Header::kZstd) == 0)
    return Corrupt("a file without zstd frames states that they may need a dictionary");
  const std::uint32_t alignment = header.alignment_bytes;
  if (alignment != 1 && alignment != 512 && alignment != 4096)
    return Corrupt("alignment " + std::to_string(alignment) + " is not 1, 512 or 4096");
  if (header.pages_per_segment == 0 || header.pages_per_segment > V2Header::kPagesPerSegmentMax)
    return Corrupt(std::to_string(header.pages_per_segment) + " pages in a segment");
  const auto reserved = bytes.subspan(kReservedBegin, kCheckOffset - kReservedBegin);
  if (std::any_of(reserved.begin(), reserved.end(), [](std::byte b) { return b != std::byte{}; }))
    return Corrupt("reserved bytes are not zero");
  return header;
}

void EncodeV2Header(const V2Header& header,
                    std::span<std::byte, V2Header::kEncodedSizeBytes> encoded) {
  const std::span<std::byte> bytes = encoded;
  std::memset(bytes.data(), 0, bytes.size());
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  StoreLittleEndian(bytes, 12, V2Header::kMajorVersion);
  StoreLittleEndian(bytes, 14, header.minor_version);
  StoreLittleEndian(bytes, 16, header.required_features);
  StoreLittleEndian(bytes, 24, header.append_features);
  StoreLittleEndian(bytes, 32, header.optional_features);
  std::memcpy(bytes.data() + 40, header.file_id.data(), header.file_id.size());
  StoreLittleEndian(bytes, 56, header.alignment_bytes);
  StoreLittleEndian(bytes, 60, header.pages_per_segment);
  StoreLittleEndian(bytes, kCheckOffset, Xxh3(bytes.first(kCheckOffset)));
}

}  // namespace ffrecord
