#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Which part of a picture is shown. loading.md, "Pictures", defines each.
enum class CropKind : std::uint8_t { kWhole, kCentre, kRandom };
enum class PixelType : std::uint8_t { kU8, kF16, kF32 };
// Channels of a pixel side by side, or planes of a channel one after another.
enum class PixelLayout : std::uint8_t { kInterleaved, kPlanar };

// What becomes of every picture of a batch. Sizes are in pixels, probabilities and shares 0 to 1.
struct ImageOptions {
  std::uint32_t height = 0;  // Of what comes out; both 0: each picture as large as it is.
  std::uint32_t width = 0;
  std::uint32_t channels = 3;  // 3 is RGB, 1 is grey.
  CropKind crop = CropKind::kWhole;
  double centre_share = 1;  // kCentre: of the largest box of the shape wanted, its side.
  double area_min = 0.08;   // kRandom: of the picture's area.
  double area_max = 1;
  double aspect_min = 3.0 / 4;  // kRandom: width / height.
  double aspect_max = 4.0 / 3;
  double flip_probability = 0;     // Left to right.
  bool apply_orientation = false;  // Turn JPEGs as their EXIF says.
  PixelType type = PixelType::kU8;
  PixelLayout layout = PixelLayout::kInterleaved;
  std::array<double, 3> mean = {0, 0, 0};  // kF16, kF32: (value / 255 - mean) / deviation.
  std::array<double, 3> deviation = {1, 1, 1};
  std::uint64_t pixels_max = std::uint64_t{1} << 26;  // A picture with more is refused unread.
};

// One picture: a JPEG, or pixels that were decoded elsewhere. Borrows all that it points to.
struct Picture {
  std::span<const std::byte> jpeg;    // Empty if there are `pixels`.
  const std::byte* pixels = nullptr;  // height * width * channels, interleaved.
  std::uint32_t height = 0;           // Of `pixels`; of a JPEG, Measure sets it.
  std::uint32_t width = 0;
  std::uint64_t position = 0;                 // What chance depends on, with seed and epoch.
  std::byte* out = nullptr;                   // ImageDecoder::SizeOf(*this) bytes.
  std::optional<Error> error = std::nullopt;  // kCorruption, or kIo (ENOMEM); skipped if there.
};

// Decodes, crops, resizes, flips and normalises the pictures of a batch, in threads.
//
// What comes out is a function of options, picture, seed, epoch and position: the number of threads
// changes no bit. Of a JPEG only the rows and columns that are shown are decoded, at the smallest
// scale of 1, 1/2, 1/4, 1/8 that is not below what is wanted. Immutable, hence thread-safe.
class FFR_EXPORT ImageDecoder {
 public:
  // Fails with kInvalidArgument, naming the option, if one is out of range.
  static Result<ImageDecoder> Make(const ImageOptions& options);

  // Whether this build can decode JPEGs; if not, a Picture that is one gets kInvalidArgument.
  static bool HasJpeg() noexcept;
  // Whether bytes begin as a JPEG does.
  static bool IsJpeg(std::span<const std::byte> bytes) noexcept;

  const ImageOptions& options() const noexcept { return options_; }

  // Reads the headers of JPEGs: sets height and width as the picture is shown, or an error.
  void Measure(std::span<Picture> pictures) const;

  // Of what comes out for a picture that was measured, or for any if the size is fixed; in bytes.
  std::size_t SizeOf(const Picture& picture) const noexcept;

  // Fills `out` of each picture that has no error, or sets its error. Up to `threads` at a time:
  // the calling one, and helpers of a pool that the process has but once, as far as they are free.
  //
  // `give_up`, if given, is asked as by RecordReader::ReadBatch. Once it says true, the call
  // returns as soon as nobody writes to `out` any more, and the pictures that are left are as they
  // were.
  void Decode(std::span<Picture> pictures, std::uint64_t seed, std::uint64_t epoch,
              std::uint32_t threads, const std::function<bool()>& give_up = {}) const;

  // Memory for what comes out, from the pool that batches lie in (ffrecord/memory.h). Fails with
  // kIo (ENOMEM).
  static Result<std::shared_ptr<std::span<std::byte>>> Memory(std::size_t size_bytes);

 private:
  explicit ImageDecoder(const ImageOptions& options) noexcept : options_(options) {}
  ImageOptions options_;
};

}  // namespace ffrecord
