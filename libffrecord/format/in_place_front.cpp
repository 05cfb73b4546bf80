#include "libffrecord/format/in_place_front.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_record.h"

namespace ffrecord {
namespace {

constexpr std::string_view kMagic = "FFRINDEX";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kVersionBegin = 8;
constexpr std::size_t kFormBegin = 12;
constexpr std::size_t kHeadSizeBegin = 16;
constexpr std::size_t kSourceSizeBegin = 24;
constexpr std::size_t kSourceTimeBegin = 32;
constexpr std::size_t kPathSizeBegin = 40;
constexpr std::size_t kPathBegin = 48;
constexpr std::size_t kDescriptionKindBegin = 4048;
constexpr std::size_t kDescriptionSizeBegin = 4056;
constexpr std::size_t kDescriptionTimeBegin = 4064;
constexpr std::size_t kDescriptionDigestBegin = 4072;
constexpr std::size_t kCheckBegin = InPlaceFront::kSizeBytes - 8;
static_assert(kPathBegin + InPlaceFront::kPathSizeBytesMax <= kDescriptionKindBegin);
static_assert(kDescriptionDigestBegin + 8 <= kCheckBegin);

std::uint64_t CheckOf(std::span<const std::byte> bytes) { return Xxh3(bytes.first(kCheckBegin)); }

}  // namespace

Result<InPlaceFront> DecodeInPlaceFront(std::span<const std::byte> bytes) {
  const auto corrupt = [](const char* found) {
    return Error{ErrorCode::kCorruption, std::string("the front of the index ") + found};
  };
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return Error{ErrorCode::kInvalidArgument, "not an index"};
  if (bytes.size() < InPlaceFront::kSizeBytes) return corrupt("is cut off");
  bytes = bytes.first(InPlaceFront::kSizeBytes);
  if (LoadLittleEndian<std::uint64_t>(bytes, kCheckBegin) != CheckOf(bytes))
    return corrupt("is damaged: its checksum does not match");
  const auto form = LoadLittleEndian<std::uint32_t>(bytes, kFormBegin);
  const auto description_kind = LoadLittleEndian<std::uint32_t>(bytes, kDescriptionKindBegin);
  if (LoadLittleEndian<std::uint32_t>(bytes, kVersionBegin) != kVersion ||
      form > static_cast<std::uint32_t>(RecordForm::kTar) ||
      description_kind > static_cast<std::uint32_t>(SourceDescription::Kind::kMdsFolder))
    return Error{ErrorCode::kInvalidArgument, "the index needs a newer version of ffrecord"};
  InPlaceFront front;
  front.form = static_cast<RecordForm>(form);
  front.head_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, kHeadSizeBegin);
  front.source_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, kSourceSizeBegin);
  front.source_time_ns = LoadLittleEndian<std::int64_t>(bytes, kSourceTimeBegin);
  const auto path_size = LoadLittleEndian<std::uint32_t>(bytes, kPathSizeBegin);
  if (front.head_size_bytes % InPlaceFront::kSizeBytes != 0 ||
      front.head_size_bytes >= kPayloadOffsetBytesEnd ||
      front.source_size_bytes >= kPayloadOffsetBytesEnd ||
      path_size > InPlaceFront::kPathSizeBytesMax)
    return corrupt("is impossible");
  front.source_path.assign(reinterpret_cast<const char*>(bytes.data()) + kPathBegin, path_size);
  if (description_kind != 0)
    front.description = {static_cast<SourceDescription::Kind>(description_kind),
                         LoadLittleEndian<std::uint64_t>(bytes, kDescriptionSizeBegin),
                         LoadLittleEndian<std::int64_t>(bytes, kDescriptionTimeBegin),
                         LoadLittleEndian<std::uint64_t>(bytes, kDescriptionDigestBegin)};
  return front;
}

void EncodeInPlaceFront(const InPlaceFront& front,
                        std::span<std::byte, InPlaceFront::kSizeBytes> encoded) {
  FFR_ASSERT(front.source_path.size() <= InPlaceFront::kPathSizeBytesMax);
  std::ranges::fill(encoded, std::byte{});
  std::memcpy(encoded.data(), kMagic.data(), kMagic.size());
  StoreLittleEndian(encoded, kVersionBegin, kVersion);
  StoreLittleEndian(encoded, kFormBegin, static_cast<std::uint32_t>(front.form));
  StoreLittleEndian(encoded, kHeadSizeBegin, front.head_size_bytes);
  StoreLittleEndian(encoded, kSourceSizeBegin, front.source_size_bytes);
  StoreLittleEndian(encoded, kSourceTimeBegin, front.source_time_ns);
  StoreLittleEndian(encoded, kPathSizeBegin, static_cast<std::uint32_t>(front.source_path.size()));
  std::memcpy(encoded.data() + kPathBegin, front.source_path.data(), front.source_path.size());
  const SourceDescription& description = front.description;
  StoreLittleEndian(encoded, kDescriptionKindBegin, static_cast<std::uint32_t>(description.kind));
  StoreLittleEndian(encoded, kDescriptionSizeBegin, description.size_bytes);
  StoreLittleEndian(encoded, kDescriptionTimeBegin, description.time_ns);
  StoreLittleEndian(encoded, kDescriptionDigestBegin, description.digest);
  StoreLittleEndian(encoded, kCheckBegin, CheckOf(encoded));
}

}  // namespace ffrecord
