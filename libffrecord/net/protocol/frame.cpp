#include "libffrecord/net/protocol/frame.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"

namespace ffrecord::net {
namespace {

constexpr std::array kMagic{std::byte{0x46}, std::byte{0x52}};  // "FR".
constexpr std::uint8_t kVersion = 1;
constexpr std::uint16_t kFlagsKnown = 0;

// Where each field stands; protocol.md, "Frame".
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 2;
constexpr std::size_t kTypeAt = 3;
constexpr std::size_t kFlagsAt = 4;
constexpr std::size_t kZeroAt = 6;
constexpr std::size_t kRequestIdAt = 8;
constexpr std::size_t kBodySizeAt = 16;
constexpr std::size_t kPayloadSizeAt = 20;
constexpr std::size_t kMapVersionAt = 24;
constexpr std::size_t kHeaderCheckAt = 28;
constexpr std::size_t kBodyCheckAt = 32;

std::uint32_t HeaderCheck(std::span<const std::byte> encoded) {
  return static_cast<std::uint32_t>(Xxh3(encoded.first(kHeaderCheckAt)));
}

Error Malformed(std::string what) {
  return {ErrorCode::kCorruption, "frame header: " + std::move(what)};
}

Result<void> CheckLimit(std::string_view part, std::uint32_t size_bytes, std::uint32_t max) {
  if (size_bytes <= max) return {};
  return Malformed(std::string(part) + " of " + std::to_string(size_bytes) +
                   " bytes, more than the limit of " + std::to_string(max));
}

}  // namespace

void EncodeFrameHeader(FrameHeader header, std::span<const std::byte> body,
                       std::span<std::byte, FrameHeader::kEncodedSizeBytes> encoded) {
  FFR_ASSERT(body.size() <= UINT32_MAX);
  std::ranges::copy(kMagic, encoded.begin() + kMagicAt);
  StoreLittleEndian(encoded, kVersionAt, kVersion);
  StoreLittleEndian(encoded, kTypeAt, static_cast<std::uint8_t>(header.type));
  StoreLittleEndian(encoded, kFlagsAt, header.flags);
  StoreLittleEndian(encoded, kZeroAt, std::uint16_t{0});
  StoreLittleEndian(encoded, kRequestIdAt, header.request_id);
  StoreLittleEndian(encoded, kBodySizeAt, static_cast<std::uint32_t>(body.size()));
  StoreLittleEndian(encoded, kPayloadSizeAt, header.payload_size_bytes);
  StoreLittleEndian(encoded, kMapVersionAt, header.map_version);
  StoreLittleEndian(encoded, kHeaderCheckAt, HeaderCheck(encoded));
  StoreLittleEndian(encoded, kBodyCheckAt, Xxh3(body));
}

Result<void> CheckFrameMagic(std::span<const std::byte> bytes) {
  const auto begin = bytes.first(std::min(bytes.size(), kMagic.size()));
  if (std::ranges::equal(begin, std::span(kMagic).first(begin.size()))) return {};
  // A record of TLS: its type (alert or handshake), then its version.
  const bool is_tls = begin.size() == 2 && begin[1] == std::byte{3} &&
                      (begin[0] == std::byte{0x15} || begin[0] == std::byte{0x16});
  if (is_tls)
    return Error{ErrorCode::kDenied,
                 "the peer uses TLS, and this side does not: clients enable it with "
                 "?tls=FOLDER in the address, daemons with --tls-cert"};
  return Malformed(
      "does not start with the magic bytes 46 52; the peer does not use the FFRecord protocol");
}

Result<FrameHeader> DecodeFrameHeader(
    std::span<const std::byte, FrameHeader::kEncodedSizeBytes> encoded, const FrameLimits& limits) {
  // Foreign bytes and another version get other errors than damage: each has its own remedy.
  FFR_TRY(CheckFrameMagic(encoded.subspan<kMagicAt>()));
  if (const auto version = LoadLittleEndian<std::uint8_t>(encoded, kVersionAt); version != kVersion)
    return Malformed("version " + std::to_string(version) + ", but only version 1 is known");
  if (LoadLittleEndian<std::uint32_t>(encoded, kHeaderCheckAt) != HeaderCheck(encoded))
    return Malformed("check is wrong: bytes changed in flight");
  const auto flags = LoadLittleEndian<std::uint16_t>(encoded, kFlagsAt);
  if ((flags & ~kFlagsKnown) != 0) return Malformed("unknown flags " + std::to_string(flags));
  if (LoadLittleEndian<std::uint16_t>(encoded, kZeroAt) != 0)
    return Malformed("reserved bytes are not zero");

  const FrameHeader header{
      .type = static_cast<FrameType>(LoadLittleEndian<std::uint8_t>(encoded, kTypeAt)),
      .flags = flags,
      .request_id = LoadLittleEndian<std::uint64_t>(encoded, kRequestIdAt),
      .body_size_bytes = LoadLittleEndian<std::uint32_t>(encoded, kBodySizeAt),
      .payload_size_bytes = LoadLittleEndian<std::uint32_t>(encoded, kPayloadSizeAt),
      .map_version = LoadLittleEndian<std::uint32_t>(encoded, kMapVersionAt),
      .body_check = LoadLittleEndian<std::uint64_t>(encoded, kBodyCheckAt),
  };
  FFR_TRY(CheckLimit("body", header.body_size_bytes, limits.body_size_bytes_max));
  FFR_TRY(CheckLimit("payload", header.payload_size_bytes, limits.payload_size_bytes_max));
  return header;
}

Result<void> CheckFrameBody(const FrameHeader& header, std::span<const std::byte> body) {
  if (body.size() == header.body_size_bytes && Xxh3(body) == header.body_check) return {};
  return Error{ErrorCode::kCorruption, "frame body: check is wrong: bytes changed in flight"};
}

}  // namespace ffrecord::net
