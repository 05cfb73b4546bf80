// Goal: a tree of values is read exactly as format.md says, and no bytes whatever do harm.
// Method: the page's example byte for byte, each rule broken once, every truncation, mutations.

#include "libffrecord/format/checkpoint_values.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "seed.h"
#include "value_writer.h"

namespace ffrecord {
namespace {

using test::ValueWriter;

std::vector<std::byte> FromHex(std::string_view hex) {
  std::vector<std::byte> bytes;
  std::string digits;
  for (const char c : hex)
    if (c != ' ') digits += c;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

constexpr std::string_view kExample =
    "09 03000000 05 04000000 73746570 03 0200 b004 05 02000000 6c72 08 02000000 "
    "04 000000000000e03f 00 05 01000000 77 0a 02 0100 77";

std::vector<std::byte> Bytes(const ValueWriter& writer) {
  return {writer.bytes().begin(), writer.bytes().end()};
}

std::string ErrorOf(std::string_view hex) {
  const auto checked = CheckValues(FromHex(hex));
  return checked ? "" : checked.error().message;
}

TEST(CheckpointValuesTest, TheExampleOfTheFormatPageIsWrittenByteForByte) {
  ValueWriter writer;
  writer.Dict(3);
  writer.Str("step");
  writer.Int(1200);
  writer.Str("lr");
  writer.Tuple(2);
  writer.Float(0.5);
  writer.None();
  writer.Str("w");
  writer.Tensor(TensorKind::kTorch, "w");

  EXPECT_EQ(Bytes(writer), FromHex(kExample));
  EXPECT_EQ(CheckValues(writer.bytes()).value(), std::vector<std::string_view>{"w"});
}

TEST(CheckpointValuesTest, IntegersTakeAsFewBytesAsHoldThem) {
  const std::pair<std::int64_t, std::string_view> vectors[] = {
      {0, "03 0100 00"},
      {-1, "03 0100 ff"},
      {127, "03 0100 7f"},
      {128, "03 0200 8000"},
      {-128, "03 0100 80"},
      {-129, "03 0200 7fff"},
      {INT64_MIN, "03 0800 0000000000000080"},
      {INT64_MAX, "03 0800 ffffffffffffff7f"}};
  for (const auto& [value, hex] : vectors) {
    ValueWriter writer;
    writer.Int(value);
    EXPECT_EQ(Bytes(writer), FromHex(hex)) << value;
    EXPECT_EQ(ErrorOf(hex), "") << value;
  }
}

TEST(CheckpointValuesTest, EveryBrokenRuleIsRefusedAndNamed) {
  const std::pair<std::string_view, std::string_view> vectors[] = {
      {"", "ends early"},
      {"10", "unknown tag 16"},
      {"0c 0000", "ends early"},
      {"00 00", "bytes follow the state-dict structure"},
      {"03 0000", "no bytes"},
      {"03 0104", "ends early"},
      {"03 0200 0100", "superfluous"},
      {"03 0200 80ff", "superfluous"},
      {"05 01000000 ff", "not UTF-8"},
      {"05 03000000 eda080", "not UTF-8"},    // A surrogate.
      {"05 02000000 c080", "not UTF-8"},      // An overlong NUL.
      {"05 04000000 f4908080", "not UTF-8"},  // Above U+10FFFF.
      {"05 02000000 e282", "not UTF-8"},      // Cut.
      {"06 ffffffff 00", "ends early"},
      {"07 ffffffff 00", "count passes the end"},
      {"09 02000000 05 01000000 61 00 05 01000000 61 00", "twice"},
      {"09 01000000 07 00000000 00", "container"},
      {"09 01000000 0a 00 0100 61 00", "container or a tensor"},
      {"0a 03 0100 61", "kind of tensor"},
      {"0a 00 0000", "key is empty"},
      {"0d ffffffff 00", "count passes the end"},
      {"0d 02000000 02 01", "do not ascend"},
      {"0e 02000000 01 01", "do not ascend"},
      {"0d 01000000 07 00000000", "element of a set is a container"},
      {"0d 01000000 0d 00000000", "element of a set is a container"},
      {"0d 01000000 0a 00 0100 61", "element of a set is a container or a tensor"},
      {"0d 01000000 08 01000000 07 00000000", "element of a set is a container"},
      {"0d 01000000 0f 01 01000000 61 09 00000000", "element of a set is a container"},
      {"0f 06 01000000 61 00", "kind of value"},
      {"0f 00 01000000 ff 00", "not UTF-8"},
      {"0f 00 01000000 61", "ends early"},
  };
  for (const auto& [hex, expected] : vectors)
    EXPECT_NE(ErrorOf(hex).find(expected), std::string::npos) << hex << ": " << ErrorOf(hex);
}

TEST(CheckpointValuesTest, ComplexNumbersSetsAndNamedValuesAreRead) {
  for (const std::string_view hex :
       {"0c 000000000000e03f 0000000000000080", "0d 00000000", "0d 02000000 01 02",
        "0e 02000000 03 0100 01 0e 01000000 00",
        "0d 02000000 08 02000000 00 01 0f 00 01000000 61 05 01000000 62",
        "0f 01 01000000 61 09 00000000", "0f 05 01000000 61 07 01000000 0a 02 0100 77"})
    EXPECT_EQ(ErrorOf(hex), "") << hex;
}

TEST(CheckpointValuesTest, NestingIsBounded) {
  const auto nested = [](std::uint32_t depth) {
    ValueWriter writer;
    for (std::uint32_t i = 0; i < depth; ++i) writer.List(1);
    writer.None();
    return Bytes(writer);
  };
  EXPECT_TRUE(CheckValues(nested(kValueDepthMax)));
  EXPECT_FALSE(CheckValues(nested(kValueDepthMax + 1)));
  EXPECT_FALSE(CheckValues(nested(1'000'000)));
  for (const std::string_view head : {"08 01000000", "0e 01000000", "0f 00 01000000 61"}) {
    std::string hex = "0d 01000000";
    for (std::uint32_t i = 0; i < 1'000; ++i) hex += head;
    EXPECT_NE(ErrorOf(hex + "00").find("nested deeper than 64"), std::string::npos) << head;
  }
}

TEST(CheckpointValuesTest, EveryTruncationIsRefused) {
  const auto whole = FromHex(kExample);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(CheckValues(std::span(whole).first(size))) << size;
}

TEST(CheckpointValuesTest, MutatedTreesNeverCrash) {
  std::mt19937 random(test::Seed());
  const auto whole = FromHex(kExample);
  for (int round = 0; round < 200'000; ++round) {
    auto bytes = whole;
    for (unsigned change = 0; change <= random() % 4; ++change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto checked = CheckValues(bytes);
    EXPECT_TRUE(checked || checked.error().code == ErrorCode::kCorruption);
  }
}

}  // namespace
}  // namespace ffrecord
