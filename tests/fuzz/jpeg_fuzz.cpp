// Pictures. The first byte chooses the options, the rest is a JPEG. Invariant: what is decoded once
// is decoded again to the same bytes, whatever was in the memory.

#include <ffrecord/images.h>

#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ffrecord;
  if (size == 0) return 0;
  ImageOptions options{.height = 16, .width = 24, .pixels_max = 1 << 16};
  options.channels = (data[0] & 1) != 0 ? 1 : 3;
  options.crop = static_cast<CropKind>(data[0] >> 1 & 1 ? 2 : data[0] >> 2 & 1);
  options.apply_orientation = (data[0] & 8) != 0;
  if ((data[0] & 16) != 0) options.height = options.width = 0, options.crop = CropKind::kWhole;
  const auto decoder = ImageDecoder::Make(options).value();
  std::vector<Picture> pictures(2);
  std::vector<std::byte> out[2];
  for (Picture& picture : pictures) picture.jpeg = std::as_bytes(std::span(data, size)).subspan(1);
  if (options.height == 0) decoder.Measure(pictures);
  for (std::size_t i = 0; i < 2; ++i) {
    if (pictures[i].error) continue;
    out[i].assign(decoder.SizeOf(pictures[i]), std::byte{static_cast<unsigned char>(0x55 * i)});
    pictures[i].out = out[i].data();
  }
  decoder.Decode(pictures, 1, 2, 1);
  if (pictures[0].error.has_value() != pictures[1].error.has_value()) __builtin_trap();
  if (!pictures[0].error && out[0] != out[1]) __builtin_trap();
  return 0;
}
