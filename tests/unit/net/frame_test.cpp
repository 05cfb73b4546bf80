// Goal: a frame header crosses the wire byte for byte as protocol.md says, and nothing else is
// taken for one.
// Method: golden vectors both ways; then every bit flipped, every field spoilt, random bytes.

#include "libffrecord/net/protocol/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"
#include "seed.h"

namespace ffrecord::net {
namespace {

using Encoded = std::array<std::byte, FrameHeader::kEncodedSizeBytes>;

std::vector<std::byte> FromHex(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

struct Golden {
  FrameHeader header;  // As decoded.
  std::vector<std::byte> encoded;
  std::vector<std::byte> body;
};

Golden Ping() {
  return {{.type = FrameType::kPing,
           .request_id = 1,
           .map_version = 7,
           .body_check = 0x2d06800538d394c2},
          FromHex("465201020000000001000000000000000000000000000000070000002b0e04c2"
                  "c294d3380580062d"),
          {}};
}

Golden BatchRead() {
  return {{.type = FrameType::kBatchRead,
           .request_id = 2,
           .body_size_bytes = 56,
           .map_version = 7,
           .body_check = 0x7126146cfa5d656c},
          FromHex("465201200000000002000000000000003800000000000000070000006915ecbc"
                  "6c655dfa6c142671"),
          FromHex("030000000200000000000100d0070000000000000100000000000000"
                  "00100000e80300000000000001000000000000001800000000040000")};
}

// Sets the header check right again after a field was spoilt on purpose.
void Reseal(Encoded& encoded) {
  StoreLittleEndian(std::span<std::byte>(encoded), 28,
                    static_cast<std::uint32_t>(Xxh3(std::span(encoded).first(28))));
}

Encoded Encode(const FrameHeader& header, std::span<const std::byte> body) {
  Encoded encoded;
  EncodeFrameHeader(header, body, encoded);
  return encoded;
}

TEST(FrameTest, GoldenVectorsAreWhatWeWrite) {
  for (const Golden& golden : {Ping(), BatchRead()}) {
    const Encoded encoded = Encode(golden.header, golden.body);
    EXPECT_TRUE(std::ranges::equal(encoded, golden.encoded));
  }
}

TEST(FrameTest, GoldenVectorsAreWhatWeRead) {
  for (const Golden& golden : {Ping(), BatchRead()}) {
    const auto header = DecodeFrameHeader(
        std::span<const std::byte>(golden.encoded).first<FrameHeader::kEncodedSizeBytes>(), {});

    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header.value(), golden.header);
    EXPECT_TRUE(CheckFrameBody(header.value(), golden.body));
  }
}

TEST(FrameTest, EveryFlippedBitOfHeaderOrBodyIsFound) {
  const Golden golden = BatchRead();
  std::vector<std::byte> whole = golden.encoded;
  whole.insert(whole.end(), golden.body.begin(), golden.body.end());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));

    const auto header = DecodeFrameHeader(
        std::span<const std::byte>(bytes).first<FrameHeader::kEncodedSizeBytes>(), {});
    const bool good =
        header && CheckFrameBody(header.value(), std::span(bytes).subspan(Encoded{}.size()));

    EXPECT_FALSE(good) << "bit " << bit;
    if (!header) {
      EXPECT_EQ(header.error().code, ErrorCode::kCorruption);
    }
  }
}

TEST(FrameTest, SpoiltFieldsAreRefusedEvenUnderARightCheck) {
  struct Spoilt {
    std::size_t at;
    std::byte value;
    std::string_view named;
  };
  const Spoilt all[] = {{0, std::byte{0x47}, "magic"},      {2, std::byte{2}, "version 2"},
                        {4, std::byte{1}, "flags"},         {5, std::byte{0x80}, "flags"},
                        {6, std::byte{1}, "reserved"},      {18, std::byte{0x21}, "body of"},
                        {22, std::byte{0x81}, "payload of"}};
  for (const Spoilt& spoilt : all) {
    Encoded encoded = Encode(Ping().header, {});
    encoded[spoilt.at] = spoilt.value;
    Reseal(encoded);

    const auto header = DecodeFrameHeader(encoded, {});

    ASSERT_FALSE(header) << "byte " << spoilt.at;
    EXPECT_EQ(header.error().code, ErrorCode::kCorruption);
    EXPECT_NE(header.error().message.find(spoilt.named), std::string::npos)
        << header.error().message;
  }
}

TEST(FrameTest, SizesAreAllowedUpToTheLimitAndNotOneByteMore) {
  for (const FrameLimits& limits : {FrameLimits{}, kLimitsBeforeHello}) {
    for (const std::uint32_t more : {0U, 1U}) {
      Encoded encoded = Encode({.payload_size_bytes = limits.payload_size_bytes_max + more}, {});
      EXPECT_EQ(static_cast<bool>(DecodeFrameHeader(encoded, limits)), more == 0);

      encoded = Encode({}, {});
      StoreLittleEndian(std::span<std::byte>(encoded), 16, limits.body_size_bytes_max + more);
      Reseal(encoded);
      EXPECT_EQ(static_cast<bool>(DecodeFrameHeader(encoded, limits)), more == 0);
    }
  }
}

TEST(FrameTest, ABodyOfAnotherSizeIsRefused) {
  const Golden golden = BatchRead();

  EXPECT_TRUE(CheckFrameBody(golden.header, golden.body));
  EXPECT_FALSE(CheckFrameBody(golden.header, std::span(golden.body).first(55)));
}

TEST(FrameTest, RandomBytesAreRefused) {
  std::mt19937 random(test::Seed());
  for (int i = 0; i < 20'000; ++i) {
    Encoded encoded;
    for (std::byte& byte : encoded) byte = static_cast<std::byte>(random());
    if (i % 2 == 0) {  // Past the first two doors.
      StoreLittleEndian(std::span<std::byte>(encoded), 0, std::uint32_t{0x00015246});
    }
    EXPECT_FALSE(DecodeFrameHeader(encoded, {}));
  }
}

}  // namespace
}  // namespace ffrecord::net
