#include "libffrecord/format/v2_footer.h"

#include <array>
#include <cstring>
#include <string>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_record.h"

namespace ffrecord {
namespace {

constexpr std::array<std::uint8_t, 8> kFooterMagic{0xe5, 'F', 'O', 'O', 'T', 'E', 'R', '2'};
constexpr std::array<std::uint8_t, 8> kTailMagic{0xe5, 'F', 'F', 'R', 'T', 'A', 'I', 'L'};
constexpr std::size_t kTailCheckOffset = 56;

Error Corrupt(const std::string& found) { return {ErrorCode::kCorruption, found}; }

Result<V2Section> DecodeSection(std::span<const std::byte> bytes,
                                std::uint64_t footer_offset_bytes) {
  const V2Section section{
      LoadLittleEndian<std::uint32_t>(bytes, 0), LoadLittleEndian<std::uint64_t>(bytes, 8),
      LoadLittleEndian<std::uint64_t>(bytes, 16), LoadLittleEndian<std::uint64_t>(bytes, 24)};
  if (LoadLittleEndian<std::uint32_t>(bytes, 4) != 0)
    return Corrupt("footer: reserved bytes are not zero");
  if (section.offset_bytes < V2Header::kEncodedSizeBytes ||
      section.offset_bytes > footer_offset_bytes ||
      section.size_bytes > footer_offset_bytes - section.offset_bytes)
    return Corrupt("footer: a section of type " + std::to_string(section.type) +
                   " does not lie between header and footer");
  return section;
}

bool OccursOnce(std::uint32_t type) noexcept {
  return type == V2Section::kSegmentDirectory || type == V2Section::kSchema ||
         type == V2Section::kKeyDirectory || type == V2Section::kMetadata ||
         type == V2Section::kFacts;
}

}  // namespace

std::uint64_t FooterCheck(std::span<const std::byte> bytes, const FileId& id,
                          std::uint64_t offset_bytes) {
  return Xxh3(bytes, SeedOf(id, PlaceTag::kFooter, offset_bytes));
}

const V2Section* V2Footer::Find(std::uint32_t type) const noexcept {
  for (const V2Section& section : sections)
    if (section.type == type) return &section;
  return nullptr;
}

Result<V2Footer> DecodeV2Footer(std::span<const std::byte> bytes, std::uint64_t offset_bytes) {
  if (bytes.size() < V2Footer::kFixedSizeBytes) return Corrupt("footer: shorter than 64 bytes");
  if (std::memcmp(bytes.data(), kFooterMagic.data(), kFooterMagic.size()) != 0)
    return Corrupt("footer: magic does not match");
  V2Footer footer;
  footer.record_count = LoadLittleEndian<std::uint64_t>(bytes, 8);
  footer.raw_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, 16);
  footer.stored_size_bytes = LoadLittleEndian<std::uint64_t>(bytes, 24);
  std::memcpy(footer.fingerprint.data(), bytes.data() + 32, footer.fingerprint.size());
  const auto section_count = LoadLittleEndian<std::uint32_t>(bytes, 56);
  footer.previous_commit_bytes = LoadLittleEndian<std::uint64_t>(bytes, 48);
  if (LoadLittleEndian<std::uint32_t>(bytes, 60) != 0)
    return Corrupt("footer: reserved bytes are not zero");
  if (footer.previous_commit_bytes % V2Footer::kAlignmentBytes != 0 ||
      footer.previous_commit_bytes > offset_bytes)
    return Corrupt("footer: the commit before this one does not lie before it");
  if (footer.record_count > kRecordCountMax)
    return Corrupt("footer: " + std::to_string(footer.record_count) + " records exceed 2^48");
  if (section_count > V2Footer::kSectionCountMax ||
      bytes.size() - V2Footer::kFixedSizeBytes != section_count * V2Footer::kSectionSizeBytes)
    return Corrupt("footer: its size does not fit " + std::to_string(section_count) + " sections");

  std::uint64_t dictionary_count = 0;
  std::uint64_t room_bytes = offset_bytes;
  for (std::size_t i = 0; i < section_count; ++i) {
    auto section =
        DecodeSection(bytes.subspan(V2Footer::kFixedSizeBytes + i * V2Footer::kSectionSizeBytes,
                                    V2Footer::kSectionSizeBytes),
                      offset_bytes);
    if (!section) return std::move(section).error();
    const std::uint32_t type = section.value().type;
    if (OccursOnce(type) && footer.Find(type) != nullptr)
      return Corrupt("footer: two sections of type " + std::to_string(type));
    if (type == V2Section::kDictionary && ++dictionary_count > V2Footer::kDictionaryCountMax)
      return Corrupt("footer: more than 64 dictionaries");
    // Readers keep what they need of each, so that one place listed many times would be kept often.
    if (section.value().size_bytes > room_bytes)
      return Corrupt("footer: its sections have more bytes together than lie before it");
    room_bytes -= section.value().size_bytes;
    footer.sections.push_back(section.value());
  }
  return footer;
}

std::vector<std::byte> EncodeV2Footer(const V2Footer& footer) {
  FFR_ASSERT(footer.sections.size() <= V2Footer::kSectionCountMax);
  std::vector<std::byte> encoded(V2Footer::kFixedSizeBytes +
                                 footer.sections.size() * V2Footer::kSectionSizeBytes);
  const std::span<std::byte> bytes = encoded;
  std::memcpy(bytes.data(), kFooterMagic.data(), kFooterMagic.size());
  StoreLittleEndian(bytes, 8, footer.record_count);
  StoreLittleEndian(bytes, 16, footer.raw_size_bytes);
  StoreLittleEndian(bytes, 24, footer.stored_size_bytes);
  std::memcpy(bytes.data() + 32, footer.fingerprint.data(), footer.fingerprint.size());
  StoreLittleEndian(bytes, 48, footer.previous_commit_bytes);
  StoreLittleEndian(bytes, 56, static_cast<std::uint32_t>(footer.sections.size()));
  std::size_t begin = V2Footer::kFixedSizeBytes;
  for (const V2Section& section : footer.sections) {
    StoreLittleEndian(bytes, begin, section.type);
    StoreLittleEndian(bytes, begin + 8, section.offset_bytes);
    StoreLittleEndian(bytes, begin + 16, section.size_bytes);
    StoreLittleEndian(bytes, begin + 24, section.check);
    begin += V2Footer::kSectionSizeBytes;
  }
  return encoded;
}

std::optional<FileId> FileIdOfV2Tail(
    std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes) noexcept {
  if (std::memcmp(bytes.data(), kTailMagic.data(), kTailMagic.size()) != 0) return std::nullopt;
  FileId id;
  std::memcpy(id.data(), bytes.data() + 32, id.size());
  return id;
}

Result<V2Tail> DecodeV2Tail(std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes,
                            const FileId& id, std::uint64_t file_size_bytes) {
  if (std::memcmp(bytes.data(), kTailMagic.data(), kTailMagic.size()) != 0)
    return Corrupt("file is truncated or was never finished: no tail at its end; get it again");
  const std::uint64_t tail_offset_bytes = file_size_bytes - V2Tail::kEncodedSizeBytes;
  if (LoadLittleEndian<std::uint64_t>(bytes, kTailCheckOffset) !=
      Xxh3(bytes.first(kTailCheckOffset), SeedOf(id, PlaceTag::kTail, tail_offset_bytes)))
    return Corrupt("tail: checksum does not match; the file is damaged, truncated, or joined");
  const V2Tail tail{LoadLittleEndian<std::uint64_t>(bytes, 8),
                    LoadLittleEndian<std::uint64_t>(bytes, 16),
                    LoadLittleEndian<std::uint64_t>(bytes, 24)};
  if (std::memcmp(bytes.data() + 32, id.data(), id.size()) != 0)
    return Corrupt("tail: file id is not that of the header");
  if (LoadLittleEndian<std::uint64_t>(bytes, 48) != file_size_bytes ||
      file_size_bytes % V2Footer::kAlignmentBytes != 0)
    return Corrupt("tail: file size does not match");
  if (tail.footer_offset_bytes % V2Footer::kAlignmentBytes != 0 ||
      tail.footer_offset_bytes < V2Header::kEncodedSizeBytes ||
      tail.footer_offset_bytes > tail_offset_bytes ||
      tail.footer_size_bytes > tail_offset_bytes - tail.footer_offset_bytes ||
      tail.footer_size_bytes > V2Footer::kEncodedSizeBytesMax)
    return Corrupt("tail: the footer does not lie between header and tail");
  return tail;
}

void EncodeV2Tail(const V2Tail& tail, const FileId& id, std::uint64_t file_size_bytes,
                  std::span<std::byte, V2Tail::kEncodedSizeBytes> encoded) {
  const std::span<std::byte> bytes = encoded;
  std::memcpy(bytes.data(), kTailMagic.data(), kTailMagic.size());
  StoreLittleEndian(bytes, 8, tail.footer_offset_bytes);
  StoreLittleEndian(bytes, 16, tail.footer_size_bytes);
  StoreLittleEndian(bytes, 24, tail.footer_check);
  std::memcpy(bytes.data() + 32, id.data(), id.size());
  StoreLittleEndian(bytes, 48, file_size_bytes);
  StoreLittleEndian(bytes, kTailCheckOffset,
                    Xxh3(bytes.first(kTailCheckOffset),
                         SeedOf(id, PlaceTag::kTail, file_size_bytes - V2Tail::kEncodedSizeBytes)));
}

bool LooksLikeV2Tail(std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes, const FileId& id,
                     std::uint64_t begin_bytes, std::uint64_t end_bytes) {
  // Blank bytes have an id of zeros.
  if (id != FileId{} && std::memcmp(bytes.data() + 32, id.data(), id.size()) == 0) return true;
  if (LoadLittleEndian<std::uint64_t>(bytes, 48) == end_bytes) return true;
  const auto footer_offset_bytes = LoadLittleEndian<std::uint64_t>(bytes, 8);
  return std::memcmp(bytes.data(), kTailMagic.data(), kTailMagic.size()) == 0 &&
         footer_offset_bytes >= begin_bytes && footer_offset_bytes < end_bytes;
}

bool LooksLikeV2Footer(std::span<const std::byte> bytes, std::uint64_t begin_bytes,
                       std::uint64_t offset_bytes) {
  if (bytes.size() < V2Footer::kFixedSizeBytes ||
      std::memcmp(bytes.data(), kFooterMagic.data(), kFooterMagic.size()) != 0)
    return false;
  const auto previous_bytes = LoadLittleEndian<std::uint64_t>(bytes, 48);
  return previous_bytes >= begin_bytes && previous_bytes < offset_bytes;
}

}  // namespace ffrecord
