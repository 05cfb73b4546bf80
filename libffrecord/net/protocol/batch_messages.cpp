#include "libffrecord/net/protocol/batch_messages.h"

#include <utility>

#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kEntrySizeBytes = 16;
constexpr std::size_t kPieceSizeBytes = 12;
// Bits of what a slab is: where, and what for.
constexpr std::uint32_t kOverRdma = 1;
constexpr std::uint32_t kIsRead = 2;

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
  PutFields(writer, first_index, static_cast<std::uint32_t>(ids.size()));
  for (const ExtentId& id : ids) writer.PutBytes(id);
  return std::move(writer).Take();
}

Result<ExtentBind> ExtentBind::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ExtentBind bind;
  std::uint32_t count = 0;
  if (!TakeFields(reader, bind.first_index, count) || count == 0 || count > kBindCountMax ||
      bind.first_index > kBoundExtentCountMax - count ||
      reader.remaining() != std::size_t{count} * sizeof(ExtentId))
    return MalformedBody("EXTENT_BIND");
  bind.ids.resize(count);
  for (ExtentId& id : bind.ids) TakeFields(reader, id);
  return bind;
}

std::vector<std::byte> ExtentBindReply::Encode() const {
  return EncodeFields(bound_count, missing_count, std::as_bytes(std::span(statuses)));
}

Result<ExtentBindReply> ExtentBindReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ExtentBindReply reply;
  if (!TakeFields(reader, reply.bound_count, reply.missing_count) ||
      !TakeStatuses(reader, std::uint64_t{reply.bound_count} + reply.missing_count,
                    reply.missing_count, reply.statuses))
    return MalformedBody("reply to EXTENT_BIND");
  return reply;
}

std::vector<std::byte> SlabRegister::Encode() const {
  ByteWriter writer;
  PutFields(writer, slab_id, (remote ? kOverRdma : 0) | (use == Use::kIsRead ? kIsRead : 0),
            size_bytes);
  if (remote) PutFields(writer, remote->address, remote->key, Zeros<4>());
  return std::move(writer).Take();
}

Result<SlabRegister> SlabRegister::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  SlabRegister slab;
  std::uint32_t kind = 0;
  if (!TakeFields(reader, slab.slab_id, kind, slab.size_bytes)) return MalformedBody("SLAB_REG");
  slab.use = (kind & kIsRead) != 0 ? Use::kIsRead : Use::kIsWritten;
  if ((kind & kOverRdma) != 0) {
    RemoteRegion& remote = slab.remote.emplace();
    // The last byte has an address too.
    if (!TakeFields(reader, remote.address, remote.key, Zeros<4>()) ||
        remote.address > UINT64_MAX - slab.size_bytes)
      return MalformedBody("SLAB_REG");
  }
  if (!reader.AtEnd() || kind > (kOverRdma | kIsRead) || slab.slab_id == 0 ||
      slab.slab_id > kSlabCountMax || slab.size_bytes == 0 || slab.size_bytes > kSlabBytesMax ||
      slab.size_bytes % kSlabUnitBytes != 0)
    return MalformedBody("SLAB_REG");
  return slab;
}

std::vector<std::byte> Cancel::Encode() const { return EncodeFields(request_id); }

Result<Cancel> Cancel::Decode(std::span<const std::byte> body) {
  Cancel cancel;
  if (!DecodeFields(body, cancel.request_id)) return MalformedBody("CANCEL");
  return cancel;
}

std::vector<std::byte> Grant::Encode() const { return EncodeFields(request_id, total_bytes); }

Result<Grant> Grant::Decode(std::span<const std::byte> body) {
  Grant grant;
  if (!DecodeFields(body, grant.request_id, grant.total_bytes)) return MalformedBody("GRANT");
  return grant;
}

std::vector<std::byte> BatchRead::Encode() const {
  ByteWriter writer;
  writer.Reserve(24 + entries.size() * kEntrySizeBytes);
  PutFields(writer, slab_id, static_cast<std::uint32_t>(entries.size()), initial_grant_bytes,
            deadline_ms, plan_id, traffic_class, options, Zeros<2>());
  for (const BatchEntry& entry : entries)
    PutFields(writer, entry.extent_index, entry.offset_bytes, entry.size_bytes,
              entry.slab_offset_bytes);
  return std::move(writer).Take();
}

Result<BatchRead> BatchRead::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  BatchRead batch;
  std::uint32_t count = 0;
  if (!TakeFields(reader, batch.slab_id, count, batch.initial_grant_bytes, batch.deadline_ms,
                  batch.plan_id, batch.traffic_class, batch.options, Zeros<2>()) ||
      count == 0 || count > kBatchEntryCountMax || batch.traffic_class > Class::kRepair ||
      batch.options > (BatchRead::kDoubted | BatchRead::kBring | BatchRead::kNamesDisk) ||
      reader.remaining() != std::size_t{count} * kEntrySizeBytes)
    return MalformedBody("BATCH_READ");
  batch.entries.resize(count);
  for (BatchEntry& entry : batch.entries)
    TakeFields(reader, entry.extent_index, entry.offset_bytes, entry.size_bytes,
               entry.slab_offset_bytes);
  return batch;
}

BatchRead::Class StatedClass(TrafficClass traffic) noexcept {
  switch (traffic) {
    case TrafficClass::kPrefetch:
      return BatchRead::Class::kPrefetch;
    case TrafficClass::kCheckpoint:
      return BatchRead::Class::kCheckpoint;
    case TrafficClass::kRepair:
      return BatchRead::Class::kRepair;
    case TrafficClass::kUrgent:
      break;
  }
  return BatchRead::Class::kDemand;
}

TrafficClass TrafficOf(BatchRead::Class stated) noexcept {
  switch (stated) {
    case BatchRead::Class::kPrefetch:
      return TrafficClass::kPrefetch;
    case BatchRead::Class::kCheckpoint:
      return TrafficClass::kCheckpoint;
    case BatchRead::Class::kRepair:
      return TrafficClass::kRepair;
    case BatchRead::Class::kCollective:
    case BatchRead::Class::kDemand:
      break;
  }
  return TrafficClass::kUrgent;
}

std::vector<std::byte> BatchData::Encode() const {
  ByteWriter writer;
  writer.Reserve(pieces.size() * kPieceSizeBytes);
  for (const BatchPiece& piece : pieces)
    PutFields(writer, piece.entry, piece.offset_bytes, piece.size_bytes);
  return std::move(writer).Take();
}

Result<BatchData> BatchData::Decode(std::span<const std::byte> body) {
  if (body.empty() || body.size() % kPieceSizeBytes != 0) return MalformedBody("BATCH_DATA");
  ByteReader reader(body);
  BatchData data;
  data.pieces.resize(body.size() / kPieceSizeBytes);
  for (BatchPiece& piece : data.pieces) {
    TakeFields(reader, piece.entry, piece.offset_bytes, piece.size_bytes);
    if (piece.size_bytes == 0) return MalformedBody("BATCH_DATA");
  }
  return data;
}

std::vector<std::byte> BatchDone::Encode() const {
  ByteWriter writer;
  PutFields(writer, ok_count, failed_count, size_bytes, queue_us, disk_us, grant_us, send_us);
  if (disk) PutFields(writer, *disk);
  PutFields(writer, std::as_bytes(std::span(statuses)));
  return std::move(writer).Take();
}

Result<BatchDone> BatchDone::Decode(std::span<const std::byte> body, bool names_disk) {
  ByteReader reader(body);
  BatchDone done;
  if (!TakeFields(reader, done.ok_count, done.failed_count, done.size_bytes, done.queue_us,
                  done.disk_us, done.grant_us, done.send_us) ||
      (names_disk && !TakeFields(reader, done.disk.emplace())) ||
      !TakeStatuses(reader, std::uint64_t{done.ok_count} + done.failed_count, done.failed_count,
                    done.statuses))
    return MalformedBody("BATCH_DONE");
  return done;
}

}  // namespace ffrecord::net
