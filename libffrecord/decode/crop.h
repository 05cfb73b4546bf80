#pragma once

#include <cstdint>

#include <ffrecord/images.h>

#include "libffrecord/base/mix.h"

namespace ffrecord {

// Random numbers of one picture: a function of seed, epoch and position. loading.md defines it;
// what was drawn for a position stays the same in every release.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t epoch, std::uint64_t position) noexcept
      : key_(Mix64(Mix64(Mix64(seed + kGoldenGamma) ^ (epoch + kGoldenGamma)) ^
                   (position + kGoldenGamma))) {}

  // In [0, 1), a multiple of 2^-53.
  double Share() noexcept { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // In [0, count). Requires count > 0.
  std::uint32_t Below(std::uint32_t count) noexcept {
    return static_cast<std::uint32_t>((Next() >> 32) * count >> 32);
  }

 private:
  std::uint64_t Next() noexcept { return Mix64(key_ + ++drawn_ * kGoldenGamma); }
  std::uint64_t key_;
  std::uint64_t drawn_ = 0;
};

// A part of a picture, in pixels.
struct Box {
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  std::uint32_t width = 0;
  std::uint32_t height = 0;

  bool operator==(const Box&) const = default;
};

// The part to show of a picture of width * height, none of them 0.
Box ChooseBox(const ImageOptions& options, std::uint32_t width, std::uint32_t height,
              Draws& draws) noexcept;

}  // namespace ffrecord
