// Goal: a manifest survives the trip through bytes, and no other bytes are taken for one.
// Method: golden bytes, then every truncation and every flipped bit, then each rule broken.

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/base/hex.h"

#include <gtest/gtest.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

DatasetManifest Example() {
  return {{{"a.ffr",
            kExtentSizeMax + 1,
            {{MakeExtentId(7, 0, 0), kExtentSizeMax, 1}, {MakeExtentId(7, 0, 1), 1, 2}}},
           {"part-00000/seg-0000", 0, {}}}};
}

DatasetManifest OriginExample() {
  DatasetManifest manifest = Example();
  manifest.files[0].origin = {"s3://bucket/a.ffr", "\"etag\""};
  manifest.files[1].origin = {"/mnt/b.ffr", ""};
  return manifest;
}

// 3 + 1, three files of which one is empty: two stripes, the last one of one extent.
DatasetManifest ErasureExample() {
  DatasetManifest manifest = Example();
  manifest.files.push_back(
      {"b.ffr",
       kExtentSizeMax + 5,
       {{MakeExtentId(7, 1, 0), kExtentSizeMax, 3}, {MakeExtentId(7, 1, 1), 5, 4}}});
  manifest.code = {3, 1};
  manifest.parity = {{MakeExtentId(8, 0, 0), kExtentSizeMax, 5}, {MakeExtentId(8, 0, 1), 5, 6}};
  return manifest;
}

DatasetManifest ReplicasExample() {
  DatasetManifest manifest = Example();
  manifest.replicas = 3;
  return manifest;
}

// Makes the check fit again, so that the checks behind it are what refuses.
std::vector<std::byte> Sealed(std::vector<std::byte> bytes) {
  const std::size_t size = bytes.size() - 8;
  StoreLittleEndian(std::span(bytes), size, Xxh3(std::span(bytes).first(size)));
  return bytes;
}

TEST(DatasetManifestTest, BytesAreThoseOfTheSpecification) {
  const DatasetManifest one{{{"x", 3, {{MakeExtentId(0x0102030405060708, 9, 10), 3, 11}}}}};

  const auto bytes = EncodeDatasetManifest(one);

  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(Hex(bytes.value()),
            "e5464d414e4930310100000000000000"
            "4f000000000000000100010000000300"
            "000000000000780807060504030201"
            "000000090000000a0300000000000000"
            "0b00000000000000"
            "182b2c2dcd7f0b81");
}

TEST(DatasetManifestTest, DecodesWhatWasEncoded) {
  for (const DatasetManifest& manifest :
       {Example(), OriginExample(), ErasureExample(), ReplicasExample(), DatasetManifest{}}) {
    const auto bytes = EncodeDatasetManifest(manifest).value();

    const auto decoded = DecodeDatasetManifest(bytes);

    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(decoded.value(), manifest);
  }
}

TEST(DatasetManifestTest, OriginsAreThoseOfTheSpecification) {
  const DatasetManifest one{
      {{"x", 3, {{MakeExtentId(0x0102030405060708, 9, 10), 3, 11}}, {"s3://b/x", "\"e\""}}}};

  const auto bytes = EncodeDatasetManifest(one);

  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(Hex(std::span(bytes.value()).first(bytes.value().size() - 8)),
            "e5464d414e49303201000000000000005e00000000000000"
            "0100010000000300000000000000"
            "78"
            "08000300"
            "73333a2f2f622f78226522"
            "0807060504030201000000090000000a0300000000000000"
            "0b00000000000000");
  EXPECT_TRUE(one.has_origins());
  EXPECT_FALSE(Example().has_origins());
}

TEST(DatasetManifestTest, ParityIsThatOfTheSpecification) {
  DatasetManifest one{{{"x", 3, {{MakeExtentId(0x0102030405060708, 9, 10), 3, 11}}}}};
  one.code = {4, 1};
  one.parity = {{MakeExtentId(0x1112131415161718, 1, 2), 3, 12}};

  const auto bytes = EncodeDatasetManifest(one);

  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(Hex(std::span(bytes.value()).first(bytes.value().size() - 8)),
            "e5464d414e49303301000000040100006f00000000000000"
            "0100010000000300000000000000"
            "78"
            "0807060504030201000000090000000a0300000000000000"
            "0b00000000000000"
            "181716151413121100000001000000020300000000000000"
            "0c00000000000000");
}

TEST(DatasetManifestTest, ParityFitsTheExtentsOrIsRefused) {
  const auto broken = [](auto change) {
    DatasetManifest manifest = ErasureExample();
    change(manifest);
    const auto bytes = EncodeDatasetManifest(manifest);
    return !bytes && bytes.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(broken([](auto&) {}));
  EXPECT_TRUE(broken([](auto& m) { m.code = {}; }));
  EXPECT_TRUE(broken([](auto& m) { m.code = {17, 1}; }));
  EXPECT_TRUE(broken([](auto& m) { m.code = {4, 1}; }));
  EXPECT_TRUE(broken([](auto& m) { m.code = {3, 2}; }));
  EXPECT_TRUE(broken([](auto& m) { m.parity.pop_back(); }));
  EXPECT_TRUE(broken([](auto& m) { m.parity.push_back(m.parity.back()); }));
  EXPECT_TRUE(broken([](auto& m) { m.parity[0].size_bytes -= 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.parity[1].size_bytes += 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.parity[1].id = {}; }));
  EXPECT_TRUE(broken([](auto& m) {
    for (ManifestFile& file : m.files) file.origin = {"/mnt/x", ""};
  }));
  EXPECT_TRUE(broken([](auto& m) { m.replicas = 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.code = {}, m.parity.clear(), m.replicas = 4; }));
  DatasetManifest origins = OriginExample();
  origins.replicas = 1;
  EXPECT_FALSE(EncodeDatasetManifest(origins));
  DatasetManifest empty{{{"x", 0, {}}}};
  empty.code = {4, 2};
  EXPECT_TRUE(EncodeDatasetManifest(empty));
}

class DatasetManifestBytesTest : public testing::TestWithParam<DatasetManifest> {};
INSTANTIATE_TEST_SUITE_P(Versions, DatasetManifestBytesTest,
                         testing::Values(Example(), OriginExample(), ErasureExample(),
                                         ReplicasExample()));

TEST(DatasetManifestTest, AllFilesHaveAnOriginOrNoneHas) {
  DatasetManifest manifest = OriginExample();
  manifest.files[1].origin = {};
  EXPECT_EQ(EncodeDatasetManifest(manifest).error().code, ErrorCode::kInvalidArgument);
  std::swap(manifest.files[0], manifest.files[1]);
  EXPECT_EQ(EncodeDatasetManifest(manifest).error().code, ErrorCode::kInvalidArgument);
  for (const FileOrigin& origin :
       {FileOrigin{"", "etag"}, FileOrigin{"/a\n", ""}, FileOrigin{"/a", "\x7f"},
        FileOrigin{std::string(4097, 'a'), ""}}) {
    manifest = OriginExample();
    manifest.files[0].origin = origin;
    EXPECT_EQ(EncodeDatasetManifest(manifest).error().code, ErrorCode::kInvalidArgument);
  }
}

// Of version 2, without any: as a later version, which would say otherwise, must not be read.
TEST(DatasetManifestTest, AFileWithoutAnOriginIsRefusedWhereAllHaveOne) {
  auto bytes = EncodeDatasetManifest(DatasetManifest{}).value();
  bytes[7] = std::byte{'2'};
  EXPECT_FALSE(DecodeDatasetManifest(Sealed(bytes)));
}

TEST_P(DatasetManifestBytesTest, RefusesEveryTruncationAndEveryFlippedBit) {
  const auto bytes = EncodeDatasetManifest(GetParam()).value();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = DecodeDatasetManifest(std::span(bytes).first(size));
    ASSERT_FALSE(decoded) << size;
    ASSERT_EQ(decoded.error().code, ErrorCode::kCorruption);
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_FALSE(DecodeDatasetManifest(flipped)) << bit;
  }
}

TEST_P(DatasetManifestBytesTest, AFlippedBitWithACheckThatFitsNeverGivesABrokenManifest) {
  const auto bytes = EncodeDatasetManifest(GetParam()).value();
  for (std::size_t bit = 0; bit < (bytes.size() - 8) * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));

    const auto decoded = DecodeDatasetManifest(Sealed(flipped));

    // What is accepted keeps the rules: it can be encoded again, to the same bytes.
    if (decoded) {
      ASSERT_EQ(EncodeDatasetManifest(decoded.value()).value(), Sealed(flipped)) << bit;
    } else {
      ASSERT_EQ(decoded.error().code, ErrorCode::kCorruption);
    }
  }
}

TEST(DatasetManifestTest, AHugeCountIsRefusedBeforeAllocation) {
  auto bytes = EncodeDatasetManifest(Example()).value();
  StoreLittleEndian(std::span(bytes), 8, std::uint32_t{0xFFFFFFFF});
  EXPECT_FALSE(DecodeDatasetManifest(Sealed(bytes)));
}

TEST(DatasetManifestTest, RefusesToEncodeWhatBreaksARule) {
  const auto broken = [](auto change) {
    DatasetManifest manifest = Example();
    change(manifest);
    const auto bytes = EncodeDatasetManifest(manifest);
    return !bytes && bytes.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(broken([](auto& m) { m.files[0].name.clear(); }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].name = "a\nb"; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].name.assign(1025, 'x'); }));
  EXPECT_TRUE(broken([](auto& m) { m.files[1].name = m.files[0].name; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].size_bytes += 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].size_bytes -= 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].extents[0].size_bytes -= 1; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[0].extents[0].id = {}; }));
  EXPECT_TRUE(broken([](auto& m) { m.files[1].extents.emplace_back(); }));
}

TEST(DatasetManifestTest, ExtentsOfOneFileSortByTheirPlace) {
  EXPECT_LT(MakeExtentId(1, 2, 255), MakeExtentId(1, 2, 256));
  EXPECT_LT(MakeExtentId(1, 2, 0xFFFFFFFF), MakeExtentId(1, 3, 0));
  EXPECT_EQ(UploadOf(MakeExtentId(0xABCDEF, 1, 2)), 0xABCDEFU);
}

}  // namespace
}  // namespace ffrecord
