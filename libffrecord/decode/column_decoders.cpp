#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/array_headers.h>
#include <ffrecord/images.h>

#include "libffrecord/decode/image_column.h"

namespace ffrecord {
namespace {

Error GivenUp() { return {ErrorCode::kDeadlineExceeded, "decode: the caller gave it up"}; }

class ImageColumn final : public ColumnDecoder {
 public:
  ImageColumn(const ImageDecoder& decoder, std::uint32_t threads)
      : decoder_(decoder), threads_(threads) {}

  Result<ColumnValues> Decode(const Input& input, const GiveUp& give_up) const override {
    std::vector<Picture> pictures(input.size());
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      if (!ImageDecoder::IsJpeg(input[i]))
        return Error{ErrorCode::kInvalidArgument,
                     "image: value " + std::to_string(i) + " of the batch is not a JPEG"};
      pictures[i].jpeg = input[i];
      pictures[i].position = input.position + i;
    }
    auto output =
        FFR_TRY(decoder_.DecodeBatch(pictures, input.seed, input.epoch, threads_, give_up));
    for (Picture& picture : pictures)
      if (picture.error) return *std::move(picture.error);
    const std::span<const std::byte> data = *output.memory;
    if (decoder_.options().height != 0) output.places.clear();  // All have one shape.
    return ColumnValues{data, std::move(output.memory), std::move(output.places)};
  }

 private:
  const ImageDecoder decoder_;
  const std::uint32_t threads_;
};

class NpyColumn final : public ColumnDecoder {
 public:
  NpyColumn(std::string dtype, std::vector<std::uint64_t> shape, std::size_t size_bytes)
      : dtype_(std::move(dtype)), shape_(std::move(shape)), size_bytes_(size_bytes) {}

  Result<ColumnValues> Decode(const Input& input, const GiveUp& give_up) const override {
    if (size_bytes_ != 0 && input.size() > SIZE_MAX / 2 / size_bytes_)
      return Error{ErrorCode::kIo, "npy: the batch does not fit into memory", ENOMEM};
    auto memory = FFR_TRY(ImageDecoder::Memory(input.size() * size_bytes_));
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (i % kStepValues == 0 && give_up && give_up()) return GivenUp();
      FFR_TRY(CopyNpy(input[i], dtype_, shape_, memory->subspan(i * size_bytes_, size_bytes_)));
    }
    const std::span<const std::byte> data = *memory;
    return ColumnValues{data, std::move(memory)};
  }

 private:
  static constexpr std::size_t kStepValues = 256;

  const std::string dtype_;
  const std::vector<std::uint64_t> shape_;
  const std::size_t size_bytes_;
};

std::string Spelled(const std::string& dtype, std::span<const std::uint64_t> shape) {
  std::string text = dtype + " of shape (";
  for (const std::uint64_t side : shape) text += std::to_string(side) + ",";
  return text + ")";
}

}  // namespace

std::shared_ptr<const ColumnDecoder> MakeImageColumn(const ImageDecoder& decoder,
                                                     std::uint32_t threads) {
  return std::make_shared<ImageColumn>(decoder, threads);
}

std::shared_ptr<const ColumnDecoder> NpyColumnDecoder(std::string dtype,
                                                      std::vector<std::uint64_t> shape,
                                                      std::size_t size_bytes) {
  return std::make_shared<NpyColumn>(std::move(dtype), std::move(shape), size_bytes);
}

Result<void> CopyNpy(std::span<const std::byte> value, const std::string& dtype,
                     std::span<const std::uint64_t> shape, std::span<std::byte> destination) {
  const ArrayHeader array = FFR_TRY(ReadNpyHeader(value));
  const bool in_order = !array.fortran_order || shape.size() < 2;
  if (array.dtype != dtype || !std::ranges::equal(array.shape, shape) || !in_order ||
      array.size_bytes != destination.size())
    return Error{ErrorCode::kCorruption, "an array " + Spelled(array.dtype, array.shape) +
                                             (array.fortran_order ? " in Fortran's order" : "") +
                                             ", wanted is " + Spelled(dtype, shape)};
  if (!destination.empty())
    std::memcpy(destination.data(), value.data() + array.offset_bytes, destination.size());
  return {};
}

}  // namespace ffrecord
