#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/images.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/shared_work.h"
#include "libffrecord/decode/crop.h"
#include "libffrecord/decode/image_column.h"
#include "libffrecord/decode/jpeg.h"
#include "libffrecord/decode/pixels.h"
#include "libffrecord/decode/resize.h"

namespace ffrecord {
namespace {

// So large a side is a mistake, and lets products of sizes fit into 64 bits.
constexpr std::uint32_t kSideMax = 1 << 16;
constexpr std::uint64_t kPixelsMax = std::uint64_t{1} << 32;

bool IsFixed(const ImageOptions& options) noexcept { return options.height != 0; }

std::string Of(std::uint32_t width, std::uint32_t height) {
  return std::to_string(width) + " x " + std::to_string(height);
}

// A block that grows and is kept from picture to picture.
class Room {
 public:
  // At least `size` bytes, which are whatever was there.
  Result<std::uint8_t*> Of(std::size_t size) {
    if (!block_ || block_->size() < size) {
      block_.reset();
      block_ = FFR_TRY(BufferPool::Process().Take(size));
    }
    return reinterpret_cast<std::uint8_t*>(block_->data());
  }

 private:
  PooledBuffer block_;
};

Result<void> CheckPixels(std::uint32_t width, std::uint32_t height, std::uint64_t pixels_max) {
  if (width == 0 || height == 0)
    return Error{ErrorCode::kCorruption, "a picture of " + Of(width, height) + " pixels"};
  if (std::uint64_t{width} * height > pixels_max)
    return Error{ErrorCode::kCorruption, "a picture of " + Of(width, height) + " pixels; at most " +
                                             std::to_string(pixels_max) +
                                             " are allowed, raise max_pixels for more"};
  return {};
}

// The work of one thread on one picture after another.
class Worker {
 public:
  Worker(const ImageOptions& options, const Levels& levels, std::uint64_t seed,
         std::uint64_t epoch) noexcept
      : options_(options), levels_(levels), seed_(seed), epoch_(epoch) {}

  Result<void> Decode(const Picture& picture) {
    return picture.jpeg.empty() ? DecodePixels(picture) : DecodeJpeg(picture);
  }

 private:
  // The part to show, how it lies in the picture as stored, and how large it comes out, before it
  // is turned.
  struct Plan {
    Turn turn;
    Box box;
    std::uint32_t out_width;
    std::uint32_t out_height;
  };

  Plan PlanFor(std::uint64_t position, std::uint32_t width, std::uint32_t height,
               std::uint32_t orientation) const {
    Draws draws(seed_, epoch_, position);
    const Turn turn(orientation, draws.Share() < options_.flip_probability);
    std::uint32_t seen_width = width, seen_height = height;
    if (turn.transposed()) std::swap(seen_width, seen_height);
    const Box seen = ChooseBox(options_, seen_width, seen_height, draws);
    Plan plan{turn, turn.Stored(seen, width, height), 0, 0};
    plan.out_width = IsFixed(options_) ? options_.width : seen.width;
    plan.out_height = IsFixed(options_) ? options_.height : seen.height;
    if (turn.transposed()) std::swap(plan.out_width, plan.out_height);
    return plan;
  }

  Result<void> DecodePixels(const Picture& picture) {
    FFR_TRY(CheckPixels(picture.width, picture.height, options_.pixels_max));
    const Plan plan = PlanFor(picture.position, picture.width, picture.height, 1);
    const std::size_t row = std::size_t{picture.width} * options_.channels;
    const auto* pixels = reinterpret_cast<const std::uint8_t*>(picture.pixels) + plan.box.y * row;
    if (plan.box.x == 0 && plan.box.width == picture.width)
      return Finish(pixels, plan.box.width, plan.box.height, 0, 0, plan.box.width, plan.box.height,
                    plan, picture.out);
    const std::size_t part = std::size_t{plan.box.width} * options_.channels;
    std::uint8_t* cut = FFR_TRY(decoded_.Of(part * plan.box.height));
    pixels += std::size_t{plan.box.x} * options_.channels;
    for (std::uint32_t y = 0; y < plan.box.height; ++y)
      std::copy_n(pixels + y * row, part, cut + y * part);
    return Finish(cut, plan.box.width, plan.box.height, 0, 0, plan.box.width, plan.box.height, plan,
                  picture.out);
  }

  Result<void> DecodeJpeg(const Picture& picture) {
    const JpegDecoder::Header header =
        FFR_TRY(jpeg_.ReadHeader(picture.jpeg, options_.apply_orientation));
    FFR_TRY(CheckPixels(header.width, header.height, options_.pixels_max));
    const Plan plan = PlanFor(picture.position, header.width, header.height, header.orientation);
    std::uint32_t denominator = 8;
    while (denominator > 1 && (plan.box.width < std::uint64_t{plan.out_width} * denominator ||
                               plan.box.height < std::uint64_t{plan.out_height} * denominator))
      denominator /= 2;
    const auto up = [&](std::uint32_t size) { return (size + denominator - 1) / denominator; };
    JpegDecoder::Region region{plan.box.x / denominator, plan.box.y / denominator, 0, 0,
                               denominator};
    region.width = up(plan.box.x + plan.box.width) - region.x;
    region.height = up(plan.box.y + plan.box.height) - region.y;

    const bool as_it_is = plan.turn.nothing() && region.width == plan.out_width &&
                          region.height == plan.out_height && denominator == 1 &&
                          options_.type == PixelType::kU8 &&
                          (options_.layout == PixelLayout::kInterleaved || options_.channels == 1);
    const std::size_t stride = std::size_t{region.width} * options_.channels;
    std::byte* to = picture.out;
    if (!as_it_is) to = reinterpret_cast<std::byte*>(FFR_TRY(decoded_.Of(stride * region.height)));
    FFR_TRY(jpeg_.Decode(region, options_.channels, to, stride));
    if (as_it_is) return {};
    const double scale = denominator;
    return Finish(reinterpret_cast<const std::uint8_t*>(to), region.width, region.height,
                  plan.box.x / scale - region.x, plan.box.y / scale - region.y,
                  plan.box.width / scale, plan.box.height / scale, plan, picture.out);
  }

  // Resizes the box (x, y, box_width, box_height) of a block of pixels, turns it, writes it.
  Result<void> Finish(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height,
                      double x, double y, double box_width, double box_height, const Plan& plan,
                      std::byte* out) {
    // Written so that it holds for fractions too: a box that fills the block, and comes out as
    // large as that.
    if (box_width != plan.out_width || box_height != plan.out_height || x != 0 || y != 0) {
      const PixelBlock block{pixels, width, height, options_.channels};
      std::uint8_t* row = FFR_TRY(row_.Of(ResizeRowSize(block) * sizeof(std::int16_t)));
      std::uint8_t* resized =
          FFR_TRY(resized_.Of(std::size_t{plan.out_width} * plan.out_height * options_.channels));
      across_.Plan(x, std::min<double>(x + box_width, width), width, plan.out_width);
      down_.Plan(y, std::min<double>(y + box_height, height), height, plan.out_height);
      Resize(block, across_, down_, reinterpret_cast<std::int16_t*>(row), resized);
      pixels = resized;
    }
    levels_.Write(pixels, plan.out_width, plan.out_height, plan.turn, out);
    return {};
  }

  const ImageOptions& options_;
  const Levels& levels_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  JpegDecoder jpeg_;
  Room decoded_, row_, resized_;
  ResizeAxis across_, down_;
};

Error Wrong(const std::string& what) { return {ErrorCode::kInvalidArgument, "image: " + what}; }

bool IsShare(double value) noexcept { return value >= 0 && value <= 1; }

}  // namespace

Result<ImageDecoder> ImageDecoder::Make(const ImageOptions& options) {
  if ((options.height == 0) != (options.width == 0) || options.height > kSideMax ||
      options.width > kSideMax)
    return Wrong("the size is " + Of(options.width, options.height) +
                 "; give both sides, 1 to 65,536, or none");
  if (options.channels != 1 && options.channels != 3)
    return Wrong(std::to_string(options.channels) + " channels; it must be 1 or 3");
  if (!IsFixed(options) && options.crop != CropKind::kWhole) return Wrong("a crop needs a size");
  if (!(options.centre_share > 0 && options.centre_share <= 1))
    return Wrong("the share of a centre crop is above 0, at most 1");
  if (!(options.area_min > 0 && options.area_min <= options.area_max && options.area_max <= 1))
    return Wrong("the area of a random crop is 0 < least <= most <= 1");
  if (!(options.aspect_min > 0 && options.aspect_min <= options.aspect_max &&
        std::isfinite(options.aspect_max)))
    return Wrong("the aspect of a random crop is 0 < least <= most");
  if (!IsShare(options.flip_probability)) return Wrong("the probability of a flip is 0 to 1");
  for (std::size_t c = 0; c < 3; ++c)
    if (!std::isfinite(options.mean[c]) || !std::isfinite(options.deviation[c]) ||
        !(options.deviation[c] > 0))
      return Wrong("mean must be finite, deviation finite and above 0");
  if (options.pixels_max == 0 || options.pixels_max > kPixelsMax)
    return Wrong("the limit of pixels is 1 to 2^32");
  return ImageDecoder(options);
}

bool ImageDecoder::HasJpeg() noexcept { return JpegDecoder::IsThere(); }

bool ImageDecoder::IsJpeg(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 3 && bytes[0] == std::byte{0xFF} && bytes[1] == std::byte{0xD8} &&
         bytes[2] == std::byte{0xFF};
}

void ImageDecoder::Measure(std::span<Picture> pictures) const {
  JpegDecoder jpeg;
  for (Picture& picture : pictures) {
    if (picture.error || picture.jpeg.empty()) continue;
    auto header = jpeg.ReadHeader(picture.jpeg, options_.apply_orientation);
    if (!header) {
      picture.error = std::move(header).error();
      continue;
    }
    picture.width = header.value().width;
    picture.height = header.value().height;
    if (auto checked = CheckPixels(picture.width, picture.height, options_.pixels_max); !checked)
      picture.error = std::move(checked).error();
    if (header.value().orientation >= 5) std::swap(picture.width, picture.height);
  }
}

std::size_t ImageDecoder::SizeOf(const Picture& picture) const noexcept {
  const std::size_t width = IsFixed(options_) ? options_.width : picture.width;
  const std::size_t height = IsFixed(options_) ? options_.height : picture.height;
  return width * height * options_.channels * ffrecord::SizeOf(options_.type);
}

bool ImageDecoder::Decode(std::span<Picture> pictures, std::uint64_t seed, std::uint64_t epoch,
                          std::uint32_t threads, const std::function<bool()>& give_up) const {
  const Levels levels(options_);
  const std::size_t useful = std::min<std::size_t>(threads, pictures.size());
  const auto worker_count_max = static_cast<std::uint32_t>(
      std::min<std::size_t>(useful > 0 ? useful - 1 : 0, SharedWork::kWorkerCountMax));
  // By slot, made when it first has a picture.
  std::vector<std::unique_ptr<Worker>> workers(worker_count_max + std::size_t{1});
  Patience patience(give_up);  // The patience of this thread, for workers too.
  std::atomic<bool> is_given_up{false};
  SharedWork work(worker_count_max, [&](std::size_t i, std::uint32_t slot) {
    if (slot == 0 && patience.IsOver()) is_given_up.store(true, std::memory_order_relaxed);
    if (pictures[i].error || is_given_up.load(std::memory_order_relaxed)) return;
    if (!workers[slot]) workers[slot] = std::make_unique<Worker>(options_, levels, seed, epoch);
    if (auto done = workers[slot]->Decode(pictures[i]); !done)
      pictures[i].error = std::move(done).error();
  });
  work.Ready(pictures.size());
  work.Finish();
  return !is_given_up;
}

Result<ImageDecoder::Output> ImageDecoder::DecodeBatch(std::span<Picture> pictures,
                                                       std::uint64_t seed, std::uint64_t epoch,
                                                       std::uint32_t threads,
                                                       const std::function<bool()>& give_up) const {
  const bool is_fixed = IsFixed(options_);
  if (!is_fixed) Measure(pictures);
  Output output;
  output.places.reserve(3 * pictures.size());
  std::size_t total = 0;
  for (const Picture& picture : pictures) {
    const bool has_size = is_fixed || !picture.error;
    output.places.push_back(static_cast<std::int64_t>(total));
    output.places.push_back(is_fixed ? options_.height : has_size ? picture.height : 0);
    output.places.push_back(is_fixed ? options_.width : has_size ? picture.width : 0);
    const std::size_t size = has_size ? SizeOf(picture) : 0;
    if (size > SIZE_MAX / 2 - total)
      return Error{ErrorCode::kIo, "image: the batch does not fit into memory", ENOMEM};
    total += size;
  }
  output.memory = FFR_TRY(Memory(total));
  for (std::size_t i = 0; i < pictures.size(); ++i)
    pictures[i].out = output.memory->data() + output.places[3 * i];
  if (!Decode(pictures, seed, epoch, threads, give_up))
    return Error{ErrorCode::kDeadlineExceeded, "image: the caller gave it up"};
  // The memory may hold what was there before.
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const std::size_t end =
        i + 1 < pictures.size() ? static_cast<std::size_t>(output.places[3 * (i + 1)]) : total;
    if (pictures[i].error) std::fill(pictures[i].out, output.memory->data() + end, std::byte{0});
  }
  return output;
}

std::shared_ptr<const ColumnDecoder> ImageDecoder::ForColumn(std::uint32_t threads) const {
  return MakeImageColumn(*this, threads);
}

Result<std::shared_ptr<std::span<std::byte>>> ImageDecoder::Memory(std::size_t size_bytes) {
  return BufferPool::Process().Take(size_bytes);
}

}  // namespace ffrecord
