#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/images.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/field.h"
#include "python/src/native_decoder.h"
#include "python/src/signals.h"

namespace ffrecord::python {
namespace {

using Pixels = py::array_t<std::uint8_t, py::array::c_style>;

PixelType TypeOf(const std::string& name) {
  if (name == "uint8") return PixelType::kU8;
  if (name == "float16") return PixelType::kF16;
  if (name == "float32") return PixelType::kF32;
  Raise({ErrorCode::kInvalidArgument,
         "image: dtype is '" + name + "'; it can be uint8, float16, float32"});
}

PixelLayout LayoutOf(const std::string& name) {
  if (name == "NHWC") return PixelLayout::kInterleaved;
  if (name == "NCHW") return PixelLayout::kPlanar;
  Raise({ErrorCode::kInvalidArgument, "image: layout is '" + name + "'; it can be NHWC, NCHW"});
}

// `crop` is empty, (share) of a centre crop, or (area and aspect, least and most) of a random one.
std::unique_ptr<ImageDecoder> Make(std::uint32_t height, std::uint32_t width,
                                   const std::vector<double>& crop, double flip,
                                   std::uint32_t channels, const std::string& dtype,
                                   const std::string& layout, const std::array<double, 3>& mean,
                                   const std::array<double, 3>& deviation, bool orient,
                                   std::uint64_t pixels_max) {
  ImageOptions options{.height = height, .width = width, .channels = channels};
  if (crop.size() == 1) {
    options.crop = CropKind::kCentre;
    options.centre_share = crop[0];
  } else if (crop.size() == 4) {
    options.crop = CropKind::kRandom;
    options.area_min = crop[0];
    options.area_max = crop[1];
    options.aspect_min = crop[2];
    options.aspect_max = crop[3];
  }
  options.flip_probability = flip;
  options.apply_orientation = orient;
  options.type = TypeOf(dtype);
  options.layout = LayoutOf(layout);
  options.mean = mean;
  options.deviation = deviation;
  options.pixels_max = pixels_max;
  return std::make_unique<ImageDecoder>(ValueOrRaise(ImageDecoder::Make(options)));
}

// The rows whose status is good and that do not begin as a JPEG does.
py::array_t<std::int64_t> Others(const py::object& fields) {
  const FieldSpans spans(fields);
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < spans.size(); ++i)
    if (spans.good(i) && !ImageDecoder::IsJpeg(spans[i]))
      rows.push_back(static_cast<std::int64_t>(i));
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

// The block, where each picture begins in it, height and width of each, and what is wrong with
// some.
py::tuple Decode(const ImageDecoder& self, const py::object& fields,
                 const std::vector<std::pair<std::size_t, Pixels>>& decoded, std::uint64_t seed,
                 std::uint64_t epoch,
                 const py::array_t<std::int64_t, py::array::c_style>& positions,
                 std::uint32_t threads) {
  const FieldSpans spans(fields);
  if (static_cast<std::size_t>(positions.size()) != spans.size())
    Raise({ErrorCode::kInvalidArgument, "image: as many positions as records are needed"});
  std::vector<Picture> pictures(spans.size());
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    pictures[i].position = static_cast<std::uint64_t>(positions.data()[i]);
    pictures[i].jpeg = spans[i];
    if (!spans.good(i))
      pictures[i].error = Error{ErrorCode::kOk, ""};
    else if (spans[i].empty())
      pictures[i].error = Error{ErrorCode::kCorruption, "an empty value, no picture"};
  }
  for (const auto& [row, pixels] : decoded) {
    if (row >= pictures.size() || pixels.ndim() != 3 ||
        pixels.shape(2) != static_cast<py::ssize_t>(self.options().channels) ||
        std::max(pixels.shape(0), pixels.shape(1)) > std::int64_t{0xFFFF'FFFF})
      Raise({ErrorCode::kInvalidArgument, "image: pixels of another shape"});
    Picture& picture = pictures[row];
    picture.jpeg = {};
    picture.pixels = reinterpret_cast<const std::byte*>(pixels.data());
    picture.height = static_cast<std::uint32_t>(pixels.shape(0));
    picture.width = static_cast<std::uint32_t>(pixels.shape(1));
    picture.error.reset();
  }
  auto output = ValueOrRaise(Interruptible([&](const auto& give_up) {
    return self.DecodeBatch(pictures, seed, epoch, threads, give_up);
  }));
  using Memory = std::shared_ptr<std::span<std::byte>>;
  auto owner = std::make_unique<Memory>(std::move(output.memory));
  py::list wrong;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const auto& error = pictures[i].error;
    if (!error || error->code == ErrorCode::kOk) continue;
    if (error->code != ErrorCode::kCorruption) Raise(*error);
    wrong.append(py::make_tuple(i, error->message));
  }
  const std::span<std::byte> bytes = **owner;
  const py::capsule capsule(owner.get(), [](void* held) { delete static_cast<Memory*>(held); });
  owner.release();
  return py::make_tuple(View<std::uint8_t>(bytes.data(), bytes.size(), capsule),
                        PlacesOf(output.places), wrong);
}

}  // namespace

void BindImages(py::module_& module) {
  module.attr("has_jpeg") = ImageDecoder::HasJpeg();
  py::class_<NativeDecoder>(module, "NativeDecoder", py::is_final());
  py::class_<ImageDecoder>(module, "ImageDecoder", py::is_final())
      .def(py::init(&Make), py::kw_only(), py::arg("height"), py::arg("width"), py::arg("crop"),
           py::arg("flip"), py::arg("channels"), py::arg("dtype"), py::arg("layout"),
           py::arg("mean"), py::arg("deviation"), py::arg("orient"), py::arg("pixels_max"))
      .def_static("others", &Others, py::arg("field"))
      .def("decode", &Decode, py::arg("field"), py::arg("decoded"), py::arg("seed"),
           py::arg("epoch"), py::arg("positions"), py::arg("threads"))
      .def(
          "native",
          [](const ImageDecoder& self, std::uint32_t threads) {
            return NativeDecoder{self.ForColumn(threads)};
          },
          py::arg("threads"));
}

}  // namespace ffrecord::python
