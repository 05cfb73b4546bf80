// Goal: each structure of version 2 is encoded as format.md says and refused when it is wrong.
// Method: encode and decode; then each single bit flipped; then values that are valid bytes with
// valid checks but cannot be.

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "bytes.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/format/v2_section.h"

namespace ffrecord {
namespace {

const FileId kId{std::byte{1}, std::byte{2}, std::byte{3}};

V2Header MakeHeader() {
  V2Header header;
  header.required_features = V2Header::kZstd;
  header.optional_features = 1ULL << 63;
  header.file_id = kId;
  header.alignment_bytes = 512;
  header.pages_per_segment = 7;
  return header;
}

using EncodedHeader = std::array<std::byte, V2Header::kEncodedSizeBytes>;

EncodedHeader Encode(const V2Header& header) {
  EncodedHeader encoded;
  EncodeV2Header(header, encoded);
  return encoded;
}

// Applies `decode` to `bytes` with each bit flipped in turn; returns how many were accepted.
template <class Bytes, class Decode>
int AcceptedFlips(Bytes bytes, Decode decode) {
  int accepted = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    if (decode(bytes)) ++accepted;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  return accepted;
}

TEST(V2HeaderTest, DecodesWhatWasEncodedAndNoFlip) {
  const EncodedHeader encoded = Encode(MakeHeader());
  EXPECT_EQ(DecodeV2Header(encoded).value(), MakeHeader());
  EXPECT_EQ(AcceptedFlips(encoded, [](const auto& bytes) { return bool(DecodeV2Header(bytes)); }),
            0);
}

TEST(V2HeaderTest, AsVersion1ItsCountIsNegative) {
  EXPECT_LT(LoadLittleEndian<std::int64_t>(Encode(MakeHeader()), 4), 0);
}

TEST(V2HeaderTest, NeedOfANewerLibraryIsNotCalledDamage) {
  V2Header header = MakeHeader();
  header.required_features = V2Header::kKnownRequired + 1;
  EXPECT_EQ(DecodeV2Header(Encode(header)).error().code, ErrorCode::kInvalidArgument);
  EncodedHeader encoded = Encode(MakeHeader());
  encoded[12] = std::byte{3};
  EXPECT_EQ(DecodeV2Header(encoded).error().code, ErrorCode::kInvalidArgument);
}

TEST(V2HeaderTest, UnknownFeaturesThatDoNotConcernReadersAreIgnored) {
  V2Header header = MakeHeader();
  header.append_features = ~0ULL;
  header.optional_features = ~0ULL;
  header.minor_version = 9;
  EXPECT_EQ(DecodeV2Header(Encode(header)).value(), header);
}

TEST(V2HeaderTest, ImpossibleValuesAreRefused) {
  V2Header header = MakeHeader();
  header.alignment_bytes = 2;
  EXPECT_EQ(DecodeV2Header(Encode(header)).error().code, ErrorCode::kCorruption);
  header = MakeHeader();
  header.required_features = V2Header::kDictionary;  // Of zstd frames, which it says it lacks.
  EXPECT_EQ(DecodeV2Header(Encode(header)).error().code, ErrorCode::kCorruption);
  header = MakeHeader();
  header.pages_per_segment = 0;
  EXPECT_EQ(DecodeV2Header(Encode(header)).error().code, ErrorCode::kCorruption);
  header.pages_per_segment = V2Header::kPagesPerSegmentMax + 1;
  EXPECT_EQ(DecodeV2Header(Encode(header)).error().code, ErrorCode::kCorruption);
  EncodedHeader encoded = Encode(MakeHeader());
  encoded[100] = std::byte{1};
  StoreLittleEndian(std::span<std::byte>(encoded), 120, Xxh3(std::span(encoded).first(120)));
  EXPECT_EQ(DecodeV2Header(encoded).error().code, ErrorCode::kCorruption);
}

TEST(V2RecordTest, HeaderDecodesOnlyInItsPlaceAndFile) {
  const V2RecordHeader header{0x1234567890abcdef, kRecordCountMax - 1, 5, 7};
  std::array<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded;
  EncodeV2RecordHeader(header, kId, 4096, encoded);

  EXPECT_EQ(DecodeV2RecordHeader(encoded, kId, 4096).value(), header);
  EXPECT_FALSE(DecodeV2RecordHeader(encoded, kId, 4097));
  EXPECT_FALSE(DecodeV2RecordHeader(encoded, FileId{}, 4096));
  EXPECT_FALSE(DecodeV2RecordHeader(std::span(encoded).first(31), kId, 4096));
  EXPECT_EQ(
      AcceptedFlips(encoded,
                    [](const auto& bytes) { return bool(DecodeV2RecordHeader(bytes, kId, 4096)); }),
      0);
}

TEST(V2RecordTest, HeaderWithSizesThatNoFrameHasIsRefused) {
  const V2RecordHeader header{1, 2, 7, 5};
  std::array<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded;
  EncodeV2RecordHeader(header, kId, 4096, encoded);
  EXPECT_EQ(DecodeV2RecordHeader(encoded, kId, 4096).error().code, ErrorCode::kCorruption);
}

TEST(V2RecordTest, PayloadLeavesRoomForItsHeader) {
  EXPECT_EQ(PayloadOffsetAfter(128, 1), 160U);
  EXPECT_EQ(PayloadOffsetAfter(128, 512), 512U);
  EXPECT_EQ(PayloadOffsetAfter(480, 512), 512U);
  EXPECT_EQ(PayloadOffsetAfter(481, 512), 1024U);
  EXPECT_EQ(PayloadOffsetAfter(4064, 4096), 4096U);
}

TEST(V2RecordTest, SizesThatNoFrameHasAreInsane) {
  EXPECT_TRUE(SizesAreSane(0, 0, false));
  EXPECT_TRUE(SizesAreSane(5, 7, true));
  EXPECT_FALSE(SizesAreSane(5, 7, false));
  EXPECT_FALSE(SizesAreSane(7, 5, true));
  EXPECT_FALSE(SizesAreSane(0, 1, true));
  EXPECT_FALSE(SizesAreSane(16, (std::uint64_t{1} << 40) - 1, true));
}

using Page = std::array<std::byte, kIndexPageSizeBytes>;

Page MakePage(std::uint64_t entry_count) {
  Page page{};
  for (std::uint64_t slot = 0; slot < entry_count; ++slot)
    StoreIndexEntry({slot * 31, kPayloadOffsetBytesEnd - 1 - slot, slot, kRecordSizeBytesEnd - 1},
                    slot, page);
  SealIndexPage(kId, 9, entry_count, page);
  return page;
}

TEST(V2IndexTest, PageDecodesOnlyInItsPlaceAndFile) {
  const Page page = MakePage(170);
  EXPECT_TRUE(CheckIndexPage(page, kId, 9, 170));
  EXPECT_FALSE(CheckIndexPage(page, kId, 8, 170));
  EXPECT_FALSE(CheckIndexPage(page, FileId{}, 9, 170));
  EXPECT_FALSE(CheckIndexPage(page, kId, 9, 169));
  const RecordLocation last{169 * 31, kPayloadOffsetBytesEnd - 170, 169, kRecordSizeBytesEnd - 1};
  EXPECT_EQ(DecodeIndexEntry(IndexEntryIn(page.data(), 169)), last);
  EXPECT_EQ(AcceptedFlips(
                page, [](const auto& bytes) { return bool(CheckIndexPage(bytes, kId, 9, 170)); }),
            0);
}

TEST(V2IndexTest, UnusedEntriesMustBeZero) {
  Page page = MakePage(3);
  EXPECT_TRUE(CheckIndexPage(page, kId, 9, 3));
  page[4095] = std::byte{1};
  SealIndexPage(kId, 9, 3, page);
  EXPECT_FALSE(CheckIndexPage(page, kId, 9, 3));
}

TEST(V2IndexTest, GeometryCountsPagesAndSegments) {
  const IndexGeometry none{0, 256};
  EXPECT_EQ(none.page_count(), 0U);
  EXPECT_EQ(none.segment_count(), 0U);
  const IndexGeometry some{171, 1};
  EXPECT_EQ(some.page_count(), 2U);
  EXPECT_EQ(some.segment_count(), 2U);
  EXPECT_EQ(some.entries_in_page(0), 170U);
  EXPECT_EQ(some.entries_in_page(1), 1U);
  const IndexGeometry many{170 * 256 + 1, 256};
  EXPECT_EQ(many.segment_count(), 2U);
  EXPECT_EQ(many.segment_size_bytes(0), 256 * kIndexPageSizeBytes);
  EXPECT_EQ(many.segment_size_bytes(1), kIndexPageSizeBytes);
}

V2Footer MakeFooter() {
  V2Footer footer;
  footer.record_count = 3;
  footer.raw_size_bytes = 30;
  footer.stored_size_bytes = 20;
  footer.fingerprint[0] = std::byte{0xaa};
  footer.sections = {{V2Section::kSegmentDirectory, 4096, 8, 77}, {99, 5000, 4, 88}};
  return footer;
}

TEST(V2FooterTest, DecodesWhatWasEncoded) {
  const auto encoded = EncodeV2Footer(MakeFooter());
  const V2Footer footer = DecodeV2Footer(encoded, 8192).value();
  EXPECT_EQ(footer.record_count, 3U);
  EXPECT_EQ(footer.fingerprint, MakeFooter().fingerprint);
  EXPECT_EQ(footer.sections, MakeFooter().sections);
  EXPECT_EQ(footer.Find(99)->check, 88U);
  EXPECT_EQ(footer.Find(98), nullptr);
}

TEST(V2FooterTest, SectionsOutsideTheFileAreRefused) {
  EXPECT_TRUE(DecodeV2Footer(EncodeV2Footer(MakeFooter()), 5004));
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(MakeFooter()), 5003));
  V2Footer footer = MakeFooter();
  footer.sections[1].size_bytes = ~std::uint64_t{0};
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
  footer = MakeFooter();
  footer.sections[1].offset_bytes = 127;
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
}

// Each is kept by who reads it: a place that is listed many times would be kept as often.
TEST(V2FooterTest, SectionsHaveNoMoreBytesTogetherThanLieBeforeTheFooter) {
  V2Footer footer;
  for (int i = 0; i < 2; ++i) footer.sections.push_back({V2Section::kDictionary, 4096, 4096, 0});
  EXPECT_TRUE(DecodeV2Footer(EncodeV2Footer(footer), 4096 + 8192));
  footer.sections.push_back({V2Section::kColumnCopy, 4096, 4097, 0});
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 4096 + 8192));
  for (int i = 0; i < 100; ++i) footer.sections.push_back({V2Section::kColumnCopy, 4096, 4096, 0});
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 4096 + 8192));
}

TEST(V2FooterTest, ImpossibleValuesAreRefused) {
  V2Footer footer = MakeFooter();
  footer.record_count = kRecordCountMax + 1;
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
  footer = MakeFooter();
  footer.sections.push_back(footer.sections[0]);
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
  auto encoded = EncodeV2Footer(MakeFooter());
  encoded.pop_back();
  EXPECT_FALSE(DecodeV2Footer(encoded, 8192));
  encoded = EncodeV2Footer(MakeFooter());
  encoded[56] = std::byte{0xff};
  EXPECT_FALSE(DecodeV2Footer(encoded, 8192));
  // The commit before this one.
  footer = MakeFooter();
  footer.previous_commit_bytes = 8192;
  EXPECT_EQ(DecodeV2Footer(EncodeV2Footer(footer), 8192).value().previous_commit_bytes, 8192U);
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8191));
  footer.previous_commit_bytes = 1;
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
  footer = MakeFooter();
  for (int i = 0; i < 64; ++i) footer.sections.push_back({V2Section::kDictionary, 200, 0, 0});
  EXPECT_TRUE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
  footer.sections.push_back({V2Section::kDictionary, 200, 0, 0});
  EXPECT_FALSE(DecodeV2Footer(EncodeV2Footer(footer), 8192));
}

TEST(V2SectionHeaderTest, DecodesOnlyAtHome) {
  const V2SectionHeader header{0x1122334455667788, V2Section::kMetadata, 99};
  std::array<std::byte, V2SectionHeader::kEncodedSizeBytes> encoded;
  EncodeV2SectionHeader(header, kId, 4096, encoded);
  EXPECT_EQ(DecodeV2SectionHeader(encoded, kId, 4096).value(), header);
  EXPECT_FALSE(DecodeV2SectionHeader(encoded, kId, 4097));
  EXPECT_FALSE(DecodeV2SectionHeader(encoded, FileId{}, 4096));
  EXPECT_FALSE(DecodeV2SectionHeader(std::span(encoded).first(31), kId, 4096));
  EXPECT_EQ(
      AcceptedFlips(
          encoded, [](const auto& bytes) { return bool(DecodeV2SectionHeader(bytes, kId, 4096)); }),
      0);
}

using EncodedTail = std::array<std::byte, V2Tail::kEncodedSizeBytes>;

EncodedTail Encode(const V2Tail& tail, std::uint64_t file_size_bytes) {
  EncodedTail encoded;
  EncodeV2Tail(tail, kId, file_size_bytes, encoded);
  return encoded;
}

TEST(V2TailTest, DecodesOnlyAtTheEndOfItsFile) {
  const V2Tail tail{4096, 64, 5};
  const EncodedTail encoded = Encode(tail, 8192);
  EXPECT_EQ(DecodeV2Tail(encoded, kId, 8192).value(), tail);
  EXPECT_FALSE(DecodeV2Tail(encoded, kId, 12288));
  EXPECT_FALSE(DecodeV2Tail(encoded, FileId{}, 8192));
  EXPECT_EQ(AcceptedFlips(encoded,
                          [](const auto& bytes) { return bool(DecodeV2Tail(bytes, kId, 8192)); }),
            0);
}

TEST(V2TailTest, FooterOutsideTheFileIsRefused) {
  for (const V2Tail tail :
       {V2Tail{4095, 64, 5}, V2Tail{0, 64, 5}, V2Tail{8192, 64, 5}, V2Tail{4096, 4033, 5},
        V2Tail{4096, ~std::uint64_t{0}, 5}, V2Tail{std::uint64_t{1} << 63, 64, 5}})
    EXPECT_FALSE(DecodeV2Tail(Encode(tail, 8192), kId, 8192)) << tail.footer_offset_bytes;
  EXPECT_TRUE(DecodeV2Tail(Encode({4096, 4032, 5}, 8192), kId, 8192));
}

}  // namespace
}  // namespace ffrecord
