#include "libffrecord/format/packed_file.h"

#include <algorithm>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::string_view kMagic = "FFRPACK1";
constexpr std::uint32_t kWidths[] = {1, 2, 4, 8};
constexpr std::size_t kSampleSize = 32 << 10;

Error Bad(const std::string& what) {
  return {ErrorCode::kCorruption, "a packed file is malformed: " + what};
}

std::uint64_t FrameCountOf(std::uint64_t raw_size_bytes) {
  return (raw_size_bytes + kPackedFrameSize - 1) / kPackedFrameSize;
}

std::uint64_t RawSizeOf(std::uint64_t raw_size_bytes, std::uint64_t frame) {
  return std::min(kPackedFrameSize, raw_size_bytes - frame * kPackedFrameSize);
}

// Where the planes of `raw_size` bytes lie when they stand one behind the other: all elements'
// first bytes, all second ones, and so on. Bytes that are no whole element are with the last plane.
std::span<const std::byte> PlaneOf(std::span<const std::byte> planes, std::uint32_t width,
                                   std::uint32_t plane) {
  const std::size_t count = planes.size() / width;
  const std::size_t begin = plane * count;
  return plane + 1 == width ? planes.subspan(begin) : planes.subspan(begin, count);
}

template <std::size_t Width>
void Split(std::span<const std::byte> raw, std::byte* planes) {
  const std::size_t count = raw.size() / Width;
  for (std::size_t plane = 0; plane < Width; ++plane)
    for (std::size_t i = 0; i < count; ++i) planes[plane * count + i] = raw[i * Width + plane];
  std::ranges::copy(raw.subspan(count * Width), planes + count * Width);
}

template <std::size_t Width>
void Join(std::span<const std::byte> planes, std::byte* raw) {
  const std::size_t count = planes.size() / Width;
  for (std::size_t plane = 0; plane < Width; ++plane)
    for (std::size_t i = 0; i < count; ++i) raw[i * Width + plane] = planes[plane * count + i];
  std::ranges::copy(planes.subspan(count * Width), raw + count * Width);
}

}  // namespace

std::span<const std::byte> FramePacker::PackAs(std::uint32_t width, std::span<const std::byte> raw,
                                               ZstdCompressor& compressor) {
  planes_.resize(raw.size());
  if (width == 1) std::ranges::copy(raw, planes_.begin());
  if (width == 2) Split<2>(raw, planes_.data());
  if (width == 4) Split<4>(raw, planes_.data());
  if (width == 8) Split<8>(raw, planes_.data());
  stored_.resize(width * sizeof(std::uint32_t));
  for (std::uint32_t i = 0; i < width; ++i) {
    const auto plane = PlaneOf(planes_, width, i);
    const auto smaller = compressor.Compress(plane);
    const auto kept = smaller.empty() ? plane : smaller;
    StoreLittleEndian(std::span(stored_), i * sizeof(std::uint32_t),
                      static_cast<std::uint32_t>(kept.size()));
    stored_.insert(stored_.end(), kept.begin(), kept.end());
  }
  return stored_;
}

FramePacker::Packed FramePacker::Pack(std::span<const std::byte> raw) {
  FFR_ASSERT(raw.size() <= kPackedFrameSize);
  // Whole elements of any width.
  const auto rear = raw.subspan(raw.size() / 2 / 8 * 8);
  const auto sample = rear.first(std::min(kSampleSize, rear.size()));
  std::uint32_t best = 0;
  std::size_t least = sample.size() * 97 / 100;  // Less is not worth it.
  for (const std::uint32_t width : kWidths) {
    const std::size_t size = PackAs(width, sample, sample_).size();
    if (size >= least) continue;
    best = width;
    least = size;
  }
  if (best != 0) {
    const auto stored = PackAs(best, raw, whole_);
    if (stored.size() < raw.size())
      return {{static_cast<std::uint32_t>(stored.size()), best}, stored};
  }
  return {{static_cast<std::uint32_t>(raw.size()), 0}, raw};
}

Result<void> UnpackFrame(const PackedFrame& frame, std::span<const std::byte> stored,
                         std::span<std::byte> raw, std::vector<std::byte>& planes) {
  if (stored.size() != frame.stored_size_bytes) return Bad("a frame is cut short");
  if (frame.width == 0) {
    if (stored.size() != raw.size()) return Bad("a frame that is stored as it is has another size");
    std::ranges::copy(stored, raw.begin());
    return {};
  }
  planes.resize(raw.size());
  ByteReader reader(stored);
  std::array<std::uint32_t, 8> sizes{};
  for (std::uint32_t i = 0; i < frame.width; ++i) sizes[i] = reader.Take<std::uint32_t>();
  for (std::uint32_t i = 0; i < frame.width; ++i) {
    const auto kept = reader.TakeBytes(sizes[i]);
    const auto part = PlaneOf(planes, frame.width, i);
    const auto plane = std::span(planes).subspan(
        static_cast<std::size_t>(part.data() - planes.data()), part.size());
    if (!reader.ok()) return Bad("a frame is cut short");
    if (kept.size() == plane.size())
      std::ranges::copy(kept, plane.begin());
    else
      FFR_TRY(DecompressZstd(kept, plane));
  }
  if (!reader.AtEnd()) return Bad("a frame has more than its planes");
  if (frame.width == 1) std::ranges::copy(planes, raw.begin());
  if (frame.width == 2) Join<2>(planes, raw.data());
  if (frame.width == 4) Join<4>(planes, raw.data());
  if (frame.width == 8) Join<8>(planes, raw.data());
  return {};
}

std::vector<std::byte> EncodePackedEnd(std::uint64_t raw_size_bytes,
                                       std::span<const PackedFrame> frames) {
  FFR_ASSERT(frames.size() == FrameCountOf(raw_size_bytes));
  ByteWriter writer;
  writer.Reserve(8 * frames.size() + kPackedFooterSize);
  std::uint64_t offset = 0;
  for (const PackedFrame& frame : frames) {
    writer.Put(frame.stored_size_bytes);
    writer.Put(frame.width);
    offset += frame.stored_size_bytes;
  }
  const Digest128 digest = Xxh3Digest(writer.bytes());
  writer.PutText(kMagic);
  writer.Put(raw_size_bytes);
  writer.Put(std::uint64_t{frames.size()});
  writer.Put(offset);
  writer.PutBytes(digest);
  return std::move(writer).Take();
}

Result<PackedFooter> DecodePackedFooter(std::span<const std::byte> footer,
                                        std::uint64_t file_size_bytes) {
  ByteReader reader(footer);
  if (reader.TakeText(kMagic.size()) != kMagic) return Bad("it does not end as one");
  PackedFooter found;
  found.raw_size_bytes = reader.Take<std::uint64_t>();
  found.frame_count = reader.Take<std::uint64_t>();
  found.table_offset_bytes = reader.Take<std::uint64_t>();
  const auto digest = reader.TakeBytes(found.table_digest.size());
  if (!reader.AtEnd()) return Bad("its footer has another size");
  std::ranges::copy(digest, found.table_digest.begin());
  if (found.raw_size_bytes > kPackedRawSizeMax ||
      found.frame_count != FrameCountOf(found.raw_size_bytes) ||
      found.table_offset_bytes > file_size_bytes ||
      file_size_bytes - found.table_offset_bytes != found.table_size_bytes() + kPackedFooterSize)
    return Bad("its sizes contradict each other");
  return found;
}

Result<PackedTable> DecodePackedTable(const PackedFooter& footer,
                                      std::span<const std::byte> table) {
  if (table.size() != footer.table_size_bytes() || Xxh3Digest(table) != footer.table_digest)
    return Bad("its table fails its check");
  PackedTable found;
  found.raw_size_bytes = footer.raw_size_bytes;
  found.frames.reserve(footer.frame_count);
  found.offsets.reserve(footer.frame_count + 1);
  ByteReader reader(table);
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < footer.frame_count; ++i) {
    PackedFrame frame;
    frame.stored_size_bytes = reader.Take<std::uint32_t>();
    frame.width = reader.Take<std::uint32_t>();
    const bool is_width = frame.width == 0 || std::ranges::count(kWidths, frame.width) == 1;
    const std::uint64_t raw_size = RawSizeOf(footer.raw_size_bytes, i);
    if (!is_width || frame.stored_size_bytes > raw_size ||
        (frame.width == 0 && frame.stored_size_bytes != raw_size))
      return Bad("frame " + std::to_string(i) + " cannot be so");
    found.offsets.push_back(offset);
    found.frames.push_back(frame);
    offset += frame.stored_size_bytes;
  }
  found.offsets.push_back(offset);
  if (offset != footer.table_offset_bytes) return Bad("its frames have another size together");
  return found;
}

}  // namespace ffrecord
