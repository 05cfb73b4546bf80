// Goal: samples of other formats become the right records, and no bytes do harm.
// Method: small samples made by hand; then every cut, and every byte changed in several ways.

#include "libffrecord/format/record_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libffrecord/format/in_place_front.h"

namespace ffrecord {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Padded(std::string text) {
  text.resize((text.size() + 511) / 512 * 512, '\0');
  return text;
}

// The header of a member, and its content.
std::string Member(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof size, "%011zo", content.size());
  header.replace(124, 11, size, 11);
  header[156] = type;
  header.replace(257, 8, std::string_view("ustar\00000", 8));
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char check[8];
  std::snprintf(check, sizeof check, "%06o", sum);
  header.replace(148, 7, std::string_view(check, 7));
  return header + Padded(content);
}

std::string Pax(const std::string& key, const std::string& value) {
  const std::string record = " " + key + "=" + value + "\n";
  std::size_t size = record.size() + 1;
  while (std::to_string(size).size() + record.size() != size) ++size;
  return Member("pax", std::to_string(size) + record, 'x');
}

Schema Sample() {
  return Schema::Make({{"label:valid", ColumnType::kBool},
                       {"label", ColumnType::kI64},
                       {"name", ColumnType::kUtf8},
                       {"jpg:valid", ColumnType::kBool},
                       {"jpg", ColumnType::kBytes},
                       {"txt:valid", ColumnType::kBool},
                       {"txt", ColumnType::kUtf8}})
      .value();
}

// The record that has these values; a null pointer is no value.
std::vector<std::byte> Record(const Schema& schema, const char* label, std::string_view name,
                              const char* jpg, const char* txt) {
  const auto number = static_cast<std::int64_t>(label == nullptr ? 0 : std::stoll(label));
  const std::string_view number_bytes(reinterpret_cast<const char*>(&number), sizeof number);
  const auto valid = [](const char* value) {
    return value == nullptr ? std::string_view("\0", 1) : std::string_view("\1", 1);
  };
  const auto text = [](const char* value) { return std::string_view(value ? value : ""); };
  const std::vector<std::span<const std::byte>> fields{
      BytesOf(valid(label)), BytesOf(number_bytes), BytesOf(name),     BytesOf(valid(jpg)),
      BytesOf(text(jpg)),    BytesOf(valid(txt)),   BytesOf(text(txt))};
  std::vector<std::byte> record;
  EXPECT_TRUE(schema.Join(fields, record));
  return record;
}

// The record, made in memory of its own and in that of the stored bytes.
std::vector<std::byte> Made(RecordForm form, const Schema& schema, std::string_view stored) {
  const FormedRecords formed(form, schema);
  std::vector<std::byte> record;
  const auto made = formed.Form(BytesOf(stored), record);
  EXPECT_TRUE(made) << made.error().message;
  std::vector<std::byte> memory(BytesOf(stored).begin(), BytesOf(stored).end());
  const auto begin = formed.FormWithin(memory, record.size());
  EXPECT_TRUE(begin) << begin.error().message;
  if (!begin) return record;
  const auto within = std::span(memory).subspan(begin.value(), record.size());
  EXPECT_TRUE(std::ranges::equal(within, record));
  return record;
}

TEST(RecordFormTest, ASampleOfATarHasAColumnForEachExtension) {
  const Schema schema = Sample();
  const std::string whole = Member("a/", "", '5') + Member("a/7.jpg", "picture") +
                            Member("a/.hidden.jpg", "no") + Member("a/7.cls", " +12\n") +
                            Member("a/7.TXT", "text");
  EXPECT_EQ(Made(RecordForm::kTar, schema, whole), Record(schema, "12", "a/7", "picture", "text"));
  EXPECT_EQ(
      Made(RecordForm::kTar, schema,
           Member("a/7.CLS", "12") + Member("a/7.jpg", "picture") + Member("a/7.txt", "text")),
      Record(schema, "12", "a/7", "picture", "text"));
  EXPECT_EQ(Made(RecordForm::kTar, schema, Member("/7.jpg", "")),
            Record(schema, nullptr, "7", "", nullptr));
}

TEST(RecordFormTest, NamesAndSizesOfHeadersBeforeAMemberCount) {
  const Schema schema = Sample();
  const std::string name(300, 'n');
  const auto expected = Record(schema, nullptr, name, "picture", nullptr);
  EXPECT_EQ(Made(RecordForm::kTar, schema,
                 Member("././@LongLink", name + ".jpg", 'L') + Member("x.png", "picture")),
            expected);
  std::string big = Member("x.png", "picture");
  EXPECT_EQ(Made(RecordForm::kTar, schema, Pax("path", name + ".jpg") + Pax("size", "7") + big),
            expected);
}

TEST(RecordFormTest, TheFirstOfSeveralHeadersBeforeAMemberCounts) {
  const Schema schema = Sample();
  const auto expected = Record(schema, nullptr, "outer", "picture", nullptr);
  const std::string member = Member("x.png", "picture");
  for (const std::string& outer : {Pax("path", "outer.jpg"), Member("L", "outer.jpg", 'L')})
    for (const std::string& inner : {Pax("path", "inner.txt"), Member("L", "inner.txt", 'L')})
      EXPECT_EQ(Made(RecordForm::kTar, schema, outer + inner + member), expected);
  EXPECT_EQ(Made(RecordForm::kTar, schema,
                 Pax("size", "7") + Pax("size", "1") + Pax("path", "outer.jpg") + member),
            expected);
}

TEST(RecordFormTest, TheLastMemberEndsWhereItsContentEnds) {
  const Schema schema = Sample();
  const std::string padded = Member("7.jpg", "picture");
  EXPECT_EQ(Made(RecordForm::kTar, schema, std::string_view(padded).substr(0, 512 + 7)),
            Record(schema, nullptr, "7", "picture", nullptr));
}

TEST(RecordFormTest, WhatIsNoSampleOfTheColumnsIsRefused) {
  const Schema schema = Sample();
  const FormedRecords formed(RecordForm::kTar, schema);
  std::vector<std::byte> record;
  for (const std::string& wrong :
       {Member("7.png", "x"), Member("7.jpg", "x") + Member("7.seg.cls", "3"),
        Member("7.jpg", "x") + Member("7.jpg", "y"), Member("7.cls", "x"), Member("7.cls", "1"),
        Member("7.cls", "99999999999999999999"), Member("7.txt", "\xff"), Member("7.jpg", "", '1'),
        Member("7.jpg", "x", 'S'), Member("7.jpg", "x").substr(0, 512), std::string(512, '\0'),
        Pax("size", "99999999999999999999") + Member("7.jpg", "x")})
    EXPECT_FALSE(formed.Form(BytesOf(wrong), record));
}

TEST(RecordFormTest, ASampleOfMdsHasItsSizesInFront) {
  const Schema schema =
      Schema::Make({{"a", ColumnType::kBytes}, {"n", ColumnType::kU16}, {"t", ColumnType::kUtf8}})
          .value();
  const std::string_view stored("\2\0\0\0\3\0\0\0ab\7\0xyz", 15);
  std::vector<std::byte> expected;
  const std::vector<std::span<const std::byte>> fields{
      BytesOf("ab"), BytesOf(std::string_view("\7\0", 2)), BytesOf("xyz")};
  ASSERT_TRUE(schema.Join(fields, expected));
  EXPECT_EQ(Made(RecordForm::kMds, schema, stored), expected);
  const FormedRecords formed(RecordForm::kMds, schema);
  for (std::size_t size = 0; size < stored.size(); ++size)
    EXPECT_FALSE(formed.Form(BytesOf(stored.substr(0, size)), expected));
}

TEST(RecordFormTest, AnySizeButItsOwnIsRefused) {
  const Schema schema = Sample();
  const FormedRecords formed(RecordForm::kTar, schema);
  const std::string stored = Member("7.jpg", "picture");
  const auto expected = Made(RecordForm::kTar, schema, stored);
  std::vector<std::byte> record(expected.size());
  ASSERT_TRUE(formed.FormInto(BytesOf(stored), record));
  EXPECT_EQ(record, expected);
  for (const std::size_t size : {std::size_t{0}, expected.size() - 1, expected.size() + 1}) {
    record.resize(size);
    EXPECT_FALSE(formed.FormInto(BytesOf(stored), record));
  }
}

TEST(RecordFormTest, TheLargestColumnStaysWhereItIsRead) {
  const Schema schema = Sample();
  const FormedRecords formed(RecordForm::kTar, schema);
  const std::string picture(5000, 'p');
  const std::string text(100, 't');
  const std::string label = Member("7.cls", "3");
  for (const std::string& stored : {Member("7.jpg", picture) + label + Member("7.txt", text),
                                    label + Member("7.txt", text) + Member("7.jpg", picture)}) {
    const auto expected = Record(schema, "3", "7", picture.c_str(), text.c_str());
    std::vector<std::byte> memory(BytesOf(stored).begin(), BytesOf(stored).end());

    const auto begin = formed.FormWithin(memory, expected.size());

    ASSERT_TRUE(begin);
    EXPECT_TRUE(
        std::ranges::equal(std::span(memory).subspan(begin.value(), expected.size()), expected));
    const std::size_t picture_begin = stored.find(picture);
    EXPECT_EQ(std::memcmp(memory.data() + picture_begin, picture.data(), picture.size()), 0);
  }
}

TEST(RecordFormTest, BytesThatAreNoSampleStayAsTheyAre) {
  const Schema schema = Sample();
  const FormedRecords formed(RecordForm::kTar, schema);
  const std::string whole = Member("7.jpg", "picture") + Member("7.cls", "3");
  const std::size_t size = Made(RecordForm::kTar, schema, whole).size();
  for (const auto& [stored, record_size] : std::vector<std::pair<std::string, std::size_t>>{
           {whole, size - 1}, {whole, size + 1}, {Member("7.png", "x"), 20}}) {
    std::vector<std::byte> memory(BytesOf(stored).begin(), BytesOf(stored).end());
    EXPECT_FALSE(formed.FormWithin(memory, record_size));
    EXPECT_TRUE(std::ranges::equal(memory, BytesOf(stored)));
  }
}

TEST(RecordFormTest, NoCutAndNoChangeDoesHarm) {
  const Schema schema = Sample();
  const FormedRecords formed(RecordForm::kTar, schema);
  const std::string stored =
      Pax("path", "b/7.jpg") + Member("7.jpg", "picture") + Member("b/7.cls", "3");
  std::vector<std::byte> record;
  std::vector<std::span<const std::byte>> fields(schema.columns().size());
  std::vector<std::byte> memory;
  const auto fits = [&](std::string_view bytes) {
    if (!formed.Form(BytesOf(bytes), record)) return true;
    if (!schema.Split(record, fields)) return false;
    if (record.size() > bytes.size()) return true;
    memory.assign(BytesOf(bytes).begin(), BytesOf(bytes).end());
    const auto begin = formed.FormWithin(memory, record.size());
    return begin &&
           std::ranges::equal(std::span(memory).subspan(begin.value(), record.size()), record);
  };
  for (std::size_t at = 0; at < stored.size(); ++at) {
    EXPECT_TRUE(fits(std::string_view(stored).substr(0, at)));
    for (const int change : {1, 16, 128, 255}) {
      std::string changed = stored;
      changed[at] = static_cast<char>(changed[at] ^ change);
      EXPECT_TRUE(fits(changed));
    }
  }
}

TEST(InPlaceFrontTest, AFrontReadsBackAndEveryChangedByteIsNoticed) {
  const SourceDescription description{SourceDescription::Kind::kMdsFolder, 99, -2, ~0ULL};
  const InPlaceFront front{RecordForm::kTar, 8192, 12345, -1, "/data/x.tar", description};
  std::array<std::byte, InPlaceFront::kSizeBytes> encoded;
  EncodeInPlaceFront(front, encoded);
  const auto decoded = DecodeInPlaceFront(encoded);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded.value(), front);
  for (std::size_t at = 0; at < encoded.size(); ++at) {
    encoded[at] ^= std::byte{4};
    EXPECT_FALSE(DecodeInPlaceFront(encoded));
    encoded[at] ^= std::byte{4};
    EXPECT_FALSE(DecodeInPlaceFront(std::span(encoded).first(at)));
  }
}

}  // namespace
}  // namespace ffrecord
