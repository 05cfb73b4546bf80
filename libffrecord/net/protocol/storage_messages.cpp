#include "libffrecord/net/protocol/storage_messages.h"

#include <utility>

#include "libffrecord/net/protocol/fields.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kListEntrySizeMin = 2 + 1 + 3 * 8;

}  // namespace

std::vector<std::byte> PutBegin::Encode() const { return EncodeFields(id, size_bytes); }

Result<PutBegin> PutBegin::Decode(std::span<const std::byte> body) {
  PutBegin begin;
  if (!DecodeFields(body, begin.id, begin.size_bytes) || begin.id == ExtentId{} ||
      begin.size_bytes == 0 || begin.size_bytes > kPutSizeMax)
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
  return EncodeFields(mode, Zeros<7>(), attempt, expected_revision, name);
}

Result<Publish> Publish::Decode(std::span<const std::byte> body) {
  Publish publish;
  if (!DecodeFields(body, publish.mode, Zeros<7>(), publish.attempt, publish.expected_revision,
                    publish.name) ||
      publish.mode > Mode::kSwap || publish.attempt == 0 ||
      (publish.mode == Mode::kSwap) != (publish.expected_revision != 0))
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

std::vector<std::byte> Resolve::Encode() const { return EncodeFields(name); }

Result<Resolve> Resolve::Decode(std::span<const std::byte> body) {
  Resolve resolve;
  if (!DecodeFields(body, resolve.name)) return MalformedBody("RESOLVE");
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

std::vector<std::byte> Delete::Encode() const { return EncodeFields(expected_revision, name); }

Result<Delete> Delete::Decode(std::span<const std::byte> body) {
  Delete message;
  if (!DecodeFields(body, message.expected_revision, message.name)) return MalformedBody("DELETE");
  FFR_TRY(CheckName(message.name));
  return message;
}

std::vector<std::byte> List::Encode() const { return EncodeFields(limit, prefix, after); }

Result<List> List::Decode(std::span<const std::byte> body) {
  List list;
  if (!DecodeFields(body, list.limit, list.prefix, list.after) || list.limit == 0 ||
      list.limit > kLimitMax || list.prefix.size() > kNameSizeMax ||
      list.after.size() > kNameSizeMax)
    return MalformedBody("LIST");
  return list;
}

std::vector<std::byte> ListReply::Encode() const {
  ByteWriter writer;
  PutFields(writer, more, Zeros<3>(), static_cast<std::uint32_t>(entries.size()));
  for (const Entry& entry : entries)
    PutFields(writer, entry.name, entry.revision, entry.size_bytes, entry.file_count);
  return std::move(writer).Take();
}

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
  if (!reader.AtEnd()) return MalformedBody("reply to LIST");
  return reply;
}

}  // namespace ffrecord::net
