#include "libffrecord/format/user_metadata.h"

#include <string>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/utf8.h"
#include "libffrecord/format/v2_section.h"

namespace ffrecord {
namespace {

constexpr std::size_t kNameSizeMax = 255;
constexpr std::size_t kSizeBytesMax = V2Section::kMetadataSizeBytesMax;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameSizeMax && IsWellFormedUtf8(name) &&
         name.find('\0') == std::string_view::npos;
}

Error Corrupt(const std::string& found) { return {ErrorCode::kCorruption, "metadata: " + found}; }

}  // namespace

Result<std::vector<std::byte>> EncodeMetadata(const Metadata& metadata) {
  std::size_t room = kSizeBytesMax - 4;
  for (const auto& [name, value] : metadata) {
    if (!IsName(name))
      return Error{ErrorCode::kInvalidArgument, "metadata: the name '" +
                                                    name.substr(0, kNameSizeMax) +
                                                    "' is not 1 to 255 bytes of UTF-8 without NUL"};
    const std::size_t around = 1 + name.size() + 4;
    if (room < around || value.size() > room - around)
      return Error{ErrorCode::kInvalidArgument,
                   "metadata: it exceeds 16 MiB; keep large values in records"};
    room -= around + value.size();
  }
  ByteWriter writer;
  writer.Reserve(kSizeBytesMax - room);
  writer.Put(static_cast<std::uint32_t>(metadata.size()));
  for (const auto& [name, value] : metadata) {
    writer.Put(static_cast<std::uint8_t>(name.size()));
    writer.PutText(name);
    writer.Put(static_cast<std::uint32_t>(value.size()));
    writer.PutBytes(value);
  }
  return std::move(writer).Take();
}

Result<Metadata> DecodeMetadata(std::span<const std::byte> bytes) {
  if (bytes.size() > kSizeBytesMax) return Corrupt("section is larger than 16 MiB");
  ByteReader reader(bytes);
  const auto count = reader.Take<std::uint32_t>();
  Metadata metadata;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto name = reader.TakeText(reader.Take<std::uint8_t>());
    const auto value = reader.TakeBytes(reader.Take<std::uint32_t>());
    if (!reader.ok()) return Corrupt("section ends before its values do");
    if (!IsName(name)) return Corrupt("a name is not 1 to 255 bytes of UTF-8 without NUL");
    if (!metadata.empty() && name <= metadata.rbegin()->first)
      return Corrupt("names do not ascend");
    metadata.emplace_hint(metadata.end(), name, std::vector(value.begin(), value.end()));
  }
  if (!reader.AtEnd()) return Corrupt("there are bytes behind the last value");
  return metadata;
}

}  // namespace ffrecord
