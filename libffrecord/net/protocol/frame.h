#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// The subject of a frame. A reply is its request's type + 0x80. protocol.md lists them.
enum class FrameType : std::uint8_t {
  kHello = 0x01,
  kPing = 0x02,
  kGoAway = 0x03,
  kLocalOpen = 0x04,
  kResolve = 0x10,
  kSlabRegister = 0x11,
  kExtentBind = 0x12,
  kStat = 0x13,
  kRdmaConnect = 0x14,
  kBatchRead = 0x20,
  kBatchData = 0x21,
  kGrant = 0x22,
  kCancel = 0x23,
  kPlanSet = 0x24,
  kPlanCancel = 0x25,
  kPutBegin = 0x30,
  kPutData = 0x31,
  kPutSeal = 0x32,
  kDelete = 0x33,
  kExtentList = 0x34,
  kPublish = 0x35,
  kList = 0x36,
  kCheckRoom = 0x37,
  kPutPull = 0x38,
  kClusterMap = 0x39,
  kSetMember = 0x3A,
  kMetadataHistory = 0x3B,
  kMetadataList = 0x3C,
  kMetadataPut = 0x3D,
  kSetLevel = 0x3E,
  kCollectiveData = 0x40,
  kCollectiveTaken = 0x41,
  kCollectivePlaced = 0x42,
  kAskHoldings = 0x50,
  kAskHeard = 0x51,
  kAskBuried = 0x52,
  kAskFilled = 0x53,
  kAskKnown = 0x54,
  kBusy = 0xFE,
  kError = 0xFF,
};

inline constexpr std::uint8_t kReplyBit = 0x80;
constexpr FrameType ReplyTo(FrameType request) {
  return static_cast<FrameType>(static_cast<std::uint8_t>(request) | kReplyBit);
}

// The 40 bytes before every frame; protocol.md, "Frame". The magic, the version and both
// checks are added by EncodeFrameHeader and tested by DecodeFrameHeader.
struct FrameHeader {
  static constexpr std::size_t kEncodedSizeBytes = 40;

  FrameType type = FrameType::kPing;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;
  std::uint32_t body_size_bytes = 0;
  std::uint32_t payload_size_bytes = 0;
  std::uint32_t map_version = 0;
  std::uint64_t body_check = 0;  // XXH3-64 of the body; set by EncodeFrameHeader.

  bool operator==(const FrameHeader&) const = default;
};

// The largest frame that a peer may send at this moment; before authentication far less.
struct FrameLimits {
  std::uint32_t body_size_bytes_max = 2U << 20;
  std::uint32_t payload_size_bytes_max = 8U << 20;
  // Descriptors that have come and were not taken yet, where a transport carries any. Each may
  // harm who takes it (base/foreign_fd.h): none from a peer that was not asked for some.
  std::uint32_t descriptor_count_max = 0;
};
inline constexpr FrameLimits kLimitsBeforeHello{4096, 0, 0};

// Fills `encoded` for a frame with this body: sets body size and both checks.
void EncodeFrameHeader(FrameHeader header, std::span<const std::byte> body,
                       std::span<std::byte, FrameHeader::kEncodedSizeBytes> encoded);

// Whether `bytes`, however few, may begin a frame. Fails with kDenied if they are of TLS, which one
// side speaks and the other does not, else with kCorruption.
Result<void> CheckFrameMagic(std::span<const std::byte> bytes);

// Fails as CheckFrameMagic, and with kCorruption if version, reserved bytes or header check are
// wrong, a flag is unknown, or a size passes its limit. Sizes are believed only after that.
Result<FrameHeader> DecodeFrameHeader(
    std::span<const std::byte, FrameHeader::kEncodedSizeBytes> encoded, const FrameLimits& limits);

// Fails with kCorruption if `body` is not the one that the header was made for.
Result<void> CheckFrameBody(const FrameHeader& header, std::span<const std::byte> body);

}  // namespace ffrecord::net
