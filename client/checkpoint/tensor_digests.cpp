#include "client/checkpoint/tensor_digests.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include <ffrecord/checkpoint_dtype.h>

#include "libffrecord/base/linear_digest.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {
namespace {

// The bytes of a box as runs of one size, each contiguous in the tensor.
struct Runs {
  std::uint64_t size_bytes;
  std::uint64_t first_bytes = 0;  // Offset of the first one in the tensor.
  std::size_t outer = 0;          // How many dimensions number the runs.
  std::array<std::uint64_t, kCheckpointDimensionsMax> strides{};  // In bytes.

  Runs(const Box& box, std::span<const std::uint64_t> shape, std::uint64_t element_size_bytes)
      : size_bytes(element_size_bytes), outer(shape.size()) {
    std::uint64_t stride = element_size_bytes;
    bool is_whole = true;  // All dimensions behind this one are.
    for (std::size_t d = shape.size(); d-- > 0;) {
      strides[d] = stride;
      first_bytes += box.offset[d] * stride;
      stride *= shape[d];
      if (!is_whole) continue;
      outer = d;
      size_bytes *= box.extent[d];
      is_whole = box.extent[d] == shape[d];
    }
  }

  // Offset of run `index` in the tensor.
  std::uint64_t OffsetOf(std::uint64_t index, std::span<const std::uint64_t> extent) const {
    std::uint64_t offset = first_bytes;
    for (std::size_t d = outer; d-- > 0;) {
      offset += index % extent[d] * strides[d];
      index /= extent[d];
    }
    return offset;
  }
};

}  // namespace

std::uint64_t DigestInTensor(const Box& box, std::span<const std::uint64_t> shape,
                             std::uint64_t element_size_bytes, std::uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  if (std::ranges::equal(box.extent, shape))
    return LinearDigest(bytes, offset_bytes);  // All of it.
  const Runs runs(box, shape, element_size_bytes);
  std::uint64_t digest = 0;
  while (!bytes.empty()) {
    const std::uint64_t run = offset_bytes / runs.size_bytes;
    const std::uint64_t from = offset_bytes % runs.size_bytes;
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), runs.size_bytes - from));
    digest ^= LinearDigest(part, runs.OffsetOf(run, box.extent) + from);
    offset_bytes += part.size();
    bytes = bytes.subspan(part.size());
  }
  return digest;
}

std::uint64_t DigestOf(const TensorView& tensor, std::uint64_t offset_bytes,
                       std::span<const std::byte> bytes) {
  return DigestInTensor({tensor.offset, tensor.extent}, tensor.shape,
                        CheckpointDtypeOf(tensor.dtype)->size_bytes, offset_bytes, bytes);
}

struct BoxDigests::Impl {
  std::vector<Place> places;
  std::vector<std::atomic<std::uint64_t>> sums;
  std::vector<std::atomic<bool>> has_passed;  // One per block.

  Impl(std::vector<Place> all, std::uint64_t payload_size_bytes)
      : places(std::move(all)),
        sums(places.size()),
        has_passed((payload_size_bytes + kSegmentBlockSize - 1) / kSegmentBlockSize) {}
};

BoxDigests::BoxDigests(std::vector<Place> places, std::uint64_t payload_size_bytes)
    : impl_(std::make_shared<Impl>(std::move(places), payload_size_bytes)) {}

void BoxDigests::AddBlock(std::uint64_t offset_bytes, std::span<const std::byte> block) {
  if (impl_->has_passed[offset_bytes / kSegmentBlockSize].exchange(true)) return;
  const std::uint64_t end = offset_bytes + block.size();
  const auto first = std::ranges::partition_point(impl_->places, [&](const Place& place) {
    return place.offset_bytes + place.size_bytes <= offset_bytes;
  });
  for (auto place = first; place != impl_->places.end() && place->offset_bytes < end; ++place) {
    const std::uint64_t from = std::max(offset_bytes, place->offset_bytes);
    const std::uint64_t to = std::min(end, place->offset_bytes + place->size_bytes);
    const std::uint64_t digest =
        DigestInTensor(place->box, place->shape, place->element_size_bytes,
                       from - place->offset_bytes, block.subspan(from - offset_bytes, to - from));
    impl_->sums[static_cast<std::size_t>(place - impl_->places.begin())].fetch_xor(digest);
  }
}

bool BoxDigests::is_complete() const {
  return std::ranges::all_of(impl_->has_passed, [](const auto& passed) { return passed.load(); });
}

std::vector<std::uint64_t> BoxDigests::sums() const {
  return {impl_->sums.begin(), impl_->sums.end()};
}

}  // namespace ffrecord::client
