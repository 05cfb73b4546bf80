#include "libffrecord/decode/pixels.h"

#include <bit>
#include <cstring>
#include <utility>

namespace ffrecord {

Turn::Walk Turn::In(std::uint32_t stored_width, std::uint32_t stored_height) const noexcept {
  const auto width = static_cast<std::ptrdiff_t>(stored_width);
  const auto height = static_cast<std::ptrdiff_t>(stored_height);
  Walk walk{0, 1, width};
  if (from_right_) walk = {walk.origin + width - 1, -1, walk.down};
  if (from_below_) walk = {walk.origin + (height - 1) * width, walk.right, -width};
  if (transposed_) std::swap(walk.right, walk.down);
  if (flipped_) {
    walk.origin += ((transposed_ ? height : width) - 1) * walk.right;
    walk.right = -walk.right;
  }
  return walk;
}

std::uint16_t ToHalf(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFF'FFFF;
  if (size >= 0x4780'0000) return static_cast<std::uint16_t>(sign | 0x7C00);  // 65,536 and more.
  if (size < 0x3880'0000) {  // Below 2^-14: a multiple of 2^-24, which the sum rounds to.
    const float shifted = std::bit_cast<float>(size) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F00'0000));
  }
  const std::uint32_t rounded = size + 0xFFF + (size >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x3800'0000) >> 13));
}

std::size_t SizeOf(PixelType type) noexcept {
  return type == PixelType::kU8 ? 1 : type == PixelType::kF16 ? 2 : 4;
}

Levels::Levels(const ImageOptions& options) noexcept
    : channels_(options.channels), type_(options.type), layout_(options.layout) {
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t value = 0; value < 256; ++value) {
      const double share = static_cast<double>(value) / 255;
      const auto normal = static_cast<float>((share - options.mean[c]) / options.deviation[c]);
      u8_[c][value] = static_cast<std::uint8_t>(value);
      f16_[c][value] = ToHalf(normal);
      f32_[c][value] = normal;
    }
  }
}

template <class Value>
void Levels::WriteAs(const Table<Value>& table, const std::uint8_t* pixels, std::uint32_t width,
                     std::uint32_t height, const Turn& turn, std::byte* bytes) const noexcept {
  const Turn::Walk walk = turn.In(width, height);
  if (turn.transposed()) std::swap(width, height);
  auto* out = reinterpret_cast<Value*>(bytes);
  const bool planar = layout_ == PixelLayout::kPlanar;
  const std::size_t plane = planar ? std::size_t{width} * height : 1;
  const std::size_t step = planar ? 1 : channels_;
  const auto channels = static_cast<std::ptrdiff_t>(channels_);
  for (std::uint32_t y = 0; y < height; ++y) {
    const std::uint8_t* row = pixels + (walk.origin + walk.down * y) * channels;
    for (std::uint32_t c = 0; c < channels_; ++c) {
      const std::array<Value, 256>& level = table[c];
      Value* to = out + c * plane + std::size_t{y} * width * step;
      const std::uint8_t* from = row + c;
      for (std::uint32_t x = 0; x < width; ++x, from += walk.right * channels, to += step)
        *to = level[*from];
    }
  }
}

void Levels::Write(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height,
                   const Turn& turn, std::byte* out) const noexcept {
  if (type_ == PixelType::kU8 && layout_ == PixelLayout::kInterleaved && turn.nothing())
    std::memcpy(out, pixels, std::size_t{width} * height * channels_);
  else if (type_ == PixelType::kU8)
    WriteAs(u8_, pixels, width, height, turn, out);
  else if (type_ == PixelType::kF16)
    WriteAs(f16_, pixels, width, height, turn, out);
  else
    WriteAs(f32_, pixels, width, height, turn, out);
}

}  // namespace ffrecord
