// Goal: no bytes from a peer can make the frame decoder read past them or believe a size.
// Method: decode the input as a header and the rest as its body; a header that is accepted must
// keep its limits and encode to the bytes that it came from.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libffrecord/net/protocol/frame.h"

namespace net = ffrecord::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHeaderSize = net::FrameHeader::kEncodedSizeBytes;
  const auto input = std::as_bytes(std::span(data, size));
  if (input.size() < kHeaderSize) return 0;
  const auto encoded = input.first<kHeaderSize>();
  const auto body = input.subspan(kHeaderSize);
  constexpr net::FrameLimits kLimits{};

  const auto header = net::DecodeFrameHeader(encoded, kLimits);
  if (header) {
    if (header.value().body_size_bytes > kLimits.body_size_bytes_max) __builtin_trap();
    if (header.value().payload_size_bytes > kLimits.payload_size_bytes_max) __builtin_trap();
    if (net::CheckFrameBody(header.value(), body)) {
      std::array<std::byte, kHeaderSize> again{};
      net::EncodeFrameHeader(header.value(), body, again);
      if (!std::ranges::equal(again, encoded)) __builtin_trap();
    }
  }

  // Checksums keep most inputs out, so a frame is also made from the input: it must be accepted.
  const auto body_size = std::min<std::size_t>(body.size(), kLimits.body_size_bytes_max);
  std::array<std::byte, kHeaderSize> made{};
  net::FrameHeader wanted;
  wanted.type = static_cast<net::FrameType>(input[0]);
  wanted.request_id = static_cast<std::uint64_t>(input[1]);
  net::EncodeFrameHeader(wanted, body.first(body_size), made);
  const auto decoded = net::DecodeFrameHeader(made, kLimits);
  if (!decoded || decoded.value().body_size_bytes != body_size) __builtin_trap();
  if (!net::CheckFrameBody(decoded.value(), body.first(body_size))) __builtin_trap();
  return 0;
}
