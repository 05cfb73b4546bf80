#include "libffrecord/format/checkpoint_manifest.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include <ffrecord/checkpoint_dtype.h>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/utf8.h"
#include "libffrecord/format/checkpoint_values.h"

namespace ffrecord {
namespace {

constexpr std::array<std::byte, 8> kMagic{std::byte{0x89}, std::byte{0x46}, std::byte{0x46},
                                          std::byte{0x43}, std::byte{0x4B}, std::byte{0x0D},
                                          std::byte{0x0A}, std::byte{0x1A}};
constexpr std::uint16_t kMajor = 1;
constexpr std::uint16_t kMinorOnALine = 1;       // Root: its generation follows the tree.
constexpr std::uint16_t kMinorWithContents = 1;  // Part: XXH3-128s follow the boxes.
constexpr std::uint16_t kMinorWithDigests = 2;   // Part: digests follow these.
constexpr std::size_t kSegmentEntrySize = 40;
constexpr std::size_t kBoxEntrySizeMin = 24;  // Size of a 0-d box with an empty key.
constexpr std::size_t kPartHeadSize = 36;
constexpr std::size_t kPartEntrySize = 32;

enum class Kind : std::uint32_t { kRoot = 1, kPart = 2 };

std::string_view NameOf(Kind kind) {
  return kind == Kind::kRoot ? "root manifest" : "part manifest";
}

Error Bad(Kind kind, std::string_view what) {
  return Error{ErrorCode::kCorruption, std::string(NameOf(kind)) + ": " + std::string(what)};
}

std::vector<std::byte> Framed(Kind kind, std::uint16_t minor, std::span<const std::byte> body) {
  ByteWriter writer;
  writer.PutBytes(kMagic);
  writer.Put(kMajor);
  writer.Put(minor);
  writer.Put(static_cast<std::uint32_t>(kind));
  writer.Put(static_cast<std::uint64_t>(body.size()));
  writer.Reserve(writer.bytes().size() + body.size() + sizeof(Digest128));
  writer.PutBytes(body);
  writer.PutBytes(Xxh3Digest(writer.bytes()));
  return std::move(writer).Take();
}

struct Body {
  std::span<const std::byte> bytes;
  std::uint16_t minor;  // A newer one than is known appends fields.
};

// The checksum comes before the version, so that a flipped bit is damage and not "too new".
Result<Body> Unframed(Kind kind, std::span<const std::byte> bytes) {
  ByteReader cursor(bytes);
  const auto magic = cursor.TakeBytes(kMagic.size());
  const auto major = cursor.Take<std::uint16_t>();
  const auto minor = cursor.Take<std::uint16_t>();
  const auto stated_kind = cursor.Take<std::uint32_t>();
  const auto body_size = cursor.Take<std::uint64_t>();
  if (!cursor.ok()) return Bad(kind, "shorter than its header");
  if (!std::equal(magic.begin(), magic.end(), kMagic.begin())) return Bad(kind, "wrong magic");
  if (bytes.size() > kManifestSizeMax) return Bad(kind, "larger than 256 MiB");
  const auto body = cursor.TakeBytes(body_size);
  const auto check = cursor.TakeBytes(sizeof(Digest128));
  if (!cursor.ok() || cursor.remaining() != 0)
    return Bad(kind, "its size is not the one that it states");
  const Digest128 digest = Xxh3Digest(bytes.first(bytes.size() - sizeof(Digest128)));
  if (!std::equal(check.begin(), check.end(), digest.begin()))
    return Bad(kind, "checksum mismatch");
  if (major != kMajor)
    return Error{ErrorCode::kInvalidArgument,
                 std::string(NameOf(kind)) + ": version " + std::to_string(major) +
                     " was written by a newer ffrecord; this one reads version 1: update it"};
  if (stated_kind != static_cast<std::uint32_t>(kind)) return Bad(kind, "another kind of manifest");
  return Body{body, minor};
}

Result<void> CheckEnd(Kind kind, const ByteReader& cursor, const Body& body) {
  const bool may_have_more = body.minor > (kind == Kind::kRoot ? kMinorOnALine : kMinorWithDigests);
  if (!cursor.ok()) return Bad(kind, "ends early");
  if (cursor.remaining() != 0 && !may_have_more) return Bad(kind, "bytes follow the last field");
  return {};
}

// A bound for the body of a part.
std::size_t EncodedSizeMax(const PartManifest& part) {
  std::size_t size = kPartHeadSize + part.segments.size() * kSegmentEntrySize;
  for (const StoredBox& box : part.boxes)
    size += kBoxEntrySizeMin + box.key.size() + 3 * sizeof(std::uint64_t) * box.shape.size() +
            sizeof(Digest128) + sizeof(std::uint64_t);
  return size;
}

void EncodeBox(ByteWriter& writer, const StoredBox& box) {
  const auto dtype = CheckpointDtypeOf(box.dtype);
  FFR_ASSERT(dtype != nullptr);
  FFR_ASSERT(box.key.size() <= kCheckpointKeySizeMax);
  FFR_ASSERT(box.shape.size() == box.offset.size());
  FFR_ASSERT(box.shape.size() == box.extent.size());
  writer.Put(static_cast<std::uint16_t>(box.key.size()));
  writer.PutText(box.key);
  writer.Put(dtype->code);
  writer.Put(static_cast<std::uint8_t>(box.shape.size()));
  for (const auto* list : {&box.shape, &box.offset, &box.extent})
    for (const std::uint64_t value : *list) writer.Put(value);
  writer.Put(box.segment);
  writer.Put(box.offset_bytes);
  writer.Put(box.size_bytes);
}

std::vector<std::uint64_t> Integers(ByteReader& cursor, std::size_t count) {
  std::vector<std::uint64_t> values(count);
  for (auto& value : values) value = cursor.Take<std::uint64_t>();
  return values;
}

Result<StoredBox> DecodeBox(ByteReader& cursor, std::span<const StoredSegment> segments) {
  StoredBox box;
  box.key = cursor.TakeText(cursor.Take<std::uint16_t>());
  const auto dtype = CheckpointDtypeOf(cursor.Take<std::uint8_t>());
  const std::size_t dimensions = cursor.Take<std::uint8_t>();
  if (!cursor.ok()) return Bad(Kind::kPart, "ends early");
  if (box.key.empty() || box.key.size() > kCheckpointKeySizeMax || !IsWellFormedUtf8(box.key))
    return Bad(Kind::kPart, "a key is empty, over 4,096 bytes, or not UTF-8");
  if (!dtype) return Bad(Kind::kPart, box.key + ": unknown element type");
  if (dimensions > kCheckpointDimensionsMax)
    return Bad(Kind::kPart, box.key + ": too many dimensions");
  box.dtype = dtype->name;
  box.shape = Integers(cursor, dimensions);
  box.offset = Integers(cursor, dimensions);
  box.extent = Integers(cursor, dimensions);
  box.segment = cursor.Take<std::uint32_t>();
  box.offset_bytes = cursor.Take<std::uint64_t>();
  box.size_bytes = cursor.Take<std::uint64_t>();
  if (!cursor.ok()) return Bad(Kind::kPart, "ends early");
  const auto size = SizeOfBox(box.dtype, box.shape, box.offset, box.extent);
  if (!size) return Bad(Kind::kPart, box.key + ": " + size.error().message);
  if (size.value() != box.size_bytes) return Bad(Kind::kPart, box.key + ": its size is wrong");
  if (box.size_bytes == 0) return box;
  if (box.segment >= segments.size()) return Bad(Kind::kPart, box.key + ": no such segment");
  const std::uint64_t payload = segments[box.segment].payload_size_bytes;
  if (box.size_bytes > payload || box.offset_bytes > payload - box.size_bytes)
    return Bad(Kind::kPart, box.key + ": lies outside its segment");
  return box;
}

Result<std::vector<StoredSegment>> DecodeSegments(ByteReader& cursor) {
  const auto count = cursor.Take<std::uint32_t>();
  if (count > cursor.remaining() / kSegmentEntrySize)
    return Bad(Kind::kPart, "more segments than bytes");
  std::vector<StoredSegment> segments(count);
  for (auto& segment : segments) {
    segment.id = TakeId(cursor);
    segment.payload_size_bytes = cursor.Take<std::uint64_t>();
    segment.table_digest = TakeId(cursor);
    if (segment.payload_size_bytes > kSegmentPayloadMax ||
        segment.payload_size_bytes % kSegmentAlignment != 0)
      return Bad(Kind::kPart, "a segment's size is impossible");
  }
  return segments;
}

}  // namespace

std::vector<std::byte> EncodePartManifest(const PartManifest& part) {
  ByteWriter body;
  body.Reserve(EncodedSizeMax(part));
  body.Put(part.step);
  body.PutBytes(part.attempt);
  body.Put(part.rank);
  body.Put(static_cast<std::uint32_t>(part.segments.size()));
  for (const StoredSegment& segment : part.segments) {
    body.PutBytes(segment.id);
    body.Put(segment.payload_size_bytes);
    body.PutBytes(segment.table_digest);
  }
  body.Put(static_cast<std::uint32_t>(part.boxes.size()));
  for (const StoredBox& box : part.boxes) EncodeBox(body, box);
  const std::uint16_t minor = part.has_digests    ? kMinorWithDigests
                              : part.has_contents ? kMinorWithContents
                                                  : 0;
  // Readers of minor version 1 take them where they are in any version from 1 on.
  if (minor >= kMinorWithContents)
    for (const StoredBox& box : part.boxes)
      body.PutBytes(part.has_contents ? box.content : Digest128{});
  if (part.has_digests)
    for (const StoredBox& box : part.boxes) body.Put(box.digest);
  return Framed(Kind::kPart, minor, body.bytes());
}

Result<PartManifest> DecodePartManifest(std::span<const std::byte> bytes) {
  const Body body = FFR_TRY(Unframed(Kind::kPart, bytes));
  ByteReader cursor(body.bytes);
  PartManifest part;
  part.step = cursor.Take<std::uint64_t>();
  part.attempt = TakeId(cursor);
  part.rank = cursor.Take<std::uint32_t>();
  part.segments = FFR_TRY(DecodeSegments(cursor));
  const auto box_count = cursor.Take<std::uint32_t>();
  if (!cursor.ok()) return Bad(Kind::kPart, "ends early");
  if (part.rank >= kCheckpointRanksMax) return Bad(Kind::kPart, "its rank is impossible");
  if (box_count > cursor.remaining() / kBoxEntrySizeMin)
    return Bad(Kind::kPart, "more tensors than bytes");
  part.boxes.reserve(box_count);
  for (std::uint32_t i = 0; i < box_count; ++i) {
    part.boxes.push_back(FFR_TRY(DecodeBox(cursor, part.segments)));
    if (i == 0) continue;
    const StoredBox& before = part.boxes[i - 1];
    const StoredBox& box = part.boxes[i];
    if (std::tie(before.key, before.offset) >= std::tie(box.key, box.offset))
      return Bad(Kind::kPart, box.key + ": out of order");
  }
  part.has_contents = body.minor == kMinorWithContents;
  part.has_digests = body.minor >= kMinorWithDigests;
  if (body.minor >= kMinorWithContents)
    for (StoredBox& box : part.boxes) {
      box.content = TakeId(cursor);
      part.has_contents = part.has_contents || box.content != Digest128{};
    }
  if (part.has_digests)
    for (StoredBox& box : part.boxes) box.digest = cursor.Take<std::uint64_t>();
  FFR_TRY(CheckEnd(Kind::kPart, cursor, body));
  return part;
}

std::vector<std::byte> EncodeRootManifest(const RootManifest& root) {
  ByteWriter body;
  body.Put(root.step);
  body.PutBytes(root.attempt);
  body.Put(static_cast<std::uint32_t>(root.parts.size()));
  for (const RootManifest::Part& part : root.parts) {
    body.Put(part.manifest_size_bytes);
    body.PutBytes(part.manifest_digest);
    body.Put(part.tensor_bytes);
  }
  body.Put(static_cast<std::uint32_t>(root.tree.size()));
  body.PutBytes(root.tree);
  if (root.generation != 0) body.Put(root.generation);
  return Framed(Kind::kRoot, root.generation != 0 ? kMinorOnALine : 0, body.bytes());
}

Result<RootManifest> DecodeRootManifest(std::span<const std::byte> bytes) {
  const Body body = FFR_TRY(Unframed(Kind::kRoot, bytes));
  ByteReader cursor(body.bytes);
  RootManifest root;
  root.step = cursor.Take<std::uint64_t>();
  root.attempt = TakeId(cursor);
  const auto part_count = cursor.Take<std::uint32_t>();
  if (part_count == 0 || part_count > kCheckpointRanksMax ||
      part_count > cursor.remaining() / kPartEntrySize)
    return Bad(Kind::kRoot, "its count of rank shards is impossible");
  root.parts.resize(part_count);
  for (auto& part : root.parts) {
    part.manifest_size_bytes = cursor.Take<std::uint64_t>();
    part.manifest_digest = TakeId(cursor);
    part.tensor_bytes = cursor.Take<std::uint64_t>();
    if (part.manifest_size_bytes > kManifestSizeMax || part.tensor_bytes > kSegmentPayloadMax)
      return Bad(Kind::kRoot, "the size of a rank shard is impossible");
  }
  const auto tree = cursor.TakeBytes(cursor.Take<std::uint32_t>());
  root.tree.assign(tree.begin(), tree.end());
  if (body.minor >= kMinorOnALine) root.generation = cursor.Take<std::uint64_t>();
  FFR_TRY(CheckEnd(Kind::kRoot, cursor, body));
  const auto keys = CheckValues(root.tree);
  if (!keys) return Bad(Kind::kRoot, keys.error().message);
  return root;
}

Result<std::uint64_t> SizeOfBox(std::string_view dtype, std::span<const std::uint64_t> shape,
                                std::span<const std::uint64_t> offset,
                                std::span<const std::uint64_t> extent) {
  const auto bad = [](std::string what) {
    return Error{ErrorCode::kInvalidArgument, std::move(what)};
  };
  const auto type = CheckpointDtypeOf(dtype);
  if (!type) return bad("unknown element type " + std::string(dtype));
  if (shape.size() > kCheckpointDimensionsMax || offset.size() != shape.size() ||
      extent.size() != shape.size())
    return bad("shape, offset and extent differ in dimensions, or have more than 64");
  // Zero-sized dimensions are left out of the first product, so that it bounds the second.
  std::uint64_t whole = type->size_bytes;
  std::uint64_t size = type->size_bytes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (extent[d] > shape[d] || offset[d] > shape[d] - extent[d])
      return bad("the slice exceeds the tensor in dimension " + std::to_string(d));
    if (shape[d] > 0 && whole > (kSegmentPayloadMax - 1) / shape[d])
      return bad("the tensor has 2^48 bytes or more");
    whole *= std::max<std::uint64_t>(shape[d], 1);
    size *= extent[d];
  }
  return size;
}

}  // namespace ffrecord
