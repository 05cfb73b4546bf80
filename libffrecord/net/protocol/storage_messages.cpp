#include "libffrecord/net/protocol/storage_messages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kListEntrySizeMin = 2 + 1 + 3 * 8;

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

void PutShort(ByteWriter& writer, std::string_view text) {
  FFR_ASSERT(text.size() <= kNameSizeMax);
  writer.Put(static_cast<std::uint16_t>(text.size()));
  writer.PutText(text);
}

std::string TakeShort(ByteReader& reader) {
  return std::string(reader.TakeText(reader.Take<std::uint16_t>()));
}

ExtentId TakeId(ByteReader& reader) {
  ExtentId id{};
  std::ranges::copy(reader.TakeBytes(id.size()), id.begin());
  return id;
}

}  // namespace

std::vector<std::byte> PutBegin::Encode() const {
  ByteWriter writer;
  writer.PutBytes(id);
  writer.Put(size_bytes);
  return std::move(writer).Take();
}

Result<PutBegin> PutBegin::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PutBegin begin;
  begin.id = TakeId(reader);
  begin.size_bytes = reader.Take<std::uint64_t>();
  if (!reader.AtEnd() || begin.id == ExtentId{} || begin.size_bytes == 0 ||
      begin.size_bytes > kPutSizeMax)
    return Malformed("PUT_BEGIN");
  return begin;
}

std::vector<std::byte> PutBeginReply::Encode() const {
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(already_sealed));
  return std::move(writer).Take();
}

Result<PutBeginReply> PutBeginReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const auto sealed = reader.Take<std::uint8_t>();
  if (!reader.AtEnd() || sealed > 1) return Malformed("reply to PUT_BEGIN");
  return PutBeginReply{sealed == 1};
}

std::vector<std::byte> PutData::Encode() const {
  ByteWriter writer;
  writer.PutBytes(id);
  writer.Put(offset_bytes);
  return std::move(writer).Take();
}

Result<PutData> PutData::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PutData data;
  data.id = TakeId(reader);
  data.offset_bytes = reader.Take<std::uint64_t>();
  if (!reader.AtEnd() || data.offset_bytes >= kPutSizeMax) return Malformed("PUT_DATA");
  return data;
}

std::vector<std::byte> PutPull::Encode() const {
  ByteWriter writer;
  writer.PutBytes(id);
  writer.Put(offset_bytes);
  writer.Put(slab_id);
  writer.Put(slab_offset_bytes);
  writer.Put(size_bytes);
  return std::move(writer).Take();
}

Result<PutPull> PutPull::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PutPull pull;
  pull.id = TakeId(reader);
  pull.offset_bytes = reader.Take<std::uint64_t>();
  pull.slab_id = reader.Take<std::uint32_t>();
  pull.slab_offset_bytes = reader.Take<std::uint32_t>();
  pull.size_bytes = reader.Take<std::uint32_t>();
  if (!reader.AtEnd() || pull.offset_bytes >= kPutSizeMax || pull.slab_id == 0 ||
      pull.slab_id > kSlabCountMax || pull.size_bytes == 0 || pull.size_bytes > kSizeBytesMax)
    return Malformed("PUT_PULL");
  return pull;
}

std::vector<std::byte> PutSeal::Encode() const {
  ByteWriter writer;
  writer.PutBytes(id);
  writer.Put(xxh3);
  return std::move(writer).Take();
}

Result<PutSeal> PutSeal::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PutSeal seal;
  seal.id = TakeId(reader);
  seal.xxh3 = reader.Take<std::uint64_t>();
  if (!reader.AtEnd()) return Malformed("PUT_SEAL");
  return seal;
}

std::vector<std::byte> Publish::Encode() const {
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(mode));
  writer.Put(std::uint8_t{0});
  writer.Put(std::uint32_t{0});
  writer.Put(std::uint16_t{0});
  writer.Put(attempt);
  writer.Put(expected_revision);
  PutShort(writer, name);
  return std::move(writer).Take();
}

Result<Publish> Publish::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Publish publish;
  const auto mode = reader.Take<std::uint8_t>();
  const auto zeros = reader.Take<std::uint64_t>(7);
  publish.attempt = reader.Take<std::uint64_t>();
  publish.expected_revision = reader.Take<std::uint64_t>();
  publish.name = TakeShort(reader);
  if (!reader.AtEnd() || zeros != 0 || mode > static_cast<std::uint8_t>(Publish::Mode::kSwap) ||
      publish.attempt == 0)
    return Malformed("PUBLISH");
  publish.mode = static_cast<Mode>(mode);
  if ((publish.mode == Mode::kSwap) != (publish.expected_revision != 0))
    return Malformed("PUBLISH");
  FFR_TRY(CheckName(publish.name));
  return publish;
}

std::vector<std::byte> RevisionReply::Encode() const {
  ByteWriter writer;
  writer.Put(revision);
  return std::move(writer).Take();
}

Result<RevisionReply> RevisionReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const RevisionReply reply{reader.Take<std::uint64_t>()};
  if (!reader.AtEnd() || reply.revision == 0) return Malformed("reply with a revision");
  return reply;
}

std::vector<std::byte> Resolve::Encode() const {
  ByteWriter writer;
  PutShort(writer, name);
  return std::move(writer).Take();
}

Result<Resolve> Resolve::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Resolve resolve{TakeShort(reader)};
  if (!reader.AtEnd()) return Malformed("RESOLVE");
  FFR_TRY(CheckName(resolve.name));
  return resolve;
}

std::vector<std::byte> CheckRoom::Encode() const {
  ByteWriter writer;
  writer.Put(size_bytes);
  PutShort(writer, name);
  return std::move(writer).Take();
}

Result<CheckRoom> CheckRoom::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  CheckRoom message;
  message.size_bytes = reader.Take<std::uint64_t>();
  message.name = TakeShort(reader);
  if (!reader.AtEnd()) return Malformed("CHECK_ROOM");
  FFR_TRY(CheckName(message.name));
  return message;
}

std::vector<std::byte> Delete::Encode() const {
  ByteWriter writer;
  writer.Put(expected_revision);
  PutShort(writer, name);
  return std::move(writer).Take();
}

Result<Delete> Delete::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Delete message;
  message.expected_revision = reader.Take<std::uint64_t>();
  message.name = TakeShort(reader);
  if (!reader.AtEnd()) return Malformed("DELETE");
  FFR_TRY(CheckName(message.name));
  return message;
}

std::vector<std::byte> List::Encode() const {
  ByteWriter writer;
  writer.Put(limit);
  PutShort(writer, prefix);
  PutShort(writer, after);
  return std::move(writer).Take();
}

Result<List> List::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  List list;
  list.limit = reader.Take<std::uint32_t>();
  list.prefix = TakeShort(reader);
  list.after = TakeShort(reader);
  if (!reader.AtEnd() || list.limit == 0 || list.limit > kLimitMax ||
      list.prefix.size() > kNameSizeMax || list.after.size() > kNameSizeMax)
    return Malformed("LIST");
  return list;
}

std::vector<std::byte> ListReply::Encode() const {
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(more));
  writer.Put(std::uint32_t{0}, 3);
  writer.Put(static_cast<std::uint32_t>(entries.size()));
  for (const Entry& entry : entries) {
    PutShort(writer, entry.name);
    writer.Put(entry.revision);
    writer.Put(entry.size_bytes);
    writer.Put(entry.file_count);
  }
  return std::move(writer).Take();
}

Result<ListReply> ListReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ListReply reply;
  const auto more = reader.Take<std::uint8_t>();
  const auto zeros = reader.Take<std::uint32_t>(3);
  const auto count = reader.Take<std::uint32_t>();
  if (!reader.ok() || more > 1 || zeros != 0 || count > List::kLimitMax ||
      count > reader.remaining() / kListEntrySizeMin)
    return Malformed("reply to LIST");
  reply.more = more == 1;
  reply.entries.resize(count);
  for (Entry& entry : reply.entries) {
    entry.name = TakeShort(reader);
    entry.revision = reader.Take<std::uint64_t>();
    entry.size_bytes = reader.Take<std::uint64_t>();
    entry.file_count = reader.Take<std::uint64_t>();
    if (!reader.ok()) break;
    FFR_TRY(CheckName(entry.name));
  }
  if (!reader.AtEnd()) return Malformed("reply to LIST");
  return reply;
}

}  // namespace ffrecord::net
