// Headers of .npy and safetensors files. Invariant: what they say lies inside the value, and is as
// large as shape and type say.

#include <ffrecord/array_headers.h>

namespace {

void Check(const ffrecord::ArrayHeader& array, std::size_t size) {
  if (array.offset_bytes > size || array.size_bytes > size - array.offset_bytes) __builtin_trap();
  std::uint64_t wanted = array.item_size_bytes;
  for (const std::uint64_t side : array.shape) wanted *= side;
  if (wanted != array.size_bytes) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto array = ffrecord::ReadNpyHeader(bytes)) Check(array.value(), size);
  if (const auto arrays = ffrecord::ReadSafetensorsHeader(bytes))
    for (const auto& each : arrays.value()) Check(each.array, size);
  return 0;
}
