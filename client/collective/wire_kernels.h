#pragma once

#include <cstddef>
#include <cstdint>

namespace ffrecord::client {

// The loops over fp16 arrays, at any alignment: those that any processor runs, and the best that
// this one does. The same bits by all.
struct WireKernels {
  // The largest finite magnitude of `count` floats, as its bits; 0 if there is none.
  std::uint32_t (*largest)(std::uint64_t count, const std::byte* floats);
  // Writes each float times `scale` to `halves`, unless that is null, and to `floats` what `back`
  // makes of it.
  void (*encode)(float scale, float back, std::uint64_t count, std::byte* floats,
                 std::byte* halves);
  void (*decode)(float back, std::uint64_t count, const std::byte* halves, std::byte* floats);
  // floats[i] += what halves[i] stands for; NaNs become the quiet one.
  void (*add)(float back, std::uint64_t count, const std::byte* halves, std::byte* floats);
};

extern const WireKernels kWirePlain;
const WireKernels& BestWireKernels() noexcept;

}  // namespace ffrecord::client
