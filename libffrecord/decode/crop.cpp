#include "libffrecord/decode/crop.h"

#include <algorithm>
#include <cmath>

namespace ffrecord {
namespace {

constexpr int kAttemptsMax = 10;

std::uint32_t Rounded(double size, std::uint32_t limit) noexcept {
  return static_cast<std::uint32_t>(
      std::clamp(std::floor(size + 0.5), 1.0, static_cast<double>(limit)));
}

Box Centred(std::uint32_t width, std::uint32_t height, std::uint32_t box_width,
            std::uint32_t box_height) noexcept {
  return {(width - box_width) / 2, (height - box_height) / 2, box_width, box_height};
}

// The largest box of that aspect, its sides times `share`.
Box Centred(std::uint32_t width, std::uint32_t height, double aspect, double share) noexcept {
  const double side = std::min<double>(width, height * aspect) * share;
  return Centred(width, height, Rounded(side, width), Rounded(side / aspect, height));
}

Box Random(const ImageOptions& options, std::uint32_t width, std::uint32_t height,
           Draws& draws) noexcept {
  const double area = static_cast<double>(width) * height;
  const double log_min = std::log(options.aspect_min), log_max = std::log(options.aspect_max);
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    const double wanted =
        area * (options.area_min + draws.Share() * (options.area_max - options.area_min));
    const double aspect = std::exp(log_min + draws.Share() * (log_max - log_min));
    const double box_width = std::floor(std::sqrt(wanted * aspect) + 0.5);
    const double box_height = std::floor(std::sqrt(wanted / aspect) + 0.5);
    if (box_width < 1 || box_height < 1 || box_width > width || box_height > height) continue;
    Box box{0, 0, static_cast<std::uint32_t>(box_width), static_cast<std::uint32_t>(box_height)};
    box.x = draws.Below(width - box.width + 1);
    box.y = draws.Below(height - box.height + 1);
    return box;
  }
  const double aspect = static_cast<double>(width) / height;
  return Centred(width, height, std::clamp(aspect, options.aspect_min, options.aspect_max), 1);
}

}  // namespace

Box ChooseBox(const ImageOptions& options, std::uint32_t width, std::uint32_t height,
              Draws& draws) noexcept {
  switch (options.crop) {
    case CropKind::kCentre:
      return Centred(width, height, static_cast<double>(options.width) / options.height,
                     options.centre_share);
    case CropKind::kRandom:
      return Random(options, width, height, draws);
    case CropKind::kWhole:
      break;
  }
  return {0, 0, width, height};
}

}  // namespace ffrecord
