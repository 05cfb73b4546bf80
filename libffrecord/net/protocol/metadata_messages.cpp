#include "libffrecord/net/protocol/metadata_messages.h"

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kEntrySizeMin = 2 + 8 + 4;

void PutPage(ByteWriter& writer, const MetadataPage& page) {
  FFR_ASSERT(page.entries.size() <= MetadataPage::kCountMax);
  writer.Put(static_cast<std::uint32_t>(page.entries.size()));
  for (const MetadataEntry& entry : page.entries) {
    PutFields(writer, entry.key, entry.revision, static_cast<std::uint32_t>(entry.value.size()));
    writer.PutBytes(entry.value);
  }
}

bool TakePage(ByteReader& reader, MetadataPage& page) {
  std::uint32_t count = 0;
  if (!TakeField(reader, count) || count > MetadataPage::kCountMax ||
      count > reader.remaining() / kEntrySizeMin)
    return false;
  page.entries.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    MetadataEntry entry;
    std::uint32_t size_bytes = 0;
    if (!TakeFields(reader, entry.key, entry.revision, size_bytes) || entry.key.empty() ||
        size_bytes > reader.remaining() || (i > 0 && entry.key <= page.entries.back().key))
      return false;
    const auto bytes = reader.TakeBytes(size_bytes);
    entry.value.assign(bytes.begin(), bytes.end());
    page.entries.push_back(std::move(entry));
  }
  return reader.AtEnd();
}

}  // namespace

bool MetadataPage::Add(MetadataEntry entry) {
  const std::size_t added = entry.key.size() + entry.value.size();
  if (entries.size() == kCountMax || (!entries.empty() && added + size_bytes_ > kSizeMax))
    return false;
  size_bytes_ += added;
  entries.push_back(std::move(entry));
  return true;
}

std::vector<std::byte> MetadataList::Encode() const { return EncodeFields(revision, after); }

Result<MetadataList> MetadataList::Decode(std::span<const std::byte> body) {
  MetadataList request;
  if (!DecodeFields(body, request.revision, request.after)) return MalformedBody("METADATA_LIST");
  return request;
}

std::vector<std::byte> MetadataListReply::Encode() const {
  ByteWriter writer;
  PutFields(writer, revision, more, Zeros<3>());
  PutPage(writer, page);
  return std::move(writer).Take();
}

Result<MetadataListReply> MetadataListReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  MetadataListReply reply;
  if (!TakeFields(reader, reply.revision, reply.more, Zeros<3>()) || !TakePage(reader, reply.page))
    return MalformedBody("reply to METADATA_LIST");
  return reply;
}

std::vector<std::byte> MetadataPut::Encode() const {
  ByteWriter writer;
  PutFields(writer, backup, is_last, Zeros<3>());
  PutPage(writer, page);
  return std::move(writer).Take();
}

Result<MetadataPut> MetadataPut::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  MetadataPut request;
  if (!TakeFields(reader, request.backup, request.is_last, Zeros<3>()) || request.backup == 0 ||
      !TakePage(reader, request.page))
    return MalformedBody("METADATA_PUT");
  return request;
}

std::vector<std::byte> MetadataHistory::Encode() const {
  return EncodeFields(action, removes_returned, Zeros<6>(), incarnation);
}

Result<MetadataHistory> MetadataHistory::Decode(std::span<const std::byte> body) {
  MetadataHistory request;
  if (!DecodeFields(body, request.action, request.removes_returned, Zeros<6>(),
                    request.incarnation) ||
      request.action > Action::kConfirm)
    return MalformedBody("METADATA_HISTORY");
  return request;
}

std::vector<std::byte> AskKnown::Encode() const {
  return EncodeFields(with_names, Zeros<3>(), after);
}

Result<AskKnown> AskKnown::Decode(std::span<const std::byte> body) {
  AskKnown question;
  if (!DecodeFields(body, question.with_names, Zeros<3>(), question.after))
    return MalformedBody("ASK_KNOWN");
  return question;
}

std::vector<std::byte> KnownReply::Encode() const {
  ByteWriter writer;
  PutFields(writer, incarnation, revision, term, term_revision, more, Zeros<3>());
  PutPage(writer, page);
  return std::move(writer).Take();
}

Result<KnownReply> KnownReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  KnownReply reply;
  if (!TakeFields(reader, reply.incarnation, reply.revision, reply.term, reply.term_revision,
                  reply.more, Zeros<3>()) ||
      !TakePage(reader, reply.page))
    return MalformedBody("reply to ASK_KNOWN");
  return reply;
}

}  // namespace ffrecord::net
