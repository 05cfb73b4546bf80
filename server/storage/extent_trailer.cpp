#include "server/storage/extent_trailer.h"

#include <algorithm>
#include <string>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server {
namespace {

constexpr std::array<std::byte, 8> kMagic{std::byte{0xE5}, std::byte{'E'}, std::byte{'X'},
                                          std::byte{'T'},  std::byte{'E'}, std::byte{'N'},
                                          std::byte{'T'},  std::byte{'1'}};
constexpr std::size_t kFileIdSizeBytes = 16;
constexpr std::size_t kFilePrefixSizeBytes = 12;
constexpr std::size_t kCheckedSizeBytes = ExtentTrailer::kEncodedSizeBytes - 8;

// The id of the file that the extent is a piece of: its own without the extent's number.
std::array<std::byte, kFileIdSizeBytes> FileIdOf(const ExtentId& id) {
  std::array<std::byte, kFileIdSizeBytes> file_id{};
  std::copy_n(id.begin(), kFilePrefixSizeBytes, file_id.begin());
  return file_id;
}

std::string SlotName(const ExtentId& id) {
  constexpr std::size_t kDigitCount = 3;
  const std::string digits = Hex(std::uint64_t{SlotOf(id)});
  return digits.substr(digits.size() - kDigitCount);
}

}  // namespace

std::array<std::byte, ExtentTrailer::kEncodedSizeBytes> EncodeExtentTrailer(
    const ExtentTrailer& trailer) {
  ByteWriter writer;
  writer.PutBytes(kMagic);
  writer.PutBytes(trailer.id);
  writer.PutBytes(FileIdOf(trailer.id));
  writer.Put(trailer.size_bytes);
  writer.Put(trailer.xxh3);
  writer.Put(Xxh3(writer.bytes()));
  std::array<std::byte, ExtentTrailer::kEncodedSizeBytes> bytes;
  FFR_ASSERT(writer.bytes().size() == bytes.size());
  std::ranges::copy(writer.bytes(), bytes.begin());
  return bytes;
}

Result<ExtentTrailer> DecodeExtentTrailer(
    std::span<const std::byte, ExtentTrailer::kEncodedSizeBytes> bytes,
    std::uint64_t file_size_bytes) {
  const auto corrupt = [](const char* what) {
    return Error{ErrorCode::kCorruption, std::string("trailer of an extent: ") + what};
  };
  ByteReader reader(bytes);
  if (!std::ranges::equal(reader.TakeBytes(kMagic.size()), kMagic)) return corrupt("no magic");
  ExtentTrailer trailer;
  std::ranges::copy(reader.TakeBytes(trailer.id.size()), trailer.id.begin());
  const auto file_id = reader.TakeBytes(kFileIdSizeBytes);
  trailer.size_bytes = reader.Take<std::uint64_t>();
  trailer.xxh3 = reader.Take<std::uint64_t>();
  if (reader.Take<std::uint64_t>() != Xxh3(bytes.first<kCheckedSizeBytes>()))
    return corrupt("the check does not fit");
  if (!std::ranges::equal(file_id, FileIdOf(trailer.id))) return corrupt("a foreign file id");
  if (trailer.size_bytes == 0 || trailer.size_bytes > kExtentSizeMax ||
      file_size_bytes != trailer.size_bytes + ExtentTrailer::kEncodedSizeBytes)
    return corrupt("the size is not that of the file");
  return trailer;
}

std::uint32_t SlotOf(const ExtentId& id) noexcept {
  return static_cast<std::uint32_t>(Xxh3(id) % kSlotCount);
}

std::filesystem::path ExtentPath(const ExtentId& id) {
  return std::filesystem::path(SlotName(id)) / Hex(id);
}

bool ParseExtentName(std::string_view slot, std::string_view name, ExtentId& id) {
  // An id has one name: its digits are of lower case.
  return FromHex(name, id) && name == Hex(id) && slot == SlotName(id);
}

}  // namespace ffrecord::server
