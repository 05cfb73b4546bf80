#include "client/checkpoint/segment_image.h"

#include <algorithm>
#include <cstring>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// Handed out at once: few calls, and still in the cache when it is copied after hashing.
constexpr std::uint64_t kRunSize = 4 * kSegmentBlockSize;

}  // namespace

SegmentImage::SegmentImage(const StoredSegment& segment, std::span<const Placement> placements,
                           std::span<const TensorView> tensors)
    : id_(segment.id),
      layout_(LayoutOfSegment(segment.payload_size_bytes)),
      placements_(placements),
      tensors_(tensors),
      checks_(layout_.block_count) {}

std::span<const std::byte> SegmentImage::At(std::uint64_t offset_bytes,
                                            std::uint64_t size_bytes_max) {
  FFR_ASSERT(offset_bytes < layout_.file_size_bytes);
  if (offset_bytes < layout_.payload_size_bytes) {
    // From the beginning of its block, for a block is hashed whole.
    const std::uint64_t block = offset_bytes / kSegmentBlockSize * kSegmentBlockSize;
    const auto bytes = Payload(block).subspan(offset_bytes - block);
    return bytes.first(std::min<std::uint64_t>(bytes.size(), size_bytes_max));
  }
  if (offset_bytes == layout_.payload_size_bytes) MakeEnd();
  const auto bytes = std::span(end_).subspan(offset_bytes - layout_.payload_size_bytes);
  return bytes.first(std::min<std::uint64_t>(bytes.size(), size_bytes_max));
}

// One or more whole blocks from a block's beginning on, hashed.
std::span<const std::byte> SegmentImage::Payload(std::uint64_t offset_bytes) {
  const std::uint64_t end = std::min(offset_bytes + kSegmentBlockSize, layout_.payload_size_bytes);
  std::span<const std::byte> bytes = Contiguous(offset_bytes);
  if (bytes.size() >= kSegmentBlockSize) {
    const std::uint64_t whole = bytes.size() / kSegmentBlockSize * kSegmentBlockSize;
    bytes = bytes.first(std::min(whole, kRunSize));
  } else {
    Gather(offset_bytes, end);
    bytes = gathered_;
  }
  for (std::uint64_t at = 0; at < bytes.size(); at += kSegmentBlockSize) {
    const auto block = bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at));
    checks_[(offset_bytes + at) / kSegmentBlockSize] =
        SegmentBlockCheck(id_, offset_bytes + at, block);
  }
  return bytes;
}

std::span<const std::byte> SegmentImage::DataOf(const Placement& placement) const {
  return tensors_[placement.tensor].data;
}

std::size_t SegmentImage::FirstEndingAfter(std::uint64_t offset_bytes) const {
  const auto found =
      std::partition_point(placements_.begin(), placements_.end(), [&](const Placement& placement) {
        return placement.offset_bytes + DataOf(placement).size() <= offset_bytes;
      });
  return static_cast<std::size_t>(found - placements_.begin());
}

// The bytes of the tensor that covers `offset_bytes`, from there on; none if that is padding.
std::span<const std::byte> SegmentImage::Contiguous(std::uint64_t offset_bytes) const {
  const std::size_t i = FirstEndingAfter(offset_bytes);
  if (i == placements_.size() || placements_[i].offset_bytes > offset_bytes) return {};
  return DataOf(placements_[i]).subspan(offset_bytes - placements_[i].offset_bytes);
}

void SegmentImage::Gather(std::uint64_t begin, std::uint64_t end) {
  gathered_.assign(end - begin, std::byte{0});
  for (std::size_t i = FirstEndingAfter(begin);
       i < placements_.size() && placements_[i].offset_bytes < end; ++i) {
    const std::uint64_t start = placements_[i].offset_bytes;
    const auto data = DataOf(placements_[i]);
    const std::uint64_t from = std::max(begin, start);
    const std::uint64_t to = std::min(end, start + data.size());
    std::memcpy(gathered_.data() + (from - begin), data.data() + (from - start), to - from);
  }
}

void SegmentImage::MakeEnd() {
  end_ = EncodeSegmentEnd(id_, layout_, checks_);
  table_digest_ = SegmentTableDigest(std::span(end_).first(layout_.table_size_bytes));
}

}  // namespace ffrecord::client
