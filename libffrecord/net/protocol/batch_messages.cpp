#include "libffrecord/net/protocol/batch_messages.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kEntrySizeBytes = 16;
constexpr std::size_t kPieceSizeBytes = 12;
// Bits of what a slab is: where, and what for.
constexpr std::uint32_t kOverRdma = 1;
constexpr std::uint32_t kIsRead = 2;

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

void PutStatuses(ByteWriter& writer, std::span<const EntryStatus> statuses) {
  writer.PutBytes(std::as_bytes(statuses));
}

// Statuses fill the rest: none if nothing failed, else one for each of `count`, of which
// `failed_count` are not kOk. False if it is not so.
bool TakeStatuses(ByteReader& reader, std::uint64_t count, std::uint32_t failed_count,
                  std::vector<EntryStatus>& statuses) {
  if (failed_count == 0) return reader.AtEnd();
  if (!reader.ok() || reader.remaining() != count) return false;
  std::uint64_t failed_seen = 0;
  statuses.reserve(count);
  for (const std::byte byte : reader.TakeBytes(count)) {
    const auto status = std::to_integer<std::uint8_t>(byte);
    if (status > kEntryStatusMax) return false;
    statuses.push_back(static_cast<EntryStatus>(status));
    failed_seen += status != 0;
  }
  return failed_seen == failed_count;
}

}  // namespace

ErrorCode ToErrorCode(EntryStatus status) noexcept {
  switch (status) {
    case EntryStatus::kOk:
      return ErrorCode::kOk;
    case EntryStatus::kNotHere:
      return ErrorCode::kNotFound;
    case EntryStatus::kCorrupt:
      return ErrorCode::kCorruption;
    case EntryStatus::kBusy:
      return ErrorCode::kUnavailable;
    case EntryStatus::kDenied:
      return ErrorCode::kDenied;
    case EntryStatus::kCancelled:
      return ErrorCode::kUnavailable;
    case EntryStatus::kIoError:
      return ErrorCode::kIo;
    case EntryStatus::kOutOfRange:
      return ErrorCode::kCorruption;
    case EntryStatus::kDeadline:
      return ErrorCode::kDeadlineExceeded;
  }
  return ErrorCode::kCorruption;
}

std::vector<std::byte> ExtentBind::Encode() const {
  ByteWriter writer;
  writer.Reserve(8 + ids.size() * sizeof(ExtentId));
  writer.Put(first_index);
  writer.Put(static_cast<std::uint32_t>(ids.size()));
  for (const ExtentId& id : ids) writer.PutBytes(id);
  return std::move(writer).Take();
}

Result<ExtentBind> ExtentBind::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ExtentBind bind;
  bind.first_index = reader.Take<std::uint32_t>();
  const auto count = reader.Take<std::uint32_t>();
  if (!reader.ok() || count == 0 || count > kBindCountMax ||
      bind.first_index > kBoundExtentCountMax - count ||
      reader.remaining() != std::size_t{count} * sizeof(ExtentId))
    return Malformed("EXTENT_BIND");
  bind.ids.resize(count);
  for (ExtentId& id : bind.ids) std::ranges::copy(reader.TakeBytes(sizeof(ExtentId)), id.begin());
  return bind;
}

std::vector<std::byte> ExtentBindReply::Encode() const {
  ByteWriter writer;
  writer.Put(bound_count);
  writer.Put(missing_count);
  PutStatuses(writer, statuses);
  return std::move(writer).Take();
}

Result<ExtentBindReply> ExtentBindReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ExtentBindReply reply;
  reply.bound_count = reader.Take<std::uint32_t>();
  reply.missing_count = reader.Take<std::uint32_t>();
  const std::uint64_t count = std::uint64_t{reply.bound_count} + reply.missing_count;
  if (!TakeStatuses(reader, count, reply.missing_count, reply.statuses))
    return Malformed("reply to EXTENT_BIND");
  return reply;
}

std::vector<std::byte> SlabRegister::Encode() const {
  ByteWriter writer;
  writer.Put(slab_id);
  writer.Put((remote ? kOverRdma : 0) | (use == Use::kIsRead ? kIsRead : 0));
  writer.Put(size_bytes);
  if (remote) {
    writer.Put(remote->address);
    writer.Put(remote->key);
    writer.Put(std::uint32_t{0});
  }
  return std::move(writer).Take();
}

Result<SlabRegister> SlabRegister::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  SlabRegister slab;
  slab.slab_id = reader.Take<std::uint32_t>();
  const auto kind = reader.Take<std::uint32_t>();
  slab.size_bytes = reader.Take<std::uint64_t>();
  slab.use = (kind & kIsRead) != 0 ? Use::kIsRead : Use::kIsWritten;
  if ((kind & kOverRdma) != 0) {
    RemoteRegion remote;
    remote.address = reader.Take<std::uint64_t>();
    remote.key = reader.Take<std::uint32_t>();
    const auto zero = reader.Take<std::uint32_t>();
    // The last byte has an address too.
    if (zero != 0 || remote.address > UINT64_MAX - slab.size_bytes) return Malformed("SLAB_REG");
    slab.remote = remote;
  }
  if (!reader.AtEnd() || kind > (kOverRdma | kIsRead) || slab.slab_id == 0 ||
      slab.slab_id > kSlabCountMax || slab.size_bytes == 0 || slab.size_bytes > kSlabBytesMax ||
      slab.size_bytes % kSlabUnitBytes != 0)
    return Malformed("SLAB_REG");
  return slab;
}

std::vector<std::byte> Cancel::Encode() const {
  ByteWriter writer;
  writer.Put(request_id);
  return std::move(writer).Take();
}

Result<Cancel> Cancel::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const Cancel cancel{reader.Take<std::uint64_t>()};
  if (!reader.AtEnd()) return Malformed("CANCEL");
  return cancel;
}

std::vector<std::byte> Grant::Encode() const {
  ByteWriter writer;
  writer.Put(request_id);
  writer.Put(total_bytes);
  return std::move(writer).Take();
}

Result<Grant> Grant::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Grant grant;
  grant.request_id = reader.Take<std::uint64_t>();
  grant.total_bytes = reader.Take<std::uint64_t>();
  if (!reader.AtEnd()) return Malformed("GRANT");
  return grant;
}

std::vector<std::byte> BatchRead::Encode() const {
  ByteWriter writer;
  writer.Reserve(24 + entries.size() * kEntrySizeBytes);
  writer.Put(slab_id);
  writer.Put(static_cast<std::uint32_t>(entries.size()));
  writer.Put(initial_grant_bytes);
  writer.Put(deadline_ms);
  writer.Put(plan_id);
  writer.Put(static_cast<std::uint8_t>(traffic_class));
  writer.Put(options);
  writer.Put(std::uint16_t{0});
  for (const BatchEntry& entry : entries) {
    writer.Put(entry.extent_index);
    writer.Put(entry.offset_bytes);
    writer.Put(entry.size_bytes);
    writer.Put(entry.slab_offset_bytes);
  }
  return std::move(writer).Take();
}

Result<BatchRead> BatchRead::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  BatchRead batch;
  batch.slab_id = reader.Take<std::uint32_t>();
  const auto count = reader.Take<std::uint32_t>();
  batch.initial_grant_bytes = reader.Take<std::uint32_t>();
  batch.deadline_ms = reader.Take<std::uint32_t>();
  batch.plan_id = reader.Take<std::uint32_t>();
  const auto traffic_class = reader.Take<std::uint8_t>();
  batch.options = reader.Take<std::uint8_t>();
  const auto zero = reader.Take<std::uint16_t>();
  if (!reader.ok() || zero != 0 || count == 0 || count > kBatchEntryCountMax ||
      traffic_class > static_cast<std::uint8_t>(Class::kRepair) || batch.options != 0 ||
      reader.remaining() != std::size_t{count} * kEntrySizeBytes)
    return Malformed("BATCH_READ");
  batch.traffic_class = static_cast<Class>(traffic_class);
  batch.entries.resize(count);
  for (BatchEntry& entry : batch.entries) {
    entry.extent_index = reader.Take<std::uint32_t>();
    entry.offset_bytes = reader.Take<std::uint32_t>();
    entry.size_bytes = reader.Take<std::uint32_t>();
    entry.slab_offset_bytes = reader.Take<std::uint32_t>();
  }
  return batch;
}

std::vector<std::byte> BatchData::Encode() const {
  ByteWriter writer;
  writer.Reserve(pieces.size() * kPieceSizeBytes);
  for (const BatchPiece& piece : pieces) {
    writer.Put(piece.entry);
    writer.Put(piece.offset_bytes);
    writer.Put(piece.size_bytes);
  }
  return std::move(writer).Take();
}

Result<BatchData> BatchData::Decode(std::span<const std::byte> body) {
  if (body.empty() || body.size() % kPieceSizeBytes != 0) return Malformed("BATCH_DATA");
  ByteReader reader(body);
  BatchData data;
  data.pieces.resize(body.size() / kPieceSizeBytes);
  for (BatchPiece& piece : data.pieces) {
    piece.entry = reader.Take<std::uint32_t>();
    piece.offset_bytes = reader.Take<std::uint32_t>();
    piece.size_bytes = reader.Take<std::uint32_t>();
    if (piece.size_bytes == 0) return Malformed("BATCH_DATA");
  }
  return data;
}

std::vector<std::byte> BatchDone::Encode() const {
  ByteWriter writer;
  writer.Put(ok_count);
  writer.Put(failed_count);
  writer.Put(size_bytes);
  writer.Put(queue_us);
  writer.Put(disk_us);
  writer.Put(grant_us);
  writer.Put(send_us);
  PutStatuses(writer, statuses);
  return std::move(writer).Take();
}

Result<BatchDone> BatchDone::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  BatchDone done;
  done.ok_count = reader.Take<std::uint32_t>();
  done.failed_count = reader.Take<std::uint32_t>();
  done.size_bytes = reader.Take<std::uint64_t>();
  done.queue_us = reader.Take<std::uint32_t>();
  done.disk_us = reader.Take<std::uint32_t>();
  done.grant_us = reader.Take<std::uint32_t>();
  done.send_us = reader.Take<std::uint32_t>();
  const std::uint64_t count = std::uint64_t{done.ok_count} + done.failed_count;
  if (!TakeStatuses(reader, count, done.failed_count, done.statuses))
    return Malformed("BATCH_DONE");
  return done;
}

}  // namespace ffrecord::net
