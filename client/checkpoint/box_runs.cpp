#include "client/checkpoint/box_runs.h"

#include <algorithm>
#include <vector>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// Distance in bytes between neighbours of each dimension of a row-major box.
std::vector<std::uint64_t> Strides(std::span<const std::uint64_t> extent,
                                   std::uint64_t element_size_bytes) {
  std::vector<std::uint64_t> strides(extent.size());
  std::uint64_t stride = element_size_bytes;
  for (std::size_t d = extent.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= extent[d];
  }
  return strides;
}

}  // namespace

void ForEachRun(const Box& from, const Box& to, std::uint64_t element_size_bytes,
                const std::function<void(const ByteRun&)>& use) {
  const std::size_t dimensions = from.extent.size();
  FFR_ASSERT(to.extent.size() == dimensions);
  std::vector<std::uint64_t> start(dimensions);
  std::vector<std::uint64_t> count(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint64_t end =
        std::min(from.offset[d] + from.extent[d], to.offset[d] + to.extent[d]);
    start[d] = std::max(from.offset[d], to.offset[d]);
    if (start[d] >= end) return;
    count[d] = end - start[d];
  }
  const auto from_strides = Strides(from.extent, element_size_bytes);
  const auto to_strides = Strides(to.extent, element_size_bytes);

  // The inner dimensions that both boxes span whole, and the next one out, make one run.
  std::size_t outer = dimensions;
  std::uint64_t run_size = element_size_bytes;
  while (outer > 0) {
    --outer;
    run_size *= count[outer];
    if (count[outer] != from.extent[outer] || count[outer] != to.extent[outer]) break;
  }

  std::uint64_t from_base = 0;
  std::uint64_t to_base = 0;
  for (std::size_t d = 0; d < dimensions; ++d) {
    from_base += (start[d] - from.offset[d]) * from_strides[d];
    to_base += (start[d] - to.offset[d]) * to_strides[d];
  }
  std::vector<std::uint64_t> index(outer, 0);
  for (;;) {
    ByteRun run{from_base, to_base, run_size};
    for (std::size_t d = 0; d < outer; ++d) {
      run.from_bytes += index[d] * from_strides[d];
      run.to_bytes += index[d] * to_strides[d];
    }
    use(run);
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == count[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace ffrecord::client
