#include "libffrecord/format/v1_tables.h"

#include <array>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

Error Corrupt(std::string message) { return {ErrorCode::kCorruption, std::move(message)}; }

// Files from before September 2021 have no metadata CRC. A writer of that time that was killed
// left zeros, so what would otherwise be damage is then an unfinished file.
Error Broken(const V1Header& header, const std::string& found) {
  if (header.metadata_crc32 != 0) return Corrupt("version 1 tables: " + found);
  return Corrupt("version 1 file is incomplete, its writer was killed: metadata CRC 0 and " +
                 found + "; write it again");
}

std::uint64_t LoadOffset(const V1Header& header, std::span<const std::byte> metadata,
                         std::uint64_t index) noexcept {
  return LoadLittleEndian<std::uint64_t>(
      metadata, V1Header::kEncodedSizeBytes + 4 * header.record_count + 8 * index);
}

// The product of two polynomials modulo that of CRC-32; bit 31 is the coefficient of x^0.
constexpr std::uint32_t MultiplyModulo(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1U) != 0 ? b >> 1 ^ 0xEDB88320U : b >> 1;
  }
  return product;
}

}  // namespace

Result<V1Header> DecodeV1Header(std::span<const std::byte> bytes, std::uint64_t file_size_bytes) {
  if (file_size_bytes < V1Header::kEncodedSizeBytes || bytes.size() < V1Header::kEncodedSizeBytes)
    return Corrupt("not an FFRecord file: " + std::to_string(file_size_bytes) +
                   " bytes, and the smallest has 12");
  const V1Header header{LoadLittleEndian<std::uint32_t>(bytes, 0),
                        LoadLittleEndian<std::uint64_t>(bytes, 4)};
  // Divide, do not multiply: 12 * record_count may overflow. A negative count is a huge one here.
  const std::uint64_t tables_size_bytes_max = file_size_bytes - V1Header::kEncodedSizeBytes;
  if (header.record_count > tables_size_bytes_max / V1Header::kTableEntrySizeBytes)
    return Corrupt("not an FFRecord file, or one whose tables were cut: a version 1 header with " +
                   std::to_string(static_cast<std::int64_t>(header.record_count)) +
                   " records does not fit " + std::to_string(file_size_bytes) + " bytes");
  if (header.record_count == 0 && tables_size_bytes_max > 0)
    return Broken(header, "0 records in " + std::to_string(file_size_bytes) + " bytes");
  return header;
}

Result<void> CheckV1Tables(const V1Header& header, std::span<const std::byte> metadata,
                           std::uint64_t file_size_bytes) {
  FFR_ASSERT(metadata.size() == header.metadata_size_bytes());
  if (header.metadata_crc32 != 0 && Crc32(metadata.subspan(4)) != header.metadata_crc32)
    return Corrupt(
        "version 1 tables: metadata CRC does not match; get the file again, or open it "
        "with salvage");
  if (header.record_count == 0) return {};

  std::uint64_t previous = LoadOffset(header, metadata, 0);
  if (previous != header.metadata_size_bytes())
    return Broken(header, "record 0 begins at " + std::to_string(previous) + ", not at " +
                              std::to_string(header.metadata_size_bytes()));
  std::uint64_t whole_count = header.record_count;  // Until an end lies past the file.
  for (std::uint64_t index = 1; index < header.record_count; ++index) {
    const std::uint64_t offset = LoadOffset(header, metadata, index);
    if (offset < previous)
      return Broken(header, "record " + std::to_string(index) + " begins before the one before it");
    if (offset > file_size_bytes && whole_count == header.record_count) whole_count = index - 1;
    previous = offset;
  }
  if (previous > file_size_bytes)
    return Broken(header, "file is truncated at " + std::to_string(file_size_bytes) +
                              " bytes: " + std::to_string(whole_count) + " of " +
                              std::to_string(header.record_count) +
                              " records are whole; get it again, or open it with salvage");
  return {};
}

V1Entry LoadV1Entry(const V1Header& header, std::span<const std::byte> metadata,
                    std::uint64_t index, std::uint64_t file_size_bytes) noexcept {
  FFR_ASSERT(index < header.record_count);
  const bool last = index + 1 == header.record_count;
  return {LoadLittleEndian<std::uint32_t>(metadata, V1Header::kEncodedSizeBytes + 4 * index),
          LoadOffset(header, metadata, index),
          last ? file_size_bytes : LoadOffset(header, metadata, index + 1)};
}

Digest128 V1Fingerprint(std::span<const std::byte> metadata, std::uint64_t file_size_bytes) {
  std::array<std::byte, 8> size;
  StoreLittleEndian(std::span<std::byte>(size), 0, file_size_bytes);
  Xxh3Stream stream;
  stream.Update(metadata.subspan(4));
  stream.Update(size);
  return stream.Finish();
}

std::uint32_t CombineCrc32(std::uint32_t first, std::uint32_t second,
                           std::uint64_t second_size_bytes) noexcept {
  // CRC(A || B) = CRC(A) x^(8 |B|) + CRC(B): raise x^8 to |B| by squaring.
  std::uint32_t power = 1U << 31;   // x^0
  std::uint32_t square = 1U << 23;  // x^8
  for (std::uint64_t left = second_size_bytes; left != 0; left >>= 1) {
    if ((left & 1) != 0) power = MultiplyModulo(power, square);
    square = MultiplyModulo(square, square);
  }
  return MultiplyModulo(power, first) ^ second;
}

}  // namespace ffrecord
