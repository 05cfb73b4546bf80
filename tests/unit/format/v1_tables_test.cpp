// Goal: header and tables of version 1 are accepted and refused as format.md says.
// Method: the page's own example, then that example with one thing wrong at a time.

#include "libffrecord/format/v1_tables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "bytes.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

using test::AsBytes;

// The records "" and "abc".
const std::string kExample(
    "\x15\xd1\x62\x0a\x02\0\0\0\0\0\0\0\0\0\0\0\xc2\x41\x24\x35\x24\0\0\0\0\0\0\0\x24\0\0\0\0\0\0"
    "\0abc",
    39);

Result<void> Check(const std::string& file) {
  auto header = DecodeV1Header(AsBytes(file), file.size());
  if (!header) return header.error();
  return CheckV1Tables(header.value(), AsBytes(file).first(header.value().metadata_size_bytes()),
                       file.size());
}

// The example with `value` at `offset`, and with the metadata CRC that fits, or 0.
template <class T>
std::string With(std::size_t offset, T value, bool old = false) {
  std::string file = kExample;
  std::memcpy(file.data() + offset, &value, sizeof(value));
  const std::uint32_t crc = old ? 0 : Crc32(AsBytes(file).subspan(4, 32));
  std::memcpy(file.data(), &crc, sizeof(crc));
  return file;
}

std::string Refusal(const std::string& file) {
  const auto checked = Check(file);
  if (checked) return "accepted";
  EXPECT_EQ(checked.error().code, ErrorCode::kCorruption);
  return checked.error().message;
}

TEST(V1TablesTest, ExampleOfThePageIsAccepted) {
  ASSERT_TRUE(Check(kExample));
  const V1Header header = DecodeV1Header(AsBytes(kExample), kExample.size()).value();
  EXPECT_EQ(header.record_count, 2U);
  const V1Entry first = LoadV1Entry(header, AsBytes(kExample).first(36), 0, 39);
  const V1Entry second = LoadV1Entry(header, AsBytes(kExample).first(36), 1, 39);
  EXPECT_EQ(first.begin_bytes, 36U);
  EXPECT_EQ(first.end_bytes, 36U);
  EXPECT_EQ(second.end_bytes, 39U);
  EXPECT_EQ(second.crc32, 0x352441c2U);
}

TEST(V1TablesTest, CountThatDoesNotFitTheFileIsRefusedBeforeAnythingElse) {
  for (const std::uint64_t count :
       {std::uint64_t{3}, std::uint64_t{1} << 40, std::uint64_t{1} << 63, ~std::uint64_t{0},
        std::numeric_limits<std::uint64_t>::max() / 12 + 1})
    EXPECT_NE(Refusal(With(4, count)).find("does not fit"), std::string::npos) << count;
  EXPECT_NE(Refusal("").find("not an FFRecord file"), std::string::npos);
  EXPECT_NE(Refusal(kExample.substr(0, 11)).find("not an FFRecord file"), std::string::npos);
}

TEST(V1TablesTest, EmptyFileIsTwelveBytesAndNoMore) {
  const std::string empty("\x69\xdf\x22\x65\0\0\0\0\0\0\0\0", 12);
  EXPECT_TRUE(Check(empty));
  EXPECT_FALSE(Check(empty + 'x'));
  EXPECT_TRUE(Check(std::string(12, '\0')));
  EXPECT_NE(Refusal(std::string(13, '\0')).find("incomplete"), std::string::npos);
}

TEST(V1TablesTest, WrongMetadataCrcIsRefused) {
  std::string file = kExample;
  file[0] = static_cast<char>(file[0] ^ 1);
  EXPECT_NE(Refusal(file).find("metadata CRC"), std::string::npos);
}

TEST(V1TablesTest, OffsetsThatCannotBeAreRefused) {
  EXPECT_NE(Refusal(With(20, std::uint64_t{35})).find("record 0 begins"), std::string::npos);
  EXPECT_NE(Refusal(With(28, std::uint64_t{35})).find("before"), std::string::npos);
  EXPECT_NE(Refusal(With(28, std::uint64_t{1} << 63)).find("truncated"), std::string::npos);
}

TEST(V1TablesTest, TruncatedFileSaysHowManyRecordsAreWhole) {
  EXPECT_NE(Refusal(With(28, std::uint64_t{40})).find("0 of 2 records are whole"),
            std::string::npos);
}

TEST(V1TablesTest, OldFileKeepsEveryOtherCheck) {
  EXPECT_TRUE(Check(With(28, std::uint64_t{36}, true)));
  EXPECT_NE(Refusal(With(28, std::uint64_t{35}, true)).find("incomplete"), std::string::npos);
}

TEST(V1TablesTest, CombinedCrcIsThatOfTheWhole) {
  const std::string text(1000, 'q');
  for (const std::size_t cut : {0U, 1U, 7U, 500U, 999U, 1000U}) {
    const auto whole = AsBytes(text);
    EXPECT_EQ(CombineCrc32(Crc32(whole.first(cut)), Crc32(whole.subspan(cut)), 1000 - cut),
              Crc32(whole));
  }
}

}  // namespace
}  // namespace ffrecord
