#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <ffrecord/images.h>

namespace ffrecord {

// How a picture as stored is turned to be seen: EXIF's orientation, then perhaps a mirror.
class Turn {
 public:
  Turn(std::uint32_t orientation, bool flipped) noexcept
      : transposed_(orientation >= 5),
        // Orientations 2, 3, 7, 8 look from the right; 3, 4, 6, 7 from below, of what is stored.
        from_right_(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
        from_below_(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
        flipped_(flipped) {}

  bool transposed() const noexcept { return transposed_; }
  bool nothing() const noexcept {
    return !transposed_ && !from_right_ && !from_below_ && !flipped_;
  }

  // The box of the stored picture, of stored_width * stored_height, that is seen as `seen`.
  // Mirroring by chance happens after the box was chosen.
  template <class Rectangle>
  Rectangle Stored(const Rectangle& seen, std::uint32_t stored_width,
                   std::uint32_t stored_height) const noexcept {
    Rectangle box = seen;
    if (transposed_) box = {seen.y, seen.x, seen.height, seen.width};
    if (from_right_) box.x = stored_width - box.x - box.width;
    if (from_below_) box.y = stored_height - box.y - box.height;
    return box;
  }

  // Where the pixel seen at (0, 0) is stored, and the way from one seen pixel to its neighbours;
  // in pixels of a stored block of that size.
  struct Walk {
    std::ptrdiff_t origin;
    std::ptrdiff_t right;
    std::ptrdiff_t down;
  };
  Walk In(std::uint32_t stored_width, std::uint32_t stored_height) const noexcept;

 private:
  bool transposed_;
  bool from_right_;
  bool from_below_;
  bool flipped_;
};

// The output for each value of 8 bits, by channel.
class Levels {
 public:
  explicit Levels(const ImageOptions& options) noexcept;

  // Writes the block of pixels as it is seen, as the options say. `width` and `height` are of the
  // block as stored.
  void Write(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height,
             const Turn& turn, std::byte* out) const noexcept;

 private:
  template <class Value>
  using Table = std::array<std::array<Value, 256>, 3>;

  template <class Value>
  void WriteAs(const Table<Value>& table, const std::uint8_t* pixels, std::uint32_t width,
               std::uint32_t height, const Turn& turn, std::byte* out) const noexcept;

  std::uint32_t channels_;
  PixelType type_;
  PixelLayout layout_;
  Table<std::uint8_t> u8_;
  Table<std::uint16_t> f16_;
  Table<float> f32_;
};

// The nearest IEEE half, ties to even, of a finite float; infinity beyond its range.
std::uint16_t ToHalf(float value) noexcept;

std::size_t SizeOf(PixelType type) noexcept;

}  // namespace ffrecord
