#include "libffrecord/format/v2_section.h"

#include <array>
#include <cstring>
#include <string>

#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic{0xe5, 'S', 'E', 'C'};
constexpr std::size_t kCheckedBegin = 8;

std::uint32_t HeaderCheck(std::span<const std::byte> encoded, const FileId& id,
                          std::uint64_t header_offset_bytes) {
  const auto checked =
      encoded.subspan(kCheckedBegin, V2SectionHeader::kEncodedSizeBytes - kCheckedBegin);
  return static_cast<std::uint32_t>(
      Xxh3(checked, SeedOf(id, PlaceTag::kSectionHeader, header_offset_bytes)));
}

}  // namespace

Result<void> CheckSectionSize(const V2Section& section) {
  const auto check = [&](const char* name, std::uint64_t size_bytes_max) -> Result<void> {
    if (section.size_bytes <= size_bytes_max) return {};
    return Error{ErrorCode::kCorruption,
                 std::string(name) + ": section of " + std::to_string(section.size_bytes) +
                     " bytes is larger than " + std::to_string(size_bytes_max) + " bytes"};
  };
  switch (section.type) {
    case V2Section::kSchema:
      return check("schema", V2Section::kSchemaSizeBytesMax);
    case V2Section::kDictionary:
      return check("dictionary", V2Section::kDictionarySizeBytesMax);
    case V2Section::kKeyDirectory:
      return check("key directory", V2Section::kKeyDirectorySizeBytesMax);
    case V2Section::kFacts:
      return check("facts", V2Section::kFactsSizeBytesMax);
    case V2Section::kMetadata:
      return check("metadata", V2Section::kMetadataSizeBytesMax);
    default:
      return {};
  }
}

std::uint64_t SectionCheck(std::span<const std::byte> bytes, const FileId& id,
                           std::uint64_t offset_bytes) {
  return Xxh3(bytes, SeedOf(id, PlaceTag::kSection, offset_bytes));
}

Result<V2SectionHeader> DecodeV2SectionHeader(std::span<const std::byte> bytes, const FileId& id,
                                              std::uint64_t header_offset_bytes) {
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "section header at " + std::to_string(header_offset_bytes) + ": " + found};
  };
  if (bytes.size() < V2SectionHeader::kEncodedSizeBytes)
    return corrupt("the file is truncated inside it");
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return corrupt("magic does not match");
  if (LoadLittleEndian<std::uint32_t>(bytes, 4) != HeaderCheck(bytes, id, header_offset_bytes))
    return corrupt("checksum does not match");
  if (LoadLittleEndian<std::uint32_t>(bytes, 20) != 0)
    return corrupt("reserved bytes are not zero");
  return V2SectionHeader{LoadLittleEndian<std::uint64_t>(bytes, 8),
                         LoadLittleEndian<std::uint32_t>(bytes, 16),
                         LoadLittleEndian<std::uint64_t>(bytes, 24)};
}

void EncodeV2SectionHeader(const V2SectionHeader& header, const FileId& id,
                           std::uint64_t header_offset_bytes,
                           std::span<std::byte, V2SectionHeader::kEncodedSizeBytes> encoded) {
  const std::span<std::byte> bytes = encoded;
  std::memset(bytes.data(), 0, bytes.size());
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  StoreLittleEndian(bytes, 8, header.check);
  StoreLittleEndian(bytes, 16, header.type);
  StoreLittleEndian(bytes, 24, header.size_bytes);
  StoreLittleEndian(bytes, 4, HeaderCheck(bytes, id, header_offset_bytes));
}

}  // namespace ffrecord
