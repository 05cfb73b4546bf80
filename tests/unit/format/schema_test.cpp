// Goal: a schema says how records are cut, survives its encoding, and refuses what cannot be.
// Method: join and split values of all kinds of columns; damage sections and records.

#include <ffrecord/schema.h>

#include <gtest/gtest.h>

#include <limits>

#include "bytes.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::AsString;

std::vector<Column> MixedColumns() {
  return {{"image", ColumnType::kBytes},
          {"label", ColumnType::kI64},
          {"name", ColumnType::kUtf8},
          {"box", ColumnType::kF32, {2, 2}},
          {"mask", ColumnType::kBytes}};
}

using Fields = std::vector<std::span<const std::byte>>;

TEST(SchemaTest, SplitGivesBackWhatWasJoined) {
  const Schema schema = Schema::Make(MixedColumns()).value();
  const std::string image = "pixels", label(8, 'l'), name, box(16, 'b'), mask = "m";
  const Fields fields{AsBytes(image), AsBytes(label), AsBytes(name), AsBytes(box), AsBytes(mask)};

  std::vector<std::byte> record;
  ASSERT_TRUE(schema.Join(fields, record));
  Fields split(5);
  ASSERT_TRUE(schema.Split(record, split));

  EXPECT_EQ(schema.fixed_size_bytes(), 8U + 16 + 2 * 4);
  EXPECT_EQ(AsString(record), label + box + std::string("\6\0\0\0\0\0\0\0", 8) + "pixelsm");
  for (std::size_t i = 0; i < fields.size(); ++i)
    EXPECT_EQ(AsString(split[i]), AsString(fields[i])) << i;
}

TEST(SchemaTest, OneBytesColumnAddsNothing) {
  const Schema schema = Schema::Make({{"data", ColumnType::kBytes}}).value();
  std::vector<std::byte> record;
  ASSERT_TRUE(schema.Join(Fields{AsBytes("abc")}, record));
  EXPECT_EQ(AsString(record), "abc");
  Fields split(1);
  ASSERT_TRUE(schema.Split({}, split));
  EXPECT_TRUE(split[0].empty());
}

TEST(SchemaTest, RecordThatDoesNotFitIsRefused) {
  const Schema fixed = Schema::Make({{"x", ColumnType::kU32}}).value();
  Fields one(1);
  EXPECT_TRUE(fixed.Split(AsBytes("1234"), one));
  EXPECT_EQ(fixed.Split(AsBytes("123"), one).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(fixed.Split(AsBytes("12345"), one).error().code, ErrorCode::kCorruption);

  const Schema mixed = Schema::Make(MixedColumns()).value();
  Fields five(5);
  EXPECT_FALSE(mixed.Split(AsBytes(std::string(31, '\0')), five));
  EXPECT_TRUE(mixed.Split(AsBytes(std::string(32, '\0')), five));
  // The first size says 2^32 - 1, the second one more than is left.
  EXPECT_FALSE(mixed.Split(
      AsBytes(std::string(24, '\0') + std::string(4, '\xff') + std::string(4, '\0')), five));
  EXPECT_FALSE(
      mixed.Split(AsBytes(std::string(24, '\0') + std::string("\1\0\0\0\1\0\0\0x", 9)), five));
}

TEST(SchemaTest, FieldsThatDoNotFitAreRefused) {
  const Schema schema = Schema::Make(MixedColumns()).value();
  std::vector<std::byte> record;
  EXPECT_EQ(schema.Join(Fields(4), record).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(schema.Join(Fields(5), record).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(record.empty());
}

TEST(SchemaTest, EncodingSurvives) {
  const Schema schema = Schema::Make(MixedColumns()).value();
  const auto encoded = schema.Encode();
  EXPECT_EQ(Schema::Decode(encoded).value(), schema);
  EXPECT_TRUE(Schema().Encode().empty());
}

TEST(SchemaTest, EncodingIsThatOfThePage) {
  const Schema schema = Schema::Make({{"ab", ColumnType::kF32, {3}}}).value();
  EXPECT_EQ(AsString(schema.Encode()), std::string("\1\0\x0c\1\2\0ab\3\0\0\0\0\0\0\0", 16));
}

TEST(SchemaTest, SectionCutAnywhereIsRefused) {
  const auto encoded = Schema::Make(MixedColumns()).value().Encode();
  for (std::size_t size = 0; size < encoded.size(); ++size)
    EXPECT_EQ(Schema::Decode(std::span(encoded).first(size)).error().code, ErrorCode::kCorruption)
        << size;
  auto longer = encoded;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Schema::Decode(longer).error().code, ErrorCode::kCorruption);
}

TEST(SchemaTest, ColumnsThatCannotBeAreRefused) {
  const auto refused = [](Column column) {
    const auto made = Schema::Make({std::move(column)});
    return !made && made.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({"", ColumnType::kU8}));
  EXPECT_TRUE(refused({std::string(256, 'x'), ColumnType::kU8}));
  EXPECT_FALSE(refused({std::string(255, 'x'), ColumnType::kU8}));
  EXPECT_TRUE(refused({std::string("a\0b", 3), ColumnType::kU8}));
  EXPECT_TRUE(refused({"x", static_cast<ColumnType>(14)}));
  EXPECT_TRUE(refused({"x", ColumnType::kUtf8, {1}}));
  EXPECT_TRUE(refused({"x", ColumnType::kU8, {0}}));
  EXPECT_TRUE(refused({"x", ColumnType::kU8, std::vector<std::uint64_t>(33, 1)}));
  EXPECT_FALSE(refused({"x", ColumnType::kU8, {1 << 20}}));
  EXPECT_TRUE(refused({"x", ColumnType::kU16, {1 << 20}}));
  constexpr auto kHuge = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(refused({"x", ColumnType::kU16, {kHuge, kHuge}}));
  EXPECT_FALSE(Schema::Make({{"x", ColumnType::kU8}, {"x", ColumnType::kU8}}));
  std::vector<Column> many(1025);
  for (std::size_t i = 0; i < many.size(); ++i) many[i].name = std::to_string(i);
  EXPECT_FALSE(Schema::Make(many));
  many.pop_back();
  EXPECT_TRUE(Schema::Make(many));
}

TEST(SchemaTest, NamesAreUtf8) {
  const auto accepted = [](const char* name) { return bool(Schema::Make({{name}})); };
  for (const char* good : {"a", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(accepted(good)) << good;
  // Lone continuation, overlong forms, a surrogate, past the last code point, cut sequences.
  for (const char* bad : {"\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf0\x80\x80\xaf", "\xc3", "\xe4\xb8", "\xf0\x9f\x98", "\xff"})
    EXPECT_FALSE(accepted(bad)) << bad;
}

TEST(SchemaTest, ColumnsAreFoundByName) {
  const Schema schema = Schema::Make(MixedColumns()).value();
  EXPECT_EQ(schema.Find("name"), 2);
  EXPECT_EQ(schema.Find("nam"), -1);
  EXPECT_EQ(schema.width_bytes(3), 16U);
  EXPECT_EQ(schema.width_bytes(0), 0U);
}

}  // namespace
}  // namespace ffrecord
