#include "libffrecord/format/v2_facts.h"

#include <array>
#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord {

Result<V2Facts> DecodeV2Facts(std::span<const std::byte> bytes) {
  const auto corrupt = [](const char* found) {
    return Error{ErrorCode::kCorruption, std::string("facts: ") + found};
  };
  if (bytes.size() < V2Header::kEncodedSizeBytes) return corrupt("too short for a header");
  V2Facts facts;
  facts.header = FFR_TRY(DecodeV2Header(bytes.first(V2Header::kEncodedSizeBytes)));
  ByteReader reader(bytes.subspan(V2Header::kEncodedSizeBytes));
  facts.key_column = reader.TakeText(reader.Take<std::uint16_t>());
  const auto schema = reader.TakeBytes(reader.Take<std::uint32_t>());
  if (!reader.AtEnd()) return corrupt("the size does not fit the fields");
  facts.schema.assign(schema.begin(), schema.end());
  if (facts.schema.empty() != ((facts.header.required_features & V2Header::kSchema) == 0))
    return corrupt("schema and feature bit do not agree");
  return facts;
}

std::vector<std::byte> EncodeV2Facts(const V2Facts& facts) {
  std::array<std::byte, V2Header::kEncodedSizeBytes> header;
  EncodeV2Header(facts.header, header);
  ByteWriter writer;
  writer.PutBytes(header);
  writer.Put(static_cast<std::uint16_t>(facts.key_column.size()));
  writer.PutText(facts.key_column);
  writer.Put(static_cast<std::uint32_t>(facts.schema.size()));
  writer.PutBytes(facts.schema);
  return std::move(writer).Take();
}

}  // namespace ffrecord
