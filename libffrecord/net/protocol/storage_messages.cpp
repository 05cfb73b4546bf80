#include "libffrecord/net/protocol/storage_messages.h"

#include <algorithm>
#include <utility>

#include "libffrecord/net/protocol/fields.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kListEntrySizeMin = 2 + 1 + 3 * 8;

// The last field of a body, which is not there if it is 0.
void PutPatience(ByteWriter& writer, std::uint32_t patience_ms) {
  if (patience_ms != 0) writer.Put(patience_ms);
}

bool TakePatience(ByteReader& reader, std::uint32_t& patience_ms) {
  if (reader.AtEnd()) return true;
  return TakeField(reader, patience_ms) && patience_ms != 0 && reader.AtEnd();
}

// The last field of a body, which is not there if it is false.
void PutAcceptsOld(ByteWriter& writer, bool accepts_old) {
  if (accepts_old) PutField(writer, accepts_old);
}

bool TakeAcceptsOld(ByteReader& reader, bool& accepts_old) {
  if (reader.AtEnd()) return true;
  return TakeField(reader, accepts_old) && accepts_old && reader.AtEnd();
}

}  // namespace

std::vector<std::byte> PutBegin::Encode() const {
  ByteWriter writer;
  PutFields(writer, id, size_bytes);
  if (traffic_class) PutFields(writer, *traffic_class);
  return std::move(writer).Take();
}

Result<PutBegin> PutBegin::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PutBegin begin;
  bool is_good = TakeFields(reader, begin.id, begin.size_bytes);
  if (is_good && !reader.AtEnd()) {
    begin.traffic_class.emplace();
    is_good = TakeFields(reader, *begin.traffic_class) && reader.AtEnd() &&
              *begin.traffic_class >= BatchRead::Class::kDemand &&
              *begin.traffic_class <= BatchRead::Class::kRepair;
  }
  if (!is_good || begin.id == ExtentId{} || begin.size_bytes == 0 || begin.size_bytes > kPutSizeMax)
    return MalformedBody("PUT_BEGIN");
  return begin;
}

std::vector<std::byte> PutBeginReply::Encode() const { return EncodeFields(already_sealed); }

Result<PutBeginReply> PutBeginReply::Decode(std::span<const std::byte> body) {
  PutBeginReply reply;
  if (!DecodeFields(body, reply.already_sealed)) return MalformedBody("reply to PUT_BEGIN");
  return reply;
}

std::vector<std::byte> PutData::Encode() const { return EncodeFields(id, offset_bytes); }

Result<PutData> PutData::Decode(std::span<const std::byte> body) {
  PutData data;
  if (!DecodeFields(body, data.id, data.offset_bytes) || data.offset_bytes >= kPutSizeMax)
    return MalformedBody("PUT_DATA");
  return data;
}

std::vector<std::byte> PutPull::Encode() const {
  return EncodeFields(id, offset_bytes, slab_id, slab_offset_bytes, size_bytes);
}

Result<PutPull> PutPull::Decode(std::span<const std::byte> body) {
  PutPull pull;
  if (!DecodeFields(body, pull.id, pull.offset_bytes, pull.slab_id, pull.slab_offset_bytes,
                    pull.size_bytes) ||
      pull.offset_bytes >= kPutSizeMax || pull.slab_id == 0 || pull.slab_id > kSlabCountMax ||
      pull.size_bytes == 0 || pull.size_bytes > kSizeBytesMax)
    return MalformedBody("PUT_PULL");
  return pull;
}

std::vector<std::byte> PutSeal::Encode() const { return EncodeFields(id, xxh3); }

Result<PutSeal> PutSeal::Decode(std::span<const std::byte> body) {
  PutSeal seal;
  if (!DecodeFields(body, seal.id, seal.xxh3)) return MalformedBody("PUT_SEAL");
  return seal;
}

std::vector<std::byte> Publish::Encode() const {
  ByteWriter writer;
  PutFields(writer, mode, Zeros<7>(), attempt, expected_revision, name);
  PutPatience(writer, patience_ms);
  return std::move(writer).Take();
}

Result<Publish> Publish::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Publish publish;
  if (!TakeFields(reader, publish.mode, Zeros<7>(), publish.attempt, publish.expected_revision,
                  publish.name) ||
      !TakePatience(reader, publish.patience_ms) || publish.mode > Mode::kSwap ||
      publish.attempt == 0 || (publish.mode == Mode::kSwap) != (publish.expected_revision != 0))
    return MalformedBody("PUBLISH");
  FFR_TRY(CheckName(publish.name));
  return publish;
}

std::vector<std::byte> RevisionReply::Encode() const { return EncodeFields(revision); }

Result<RevisionReply> RevisionReply::Decode(std::span<const std::byte> body) {
  RevisionReply reply;
  if (!DecodeFields(body, reply.revision) || reply.revision == 0)
    return MalformedBody("reply with a revision");
  return reply;
}

std::vector<std::byte> Resolve::Encode() const {
  ByteWriter writer;
  PutFields(writer, name);
  PutAcceptsOld(writer, accepts_old);
  return std::move(writer).Take();
}

Result<Resolve> Resolve::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Resolve resolve;
  if (!TakeFields(reader, resolve.name) || !TakeAcceptsOld(reader, resolve.accepts_old))
    return MalformedBody("RESOLVE");
  FFR_TRY(CheckName(resolve.name));
  return resolve;
}

std::vector<std::byte> CheckRoom::Encode() const { return EncodeFields(size_bytes, name); }

Result<CheckRoom> CheckRoom::Decode(std::span<const std::byte> body) {
  CheckRoom message;
  if (!DecodeFields(body, message.size_bytes, message.name)) return MalformedBody("CHECK_ROOM");
  FFR_TRY(CheckName(message.name));
  return message;
}

std::vector<std::byte> Delete::Encode() const {
  ByteWriter writer;
  PutFields(writer, expected_revision, name);
  PutPatience(writer, patience_ms);
  return std::move(writer).Take();
}

Result<Delete> Delete::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Delete message;
  if (!TakeFields(reader, message.expected_revision, message.name) ||
      !TakePatience(reader, message.patience_ms))
    return MalformedBody("DELETE");
  FFR_TRY(CheckName(message.name));
  return message;
}

std::vector<std::byte> List::Encode() const {
  ByteWriter writer;
  PutFields(writer, limit, prefix, after);
  PutAcceptsOld(writer, accepts_old);
  return std::move(writer).Take();
}

Result<List> List::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  List list;
  if (!TakeFields(reader, list.limit, list.prefix, list.after) ||
      !TakeAcceptsOld(reader, list.accepts_old) || list.limit == 0 || list.limit > kLimitMax ||
      list.prefix.size() > kNameSizeMax || list.after.size() > kNameSizeMax)
    return MalformedBody("LIST");
  return list;
}

std::vector<std::byte> ListReply::Encode() const {
  ByteWriter writer;
  PutFields(writer, more, Zeros<3>(), static_cast<std::uint32_t>(entries.size()));
  for (const Entry& entry : entries)
    PutFields(writer, entry.name, entry.revision, entry.size_bytes, entry.file_count);
  if (std::ranges::any_of(entries, [](const Entry& entry) { return !entry.durability.empty(); }))
    for (const Entry& entry : entries) PutFields(writer, entry.durability);
  return std::move(writer).Take();
}

namespace {

// Later versions may have classes that this one does not know: they are shown as they are.
bool IsDurability(const std::string& text) {
  return text.size() <= ListReply::kDurabilitySizeMax && std::ranges::all_of(text, [](char byte) {
           return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == ':' ||
                  byte == '+';
         });
}

// Reads the durability of each entry up to the end of the body; the field is missing if all are
// empty.
bool TakeDurabilities(ByteReader& reader, std::vector<ListReply::Entry>& entries) {
  if (reader.AtEnd()) return true;
  bool is_any_told = false;
  for (ListReply::Entry& entry : entries) {
    if (!TakeFields(reader, entry.durability) || !IsDurability(entry.durability)) return false;
    is_any_told = is_any_told || !entry.durability.empty();
  }
  return is_any_told && reader.AtEnd();
}

}  // namespace

Result<ListReply> ListReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ListReply reply;
  std::uint32_t count = 0;
  if (!TakeFields(reader, reply.more, Zeros<3>(), count) || count > List::kLimitMax ||
      count > reader.remaining() / kListEntrySizeMin)
    return MalformedBody("reply to LIST");
  reply.entries.resize(count);
  for (Entry& entry : reply.entries) {
    if (!TakeFields(reader, entry.name, entry.revision, entry.size_bytes, entry.file_count))
      return MalformedBody("reply to LIST");
    FFR_TRY(CheckName(entry.name));
  }
  if (!TakeDurabilities(reader, reply.entries)) return MalformedBody("reply to LIST");
  return reply;
}

}  // namespace ffrecord::net
