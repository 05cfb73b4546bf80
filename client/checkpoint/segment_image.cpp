#include "client/checkpoint/segment_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ffrecord/checkpoint_dtype.h>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// Handed out at once by At(): few calls, and still in the cache when it is copied after hashing.
constexpr std::uint64_t kRunSize = 4 * kSegmentBlockSize;

// A run that is shorter is gathered with its neighbours: a copy costs less than one more write.
constexpr std::uint64_t kOwnMemoryMin = 4 * kSegmentBlockSize;

}  // namespace

SegmentImage::SegmentImage(const StoredSegment& segment, std::span<const Placement> placements,
                           std::span<const TensorView> tensors,
                           std::atomic<std::uint64_t>* done_bytes, bool with_digests)
    : id_(segment.id),
      layout_(LayoutOfSegment(segment.payload_size_bytes)),
      placements_(placements),
      tensors_(tensors),
      done_bytes_(done_bytes),
      checks_(layout_.block_count) {
  Cut();
  if (!with_digests) return;
  std::vector<BoxDigests::Place> places;
  places.reserve(placements.size());
  for (const Placement& placement : placements) {
    const TensorView& tensor = tensors[placement.tensor];
    places.push_back({placement.offset_bytes,
                      tensor.data.size(),
                      {tensor.offset, tensor.extent},
                      tensor.shape,
                      CheckpointDtypeOf(tensor.dtype)->size_bytes});
  }
  digests_.emplace(std::move(places), layout_.payload_size_bytes);
}

std::vector<std::uint64_t> SegmentImage::digests() const {
  return digests_ ? digests_->sums() : std::vector<std::uint64_t>();
}

// --- Pieces --------------------------------------------------------------------------------------

void SegmentImage::Cut() {
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < placements_.size();) {
    if (tensors_[placements_[i].tensor].fetch) {
      ++i;
      continue;
    }
    // Boxes of one tensor that follow each other in memory as in the file are one run.
    const std::uint64_t start = placements_[i].offset_bytes;
    std::span<const std::byte> data = DataOf(placements_[i]);
    for (++i; i < placements_.size(); ++i) {
      const auto more = DataOf(placements_[i]);
      if (placements_[i].offset_bytes != start + data.size() ||
          more.data() != data.data() + data.size())
        break;
      data = {data.data(), data.size() + more.size()};
    }
    const std::uint64_t begin = AlignUp(start, kSegmentBlockSize);
    const std::uint64_t end = AlignDown(start + data.size(), kSegmentBlockSize);
    if (end < begin + kOwnMemoryMin) continue;
    const std::byte* memory = data.data() + (begin - start);
    if (reinterpret_cast<std::uintptr_t>(memory) % kSegmentAlignment != 0) continue;
    AddPieces(done, begin, nullptr);
    AddPieces(begin, end, memory);
    done = end;
  }
  AddPieces(done, layout_.payload_size_bytes, nullptr);
}

void SegmentImage::AddPieces(std::uint64_t begin, std::uint64_t end, const std::byte* own_memory) {
  while (begin < end) {
    const std::uint64_t size = std::min(end - begin, kPieceSizeMax);
    pieces_.push_back({begin, size, own_memory, IsStable(begin, begin + size)});
    begin += size;
    if (own_memory != nullptr) own_memory += size;
  }
}

bool SegmentImage::IsStable(std::uint64_t begin, std::uint64_t end) const {
  for (std::size_t i = FirstEndingAfter(begin);
       i < placements_.size() && placements_[i].offset_bytes < end; ++i)
    if (!tensors_[placements_[i].tensor].is_stable) return false;
  return true;
}

std::span<const std::byte> SegmentImage::Make(const Piece& piece, std::span<std::byte> buffer) {
  std::span<const std::byte> bytes(piece.own_memory, piece.size_bytes);
  if (piece.own_memory == nullptr) {
    const auto room = buffer.first(piece.size_bytes);
    Gather(piece.offset_bytes, room);
    bytes = room;
  }
  Hash(piece.offset_bytes, bytes);
  return bytes;
}

std::span<const std::byte> SegmentImage::MakeEnd() {
  end_ = EncodeSegmentEnd(id_, layout_, checks_);
  table_digest_ = SegmentTableDigest(std::span(end_).first(layout_.table_size_bytes));
  return end_;
}

// --- A stream ------------------------------------------------------------------------------------

std::span<const std::byte> SegmentImage::At(std::uint64_t offset_bytes,
                                            std::uint64_t size_bytes_max) {
  FFR_ASSERT(offset_bytes < layout_.file_size_bytes);
  if (offset_bytes < layout_.payload_size_bytes) {
    // From the beginning of its block, for a block is hashed whole.
    const std::uint64_t block = AlignDown(offset_bytes, kSegmentBlockSize);
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
    bytes = bytes.first(std::min(AlignDown(bytes.size(), kSegmentBlockSize), kRunSize));
  } else {
    gathered_.resize(end - offset_bytes);
    Gather(offset_bytes, gathered_);
    bytes = gathered_;
  }
  Hash(offset_bytes, bytes);
  return bytes;
}

// --- Both ----------------------------------------------------------------------------------------

void SegmentImage::Hash(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  for (std::uint64_t at = 0; at < bytes.size(); at += kSegmentBlockSize) {
    const auto block = bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at));
    checks_[(offset_bytes + at) / kSegmentBlockSize] =
        SegmentBlockCheck(id_, offset_bytes + at, block);
    if (digests_) digests_->AddBlock(offset_bytes + at, block);
  }
  if (done_bytes_ != nullptr) done_bytes_->fetch_add(bytes.size(), std::memory_order_relaxed);
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
  if (tensors_[placements_[i].tensor].fetch) return {};
  return DataOf(placements_[i]).subspan(offset_bytes - placements_[i].offset_bytes);
}

void SegmentImage::Copy(const TensorView& tensor, std::uint64_t offset_bytes,
                        std::span<std::byte> into) const {
  if (!tensor.fetch) {
    std::memcpy(into.data(), tensor.data.data() + offset_bytes, into.size());
    return;
  }
  auto fetched = tensor.fetch(tensor.fetch_offset_bytes + offset_bytes, into);
  if (fetched) return;
  std::memset(into.data(), 0, into.size());
  const std::lock_guard lock(failure_->mutex);
  if (!failure_->first) failure_->first = std::move(fetched).error();
}

Result<void> SegmentImage::fetched() const {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->first) return *failure_->first;
  return {};
}

void SegmentImage::Gather(std::uint64_t begin, std::span<std::byte> into) const {
  const std::uint64_t end = begin + into.size();
  std::uint64_t filled = begin;
  for (std::size_t i = FirstEndingAfter(begin);
       i < placements_.size() && placements_[i].offset_bytes < end; ++i) {
    const std::uint64_t start = placements_[i].offset_bytes;
    const auto data = DataOf(placements_[i]);
    const std::uint64_t from = std::max(begin, start);
    const std::uint64_t to = std::min(end, start + data.size());
    std::memset(into.data() + (filled - begin), 0, from - filled);
    Copy(tensors_[placements_[i].tensor], from - start, into.subspan(from - begin, to - from));
    filled = to;
  }
  std::memset(into.data() + (filled - begin), 0, end - filled);
}

}  // namespace ffrecord::client
