#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/result.h>

namespace ffrecord {

// Decodes JPEGs, one after another: ReadHeader, then Decode if the picture is wanted.
//
// Sizes and places are in pixels as stored, before any turning. Damaged pictures are refused, not
// filled with grey: bytes that end early, codes that do not exist. It ignores noise between
// segments. Thread-bound; between the two calls it borrows the bytes.
class JpegDecoder {
 public:
  struct Header {
    std::uint32_t width = 0;
    std::uint32_t height = 0;
    std::uint32_t orientation = 1;  // EXIF's, 1 to 8; 1 if it was not asked for.
  };

  // A part of the picture at 1/denominator of its size, each side rounded up.
  struct Region {
    std::uint32_t x = 0;
    std::uint32_t y = 0;
    std::uint32_t width = 0;
    std::uint32_t height = 0;
    std::uint32_t denominator = 1;  // 1, 2, 4 or 8.
  };

  // Whether there is a decoder in this build.
  static bool IsThere() noexcept;

  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Fails with kCorruption if it is no JPEG, with kInvalidArgument if there is no decoder.
  Result<Header> ReadHeader(std::span<const std::byte> jpeg, bool with_orientation);

  // Decodes a part, RGB or grey, into rows that begin `stride` bytes apart. Decodes no more rows
  // and columns than those of the blocks that it touches; what lies behind the last row is not
  // looked at. Requires a header that was read, and a region inside the picture at that scale.
  Result<void> Decode(const Region& region, std::uint32_t channels, std::byte* out,
                      std::size_t stride);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The orientation that an EXIF segment tells, 1 to 8; 1 if it tells none or is damaged. Pure.
std::uint32_t ExifOrientation(std::span<const std::byte> segment) noexcept;

}  // namespace ffrecord
