#include "libffrecord/format/v2_record.h"

#include <array>
#include <cstring>
#include <string>

#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic{0xe5, 'R', 'E', 'C'};
constexpr std::size_t kCheckedBegin = 8;

std::uint32_t HeaderCheck(std::span<const std::byte> encoded, const FileId& id,
                          std::uint64_t header_offset_bytes) {
  const std::uint64_t seed = SeedOf(id, PlaceTag::kRecordHeader, header_offset_bytes);
  const auto checked =
      encoded.subspan(kCheckedBegin, V2RecordHeader::kEncodedSizeBytes - kCheckedBegin);
  return static_cast<std::uint32_t>(Xxh3(checked, seed));
}

}  // namespace

Result<V2RecordHeader> DecodeV2RecordHeader(std::span<const std::byte> bytes, const FileId& id,
                                            std::uint64_t header_offset_bytes) {
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "record header at " + std::to_string(header_offset_bytes) + ": " + found};
  };
  if (bytes.size() < V2RecordHeader::kEncodedSizeBytes)
    return corrupt("the file is truncated inside it");
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return corrupt("magic does not match");
  if (LoadLittleEndian<std::uint32_t>(bytes, 4) != HeaderCheck(bytes, id, header_offset_bytes))
    return corrupt("checksum does not match");
  V2RecordHeader header;
  header.check = LoadLittleEndian<std::uint64_t>(bytes, 8);
  header.index = LoadLittleEndian<std::uint64_t>(bytes, 16, 6);
  header.stored_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, 22, 5);
  header.raw_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, 27, 5);
  if (!SizesAreSane(header.stored_size_bytes, header.raw_size_bytes, true))
    return corrupt("stored and raw size cannot both be right");
  return header;
}

void EncodeV2RecordHeader(const V2RecordHeader& header, const FileId& id,
                          std::uint64_t header_offset_bytes,
                          std::span<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded) {
  const std::span<std::byte> bytes = encoded;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  StoreLittleEndian(bytes, 8, header.check);
  StoreLittleEndian(bytes, 16, header.index, 6);
  StoreLittleEndian(bytes, 22, header.stored_size_bytes, 5);
  StoreLittleEndian(bytes, 27, header.raw_size_bytes, 5);
  StoreLittleEndian(bytes, 4, HeaderCheck(bytes, id, header_offset_bytes));
}

}  // namespace ffrecord
