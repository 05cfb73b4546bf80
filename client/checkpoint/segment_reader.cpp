#include "client/checkpoint/segment_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <tuple>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/endian.h"

namespace ffrecord::client {
namespace {

// Each thread has one wave of pieces in flight, read in one submission.
constexpr std::uint64_t kPieceSize = 1 << 20;
constexpr std::size_t kPiecesInWave = 8;
constexpr unsigned kThreadsMax = 4;
static_assert(kPieceSize % kSegmentBlockSize == 0);

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

// Whole blocks of one segment, and the copies that need bytes of them: [first, last) of the sorted
// copies.
struct SegmentReader::Piece {
  std::uint32_t segment;
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
  std::size_t first_copy;
  std::size_t last_copy;
};

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(const CommittedStep& files,
                                                           std::vector<Segment> segments) {
  auto reader = std::make_unique<SegmentReader>();
  if (segments.empty()) return reader;
  std::vector<std::string> names;
  for (const Segment& segment : segments) names.push_back(segment.name);
  reader->files_ = FFR_TRY(files.OpenFiles(names));
  for (std::uint32_t i = 0; i < segments.size(); ++i) {
    const std::uint64_t expected =
        LayoutOfSegment(segments[i].stored.payload_size_bytes).file_size_bytes;
    const std::uint64_t found = reader->files_->file_size_bytes(i);
    auto open = std::make_unique<OpenSegment>();
    open->description = files.Describe(segments[i].name);
    if (found != expected)
      return Error{ErrorCode::kCorruption, open->description + ": has " + std::to_string(found) +
                                               " bytes, its manifest says " +
                                               std::to_string(expected)};
    open->segment = std::move(segments[i]);
    reader->segments_.push_back(std::move(open));
  }
  return reader;
}

Result<void> SegmentReader::Read(std::vector<SegmentCopy> copies) const {
  std::sort(copies.begin(), copies.end(), [](const SegmentCopy& a, const SegmentCopy& b) {
    return std::tie(a.segment, a.offset_bytes) < std::tie(b.segment, b.offset_bytes);
  });
  const std::vector<Piece> pieces = Cut(copies);
  const std::size_t wave_count = (pieces.size() + kPiecesInWave - 1) / kPiecesInWave;
  std::atomic<std::size_t> next_wave{0};
  std::mutex mutex;
  std::optional<Error> first_error;

  const auto work = [&] {
    const auto fail = [&](Error error) {
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::move(error);
      next_wave = wave_count;
    };
    auto buffer = BufferPool::Process().Take(kPiecesInWave * (kPieceSize + kSegmentBlockSize));
    if (!buffer) return fail(std::move(buffer).error());
    for (std::size_t wave; (wave = next_wave++) < wave_count;) {
      const auto rest = std::span(pieces).subspan(wave * kPiecesInWave);
      auto outcome =
          ReadPieces(rest.first(std::min(rest.size(), kPiecesInWave)), copies, *buffer.value());
      if (!outcome) return fail(std::move(outcome).error());
    }
  };
  const std::size_t thread_count = std::min<std::size_t>(
      {wave_count, kThreadsMax, std::max(1U, std::thread::hardware_concurrency())});
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < thread_count; ++i) others.emplace_back(work);
  if (thread_count > 0) work();
  for (std::thread& thread : others) thread.join();
  if (first_error) return *std::move(first_error);
  return {};
}

// Pieces are blocks that copies need, neighbours together. A copy may span several pieces.
std::vector<SegmentReader::Piece> SegmentReader::Cut(std::span<const SegmentCopy> copies) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const SegmentCopy& copy = copies[i];
    if (copy.size_bytes == 0) continue;
    const std::uint64_t payload = segments_[copy.segment]->segment.stored.payload_size_bytes;
    const std::uint64_t end =
        std::min(payload, RoundUp(copy.offset_bytes + copy.size_bytes, kSegmentBlockSize));
    std::uint64_t at = copy.offset_bytes / kSegmentBlockSize * kSegmentBlockSize;
    if (!pieces.empty() && pieces.back().segment == copy.segment) {
      Piece& last = pieces.back();
      const std::uint64_t last_end = last.offset_bytes + last.size_bytes;
      // Not if it begins before the last piece, among those of an overlapping copy.
      if (at >= last.offset_bytes && at <= last_end) {
        const std::uint64_t grown =
            std::min(std::max(end, last_end), last.offset_bytes + kPieceSize);
        if (at < grown) last.last_copy = i + 1;
        last.size_bytes = std::max(last_end, grown) - last.offset_bytes;
        at = std::max(at, last.offset_bytes + last.size_bytes);
      }
    }
    while (at < end) {
      const std::uint64_t size = std::min(end - at, kPieceSize);
      pieces.push_back({copy.segment, at, size, i, i + 1});
      at += size;
    }
  }
  return pieces;
}

// With direct I/O a read is a multiple of the file's alignment, past the payload's end if need be.
std::uint64_t SegmentReader::RoomFor(const Piece& piece) const {
  return RoundUp(piece.size_bytes, files_->alignment_bytes(piece.segment));
}

Result<void> SegmentReader::ReadPieces(std::span<const Piece> pieces,
                                       std::span<const SegmentCopy> copies,
                                       std::span<std::byte> buffer) const {
  std::vector<RangeRead> ranges;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    ranges.push_back({pieces[i].segment, pieces[i].offset_bytes,
                      buffer.subspan(i * (kPieceSize + kSegmentBlockSize), RoomFor(pieces[i])),
                      ErrorCode::kOk});
  FFR_TRY(ReadRanges(ranges));
  for (std::size_t i = 0; i < pieces.size(); ++i)
    FFR_TRY(Use(pieces[i], copies, ranges[i].destination.first(pieces[i].size_bytes)));
  return {};
}

Result<void> SegmentReader::ReadRanges(std::span<RangeRead> ranges) const {
  FFR_TRY(files_->Read(ranges));
  for (const RangeRead& range : ranges)
    if (range.status != ErrorCode::kOk)
      return Error{range.status, segments_[range.file]->description + ": reading " +
                                     std::to_string(range.destination.size()) +
                                     " bytes at offset " + std::to_string(range.offset_bytes) +
                                     " failed"};
  return {};
}

Result<void> SegmentReader::Use(const Piece& piece, std::span<const SegmentCopy> copies,
                                std::span<const std::byte> bytes) const {
  const OpenSegment& open = *segments_[piece.segment];
  const auto table = FFR_TRY(TableOf(piece.segment));
  for (std::uint64_t at = 0; at < bytes.size(); at += kSegmentBlockSize) {
    const std::uint64_t offset = piece.offset_bytes + at;
    const auto block = bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at));
    if (SegmentBlockCheck(open.segment.stored.id, offset, block) !=
        (*table)[offset / kSegmentBlockSize])
      return Error{ErrorCode::kCorruption,
                   open.description + ": the block at offset " + std::to_string(offset) +
                       " fails its checksum; it holds bytes of tensor " +
                       std::string(copies[piece.first_copy].key) +
                       ". Restore the file from a copy, or load an earlier step"};
  }
  for (std::size_t i = piece.first_copy; i < piece.last_copy; ++i) {
    const SegmentCopy& copy = copies[i];
    const std::uint64_t begin = std::max(copy.offset_bytes, piece.offset_bytes);
    const std::uint64_t end =
        std::min(copy.offset_bytes + copy.size_bytes, piece.offset_bytes + piece.size_bytes);
    if (begin < end)
      std::memcpy(copy.destination + (begin - copy.offset_bytes),
                  bytes.data() + (begin - piece.offset_bytes), end - begin);
  }
  return {};
}

Result<std::shared_ptr<const std::vector<std::uint64_t>>> SegmentReader::TableOf(
    std::uint32_t segment) const {
  OpenSegment& open = *segments_[segment];
  const std::lock_guard lock(open.mutex);
  if (open.table) return open.table;
  const SegmentLayout layout = LayoutOfSegment(open.segment.stored.payload_size_bytes);
  // Both ends are multiples of 4096: behind the table come padding and trailer.
  const auto buffer =
      FFR_TRY(BufferPool::Process().Take(layout.file_size_bytes - layout.table_offset_bytes));
  RangeRead range{segment, layout.table_offset_bytes, *buffer, ErrorCode::kOk};
  FFR_TRY(ReadRanges(std::span(&range, 1)));
  const auto bytes = buffer->first(layout.table_size_bytes);
  if (SegmentTableDigest(bytes) != open.segment.stored.table_digest)
    return Error{ErrorCode::kCorruption,
                 open.description + ": the table of block checksums at offset " +
                     std::to_string(layout.table_offset_bytes) +
                     " is not the one that its manifest lists. Restore the file from a copy, or "
                     "load an earlier step"};
  auto table = std::make_shared<std::vector<std::uint64_t>>(layout.block_count);
  for (std::size_t i = 0; i < table->size(); ++i)
    (*table)[i] = LoadLittleEndian<std::uint64_t>(bytes, i * 8);
  open.table = std::move(table);
  return open.table;
}

}  // namespace ffrecord::client
