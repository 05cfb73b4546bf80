// Goal: headers of arrays are read as they were written, and every damage is refused.
// Method: one good value of each kind; then each of its prefixes, and each of its bytes changed.

#include <ffrecord/array_headers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ffrecord {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string NpyFile() {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  std::string file = "\x93NUMPY";
  file += std::string("\1\0", 2) + static_cast<char>(header.size()) + '\0' + header;
  return file + std::string(24, 'x');
}

std::string SafetensorsFile() {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x\u00e4":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + "1234";
}

// What a header says lies inside the value, and is as large as shape and type say.
void ExpectInside(const ArrayHeader& array, std::size_t value_size) {
  ASSERT_LE(array.offset_bytes, value_size);
  ASSERT_LE(array.size_bytes, value_size - array.offset_bytes);
  std::uint64_t size = array.item_size_bytes;
  for (const std::uint64_t side : array.shape) size *= side;
  EXPECT_EQ(size, array.size_bytes);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(ArrayHeadersTest, ASideOfNothingDoesNotHideOthersThatNoArrayCanHave) {
  const std::string wide = "(0, 4611686018427387904)";
  std::string npy = Replaced(NpyFile(), "(2, 3)", wide);
  npy[8] = static_cast<char>(npy[8] + static_cast<int>(wide.size()) - 6);
  npy.resize(npy.size() - 24);
  std::string tensors = Replaced(SafetensorsFile(), "[4]", "[0,4611686018427387904,2]");
  tensors = Replaced(tensors, "[0,4]", "[0,0]");
  tensors[0] = static_cast<char>(tensors[0] + 22);

  const auto array = ReadNpyHeader(Bytes(npy));
  const auto arrays = ReadSafetensorsHeader(Bytes(tensors));

  ASSERT_FALSE(array);
  EXPECT_NE(array.error().message.find("too many"), std::string::npos) << array.error().message;
  ASSERT_FALSE(arrays);
  EXPECT_NE(arrays.error().message.find("does not fit"), std::string::npos)
      << arrays.error().message;
}

TEST(ArrayHeadersTest, NamesThatAreNotUtf8AreRefusedInWordsThatAre) {
  const std::string bad = Replaced(SafetensorsFile(), "x\\u00e4", "x\xE4\xFF\xFF\xFF\xFF\xFF");
  EXPECT_FALSE(ReadSafetensorsHeader(Bytes(bad)));
  const std::string type = Replaced(NpyFile(), "<f4", "<f\xC3");
  const auto refused = ReadNpyHeader(Bytes(type));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message.find('\xC3'), std::string::npos);
}

TEST(ArrayHeadersTest, NpyHeaderIsRead) {
  const std::string file = NpyFile();
  const auto array = ReadNpyHeader(Bytes(file));
  ASSERT_TRUE(array) << array.error().message;
  EXPECT_EQ(array.value().dtype, "<f4");
  EXPECT_EQ(array.value().shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_FALSE(array.value().fortran_order);
  EXPECT_EQ(array.value().offset_bytes, file.size() - 24);
  EXPECT_EQ(array.value().size_bytes, 24U);
}

TEST(ArrayHeadersTest, SafetensorsHeaderIsRead) {
  const std::string file = SafetensorsFile();
  const auto arrays = ReadSafetensorsHeader(Bytes(file));
  ASSERT_TRUE(arrays) << arrays.error().message;
  ASSERT_EQ(arrays.value().size(), 1U);
  EXPECT_EQ(arrays.value()[0].name, "x\xC3\xA4");
  EXPECT_EQ(arrays.value()[0].array.offset_bytes, file.size() - 4);
}

TEST(ArrayHeadersTest, EveryPrefixIsCorrupt) {
  const std::string npy = NpyFile(), tensors = SafetensorsFile();
  for (std::size_t size = 0; size < npy.size(); ++size)
    EXPECT_FALSE(ReadNpyHeader(Bytes(npy).first(size))) << size;
  for (std::size_t size = 0; size < tensors.size(); ++size)
    EXPECT_FALSE(ReadSafetensorsHeader(Bytes(tensors).first(size))) << size;
}

TEST(ArrayHeadersTest, NoChangedByteLeadsOutOfTheValue) {
  const std::string npy = NpyFile(), tensors = SafetensorsFile();
  for (std::size_t at = 0; at < std::max(npy.size(), tensors.size()); ++at) {
    for (int value = 0; value < 256; ++value) {
      if (at < npy.size()) {
        std::string changed = npy;
        changed[at] = static_cast<char>(value);
        if (const auto array = ReadNpyHeader(Bytes(changed)))
          ExpectInside(array.value(), changed.size());
      }
      if (at < tensors.size()) {
        std::string changed = tensors;
        changed[at] = static_cast<char>(value);
        if (const auto arrays = ReadSafetensorsHeader(Bytes(changed)))
          for (const NamedArray& each : arrays.value()) ExpectInside(each.array, changed.size());
      }
    }
  }
}

}  // namespace
}  // namespace ffrecord
