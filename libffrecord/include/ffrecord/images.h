#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/column_decoder.h>
#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The part of a picture to keep. loading.md, "Pictures", defines each.
enum class CropKind : std::uint8_t { kWhole, kCentre, kRandom };
enum class PixelType : std::uint8_t { kU8, kF16, kF32 };
// kInterleaved: height, width, channel. kPlanar: channel, height, width.
enum class PixelLayout : std::uint8_t { kInterleaved, kPlanar };

// Options for all pictures of a batch. Sizes are in pixels, probabilities and shares 0 to 1.
struct ImageOptions {
  std::uint32_t height = 0;  // Size of the output; both 0: each picture keeps its size.
  std::uint32_t width = 0;
  std::uint32_t channels = 3;  // 3 is RGB, 1 is grey.
  CropKind crop = CropKind::kWhole;
  double centre_share = 1;  // kCentre: side of the crop over that of the largest one that fits.
  double area_min = 0.08;   // kRandom: of the picture's area.
  double area_max = 1;
  double aspect_min = 3.0 / 4;  // kRandom: width / height.
  double aspect_max = 4.0 / 3;
  double flip_probability = 0;     // Left to right.
  bool apply_orientation = false;  // Rotate and mirror JPEGs by their EXIF orientation.
  PixelType type = PixelType::kU8;
  PixelLayout layout = PixelLayout::kInterleaved;
  std::array<double, 3> mean = {0, 0, 0};  // kF16, kF32: (value / 255 - mean) / deviation.
  std::array<double, 3> deviation = {1, 1, 1};
  std::uint64_t pixels_max = std::uint64_t{1} << 26;  // Larger pictures fail before decoding.
};

// One picture: a JPEG, or pixels that the caller has decoded. Borrows everything it points to.
struct Picture {
  std::span<const std::byte> jpeg;    // Empty if there are `pixels`.
  const std::byte* pixels = nullptr;  // height * width * channels, interleaved.
  std::uint32_t height = 0;           // Size of `pixels`; Measure sets it for a JPEG.
  std::uint32_t width = 0;
  std::uint64_t position = 0;                 // Seeds the random options, with seed and epoch.
  std::byte* out = nullptr;                   // ImageDecoder::SizeOf(*this) bytes.
  std::optional<Error> error = std::nullopt;  // kCorruption, kIo (ENOMEM); if set, skipped.
};

// Decodes, crops, resizes, flips and normalises the pictures of a batch, in threads.
//
// The output is a function of options, picture, seed, epoch and position: the number of threads
// changes no bit. The decoder decodes only the rows and columns of a JPEG that the crop keeps, at
// the smallest scale of 1, 1/2, 1/4 and 1/8 that is not below the output size. Immutable, hence
// thread-safe.
class FFR_EXPORT ImageDecoder {
 public:
  // Fails with kInvalidArgument, naming the option, if one is out of range.
  static Result<ImageDecoder> Make(const ImageOptions& options);

  // Whether this build can decode JPEGs. If not, each JPEG gets the error kInvalidArgument.
  static bool HasJpeg() noexcept;
  // Whether `bytes` begin with a JPEG signature.
  static bool IsJpeg(std::span<const std::byte> bytes) noexcept;

  const ImageOptions& options() const noexcept { return options_; }

  // Reads the headers of JPEGs; sets the height and width of each as displayed, or its error.
  void Measure(std::span<Picture> pictures) const;

  // Size in bytes of the output for `picture`. Unless the output size is fixed, the picture must
  // have been measured.
  std::size_t SizeOf(const Picture& picture) const noexcept;

  // Fills `out` of each picture that has no error, or sets its error. Uses up to `threads` threads:
  // the calling one, and free workers of the pool that the whole process shares.
  //
  // `give_up`, if given, is polled as by RecordReader::ReadBatch. Once it returns true, the call
  // returns false as soon as no thread writes to `out` any more; the remaining pictures are
  // unchanged.
  bool Decode(std::span<Picture> pictures, std::uint64_t seed, std::uint64_t epoch,
              std::uint32_t threads, const std::function<bool()>& give_up = {}) const;

  // Does all of this for a batch: measures, allocates, and decodes into one block, which has zeros
  // where a picture with an error has a place. Fails with kIo (ENOMEM), and with kDeadlineExceeded
  // once `give_up` returns true.
  struct Output {
    std::shared_ptr<std::span<std::byte>> memory;
    std::vector<std::int64_t> places;  // Start in the block, height, width of each picture.
  };
  Result<Output> DecodeBatch(std::span<Picture> pictures, std::uint64_t seed, std::uint64_t epoch,
                             std::uint32_t threads,
                             const std::function<bool()>& give_up = {}) const;

  // Decodes a column of JPEGs, with DecodeBatch. Pictures without a size in the options have
  // ColumnValues::places.
  std::shared_ptr<const ColumnDecoder> ForColumn(std::uint32_t threads) const;

  // Allocates memory for the output from the pool of batches (ffrecord/memory.h). Fails with kIo
  // (ENOMEM).
  static Result<std::shared_ptr<std::span<std::byte>>> Memory(std::size_t size_bytes);

 private:
  explicit ImageDecoder(const ImageOptions& options) noexcept : options_(options) {}
  ImageOptions options_;
};

}  // namespace ffrecord
