#include "client/checkpoint/segment_reader.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <tuple>

#include "client/checkpoint/files_with_copies.h"
#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/verified.h"
#include "libffrecord/base/align.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/base/streaming_copy.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord::client {
namespace {

// Each thread has one wave of pieces in flight, read in one submission and checked as they arrive.
constexpr std::uint64_t kPieceSize = 1 << 20;
constexpr std::size_t kPiecesInWave = 16;
constexpr unsigned kThreadsMax = 4;
static_assert(kPieceSize % kSegmentBlockSize == 0);

// Shorter runs of whole blocks are read with what lies beside them, by way of a buffer.
constexpr std::uint64_t kInPlaceMin = 4 * kSegmentBlockSize;

// In the buffer of a wave.
constexpr std::uint64_t kPieceRoom = kPieceSize + kSegmentBlockSize;

// Whether an error says something of the stored bytes: others are of the way to them, as of a
// daemon that does not answer.
bool IsOfBytes(const Error& error) noexcept {
  return error.code == ErrorCode::kCorruption || error.code == ErrorCode::kNotFound ||
         error.code == ErrorCode::kIo;
}

// The tensor of the first copy that has bytes in a block; `otherwise` if none has.
std::string_view KeyAt(std::span<const SegmentCopy> copies, std::uint64_t offset_bytes,
                       std::uint64_t size_bytes, std::string_view otherwise) {
  for (const SegmentCopy& copy : copies)
    if (copy.offset_bytes < offset_bytes + size_bytes &&
        offset_bytes < copy.offset_bytes + copy.size_bytes)
      return copy.key;
  return otherwise;
}

}  // namespace

// Whole blocks of one segment, and the copies that need bytes of them: [first, last) of the sorted
// copies. Or, with `destination`, blocks that are read to where one copy wants them.
struct SegmentReader::Piece {
  std::uint32_t segment;
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
  std::size_t first_copy;
  std::size_t last_copy;
  std::byte* destination;
  std::string_view key;  // Key of the first tensor that has bytes in it.
};

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(const CommittedStep& files,
                                                           std::vector<Segment> segments) {
  auto reader = std::make_unique<SegmentReader>();
  if (segments.empty()) return reader;
  std::vector<std::string> names;
  for (const Segment& segment : segments) names.push_back(segment.name);
  reader->files_ = FFR_TRY(OpenSegments(files, names));
  auto* const copies = dynamic_cast<SizedCopies*>(reader->files_.get());
  for (std::uint32_t i = 0; i < segments.size(); ++i) {
    const std::uint64_t expected =
        LayoutOfSegment(segments[i].stored.payload_size_bytes).file_size_bytes;
    if (copies != nullptr) copies->LeaveOutOtherSizes(i, expected);
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
  std::vector<Piece> in_place;
  const std::vector<SegmentCopy> edges = TakeInPlace(copies, in_place);
  const std::vector<Piece> buffered = Cut(edges);
  // Those in place first: they are the long ones.
  const auto waves_of = [](const std::vector<Piece>& pieces) {
    return (pieces.size() + kPiecesInWave - 1) / kPiecesInWave;
  };
  const std::size_t wave_count = waves_of(in_place) + waves_of(buffered);
  std::atomic<std::size_t> next_wave{0};
  const auto wave_at = [&](std::size_t wave) {
    const bool is_in_place = wave < waves_of(in_place);
    const auto& pieces = is_in_place ? in_place : buffered;
    const std::size_t first = (is_in_place ? wave : wave - waves_of(in_place)) * kPiecesInWave;
    return std::span(pieces).subspan(first, std::min(kPiecesInWave, pieces.size() - first));
  };
  const auto work = [&](const SideBySide& others) -> Result<void> {
    PooledBuffer buffer;
    for (std::size_t wave; !others.failed() && (wave = next_wave++) < wave_count;) {
      const auto pieces = wave_at(wave);
      if (!buffer && pieces.front().destination == nullptr)
        buffer = FFR_TRY(BufferPool::Process().Take(kPiecesInWave * kPieceRoom));
      FFR_TRY(ReadPieces(pieces, edges, buffer ? *buffer : std::span<std::byte>()));
    }
    return {};
  };
  return SideBySide::Run(std::min<std::size_t>({wave_count, kThreadsMax,
                                                std::max(1U, std::thread::hardware_concurrency())}),
                         work);
}

// Cuts off the whole blocks that can be read to where they are wanted: inside one copy, and aligned
// in memory as in the file. Returns what is left, sorted.
std::vector<SegmentCopy> SegmentReader::TakeInPlace(std::span<const SegmentCopy> copies,
                                                    std::vector<Piece>& pieces) const {
  std::vector<SegmentCopy> left;
  for (const SegmentCopy& copy : copies) {
    const std::uint64_t end = copy.offset_bytes + copy.size_bytes;
    const std::uint64_t first = AlignUp(copy.offset_bytes, kSegmentBlockSize);
    const std::uint64_t last = AlignDown(end, kSegmentBlockSize);
    const auto address = reinterpret_cast<std::uintptr_t>(copy.destination);
    const std::uint64_t alignment = files_ ? files_->alignment_bytes(copy.segment) : 1;
    if (last < first + kInPlaceMin || (address - copy.offset_bytes) % alignment != 0) {
      left.push_back(copy);
      continue;
    }
    for (std::uint64_t at = first; at < last; at += kPieceSize)
      pieces.push_back({copy.segment, at, std::min(kPieceSize, last - at), 0, 0,
                        copy.destination + (at - copy.offset_bytes), copy.key});
    if (first > copy.offset_bytes)
      left.push_back(
          {copy.segment, copy.offset_bytes, first - copy.offset_bytes, copy.destination, copy.key});
    if (end > last)
      left.push_back({copy.segment, last, end - last, copy.destination + (last - copy.offset_bytes),
                      copy.key});
  }
  std::sort(left.begin(), left.end(), [](const SegmentCopy& a, const SegmentCopy& b) {
    return std::tie(a.segment, a.offset_bytes) < std::tie(b.segment, b.offset_bytes);
  });
  return left;
}

// A piece that is not whole, and why.
struct SegmentReader::Flaw {
  std::size_t piece;
  Error error;
};

Result<std::vector<std::string>> SegmentReader::Verify(std::size_t damage_max,
                                                       const BlockUse& use) const {
  std::vector<std::string> damage;
  std::mutex mutex;
  const auto note = [&](const Error& error) {
    const std::lock_guard lock(mutex);
    if (damage.size() < damage_max) damage.push_back(error.message);
  };
  const auto is_enough = [&] {
    const std::lock_guard lock(mutex);
    return damage.size() >= damage_max;
  };
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    if (const auto table = TableOf(i)) {
      const Piece whole{i, 0, segments_[i]->segment.stored.payload_size_bytes, 0, 0, nullptr, {}};
      std::ranges::move(CutInto(whole, kPieceSize), std::back_inserter(pieces));
    } else if (table.error().code == ErrorCode::kCorruption) {
      note(table.error());
    } else {
      return table.error();
    }
  }
  const std::size_t wave_count = (pieces.size() + kPiecesInWave - 1) / kPiecesInWave;
  std::atomic<std::size_t> next_wave{0};
  const auto work = [&](const SideBySide& others) -> Result<void> {
    const auto buffer = FFR_TRY(BufferPool::Process().Take(kPiecesInWave * kPieceSize));
    for (std::size_t wave; !others.failed() && !is_enough() && (wave = next_wave++) < wave_count;) {
      const auto left = std::span(pieces).subspan(wave * kPiecesInWave);
      const auto taken = left.first(std::min(left.size(), kPiecesInWave));
      for (const Flaw& flaw : FFR_TRY(Examine(taken, *buffer, use))) {
        if (damage_max == 1) {
          note(flaw.error);
          continue;
        }
        // Each bad block is named. A store is asked for single ones only here.
        const auto blocks = CutInto(taken[flaw.piece], kSegmentBlockSize);
        for (const Flaw& block : FFR_TRY(Examine(blocks, *buffer, use))) note(block.error);
      }
    }
    return {};
  };
  FFR_TRY(
      SideBySide::Run(std::min<std::size_t>({wave_count, kThreadsMax,
                                             std::max(1U, std::thread::hardware_concurrency())}),
                      work));
  std::sort(damage.begin(), damage.end());
  return damage;
}

std::vector<SegmentReader::Piece> SegmentReader::CutInto(const Piece& piece,
                                                         std::uint64_t size_bytes_max) {
  std::vector<Piece> parts;
  for (std::uint64_t at = 0; at < piece.size_bytes; at += size_bytes_max) {
    parts.push_back(piece);
    parts.back().offset_bytes += at;
    parts.back().size_bytes = std::min(size_bytes_max, piece.size_bytes - at);
  }
  return parts;
}

Result<std::vector<SegmentReader::Flaw>> SegmentReader::Examine(std::span<const Piece> pieces,
                                                                std::span<std::byte> buffer,
                                                                const BlockUse& use) const {
  std::vector<RangeRead> ranges;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    ranges.push_back({pieces[i].segment, pieces[i].offset_bytes,
                      buffer.subspan(i * kPieceSize, pieces[i].size_bytes), ErrorCode::kOk});
  const auto pass = [&](const Piece& piece, std::span<const std::byte> bytes) {
    for (std::uint64_t at = 0; use && at < bytes.size(); at += kSegmentBlockSize)
      use(piece.segment, piece.offset_bytes + at,
          bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at)));
  };
  std::vector<Flaw> flaws;
  std::vector<std::size_t> damaged;
  FFR_TRY(files_->ReadEach(ranges, [&](RangeRead& range) {
    const auto i = static_cast<std::size_t>(&range - ranges.data());
    if (const auto status = CheckStatus(range); !status)
      flaws.push_back({i, status.error()});
    else if (!CheckBlocks(pieces[i], range.destination))
      damaged.push_back(i);
    else
      pass(pieces[i], range.destination);
  }));
  for (const std::size_t i : damaged) {
    if (const auto mended = Mend(pieces[i], {}, ranges[i].destination); !mended)
      flaws.push_back({i, mended.error()});
    else
      pass(pieces[i], ranges[i].destination);
  }
  for (const Flaw& flaw : flaws)
    if (!IsOfBytes(flaw.error)) return flaw.error;
  return flaws;
}

// Pieces are blocks that copies need, neighbours together. A copy may span several pieces.
std::vector<SegmentReader::Piece> SegmentReader::Cut(std::span<const SegmentCopy> copies) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const SegmentCopy& copy = copies[i];
    if (copy.size_bytes == 0) continue;
    const std::uint64_t payload = segments_[copy.segment]->segment.stored.payload_size_bytes;
    const std::uint64_t end =
        std::min(payload, AlignUp(copy.offset_bytes + copy.size_bytes, kSegmentBlockSize));
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
      pieces.push_back({copy.segment, at, size, i, i + 1, nullptr, copy.key});
      at += size;
    }
  }
  return pieces;
}

// With direct I/O a read is a multiple of the file's alignment, past the payload's end if need be.
std::uint64_t SegmentReader::RoomFor(const Piece& piece) const {
  return AlignUp(piece.size_bytes, files_->alignment_bytes(piece.segment));
}

Result<void> SegmentReader::ReadPieces(std::span<const Piece> pieces,
                                       std::span<const SegmentCopy> copies,
                                       std::span<std::byte> buffer) const {
  std::vector<RangeRead> ranges;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    ranges.push_back({piece.segment, piece.offset_bytes,
                      piece.destination != nullptr ? std::span(piece.destination, piece.size_bytes)
                                                   : buffer.subspan(i * kPieceRoom, RoomFor(piece)),
                      ErrorCode::kOk});
    FFR_TRY(TableOf(piece.segment));  // Before the wave, for nothing may be read during it.
  }
  Result<void> outcome;
  std::vector<std::size_t> damaged;
  const auto arrived = [&](RangeRead& range) {
    if (!outcome) return;
    outcome = CheckStatus(range);
    const auto i = static_cast<std::size_t>(&range - ranges.data());
    if (outcome && !Use(pieces[i], copies, range.destination)) damaged.push_back(i);
  };
  FFR_TRY(files_->ReadEach(ranges, arrived));
  FFR_TRY(std::move(outcome));
  for (const std::size_t i : damaged) {
    const auto wanted =
        copies.subspan(pieces[i].first_copy, pieces[i].last_copy - pieces[i].first_copy);
    FFR_TRY(Mend(pieces[i], wanted, ranges[i].destination.first(pieces[i].size_bytes)));
    FFR_TRY(Use(pieces[i], copies, ranges[i].destination));
  }
  return {};
}

Result<void> SegmentReader::CheckStatus(const RangeRead& range) const {
  if (range.status == ErrorCode::kOk) return {};
  VerifiedSegments::Process().Forget(segments_[range.file]->segment.stored.id);
  return Error{range.status, segments_[range.file]->description + ": reading " +
                                 std::to_string(range.destination.size()) + " bytes at offset " +
                                 std::to_string(range.offset_bytes) + " failed"};
}

Result<void> SegmentReader::CheckBlocks(const Piece& piece,
                                        std::span<const std::byte> bytes) const {
  const auto table = FFR_TRY(TableOf(piece.segment));
  for (std::uint64_t at = 0; at < bytes.size(); at += kSegmentBlockSize)
    FFR_TRY(CheckBlock(piece, *table, piece.offset_bytes + at,
                       bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at))));
  return {};
}

Result<void> SegmentReader::CheckBlock(const Piece& piece, std::span<const std::uint64_t> table,
                                       std::uint64_t offset_bytes,
                                       std::span<const std::byte> block) const {
  const OpenSegment& open = *segments_[piece.segment];
  if (SegmentBlockCheck(open.segment.stored.id, offset_bytes, block) ==
      table[offset_bytes / kSegmentBlockSize])
    return {};
  VerifiedSegments::Process().Forget(open.segment.stored.id);
  std::string message = open.description + ": the block at offset " + std::to_string(offset_bytes) +
                        " fails its checksum";
  if (!piece.key.empty())
    message += "; it holds bytes of tensor " + std::string(piece.key) +
               ". Restore the file from a copy, or load an earlier step";
  return Error{ErrorCode::kCorruption, std::move(message)};
}

Result<void> SegmentReader::Mend(const Piece& piece, std::span<const SegmentCopy> copies,
                                 std::span<std::byte> bytes) const {
  const auto table = FFR_TRY(TableOf(piece.segment));
  for (std::uint64_t at = 0; at < bytes.size(); at += kSegmentBlockSize) {
    const std::uint64_t offset = piece.offset_bytes + at;
    const auto block = bytes.subspan(at, std::min(kSegmentBlockSize, bytes.size() - at));
    Piece named = piece;
    named.key = KeyAt(copies, offset, block.size(), piece.key);
    auto checked = CheckBlock(named, *table, offset, block);
    if (checked) continue;
    const auto copy = FileCopies::ReadRight(
        *files_, piece.segment, offset, block.size(), [&](std::span<const std::byte> read) {
          return static_cast<bool>(CheckBlock(piece, *table, offset, read));
        });
    if (!copy && copy.error().code == ErrorCode::kCorruption) return checked;
    if (!copy)
      return Error{copy.error().code, checked.error().message + "; " + copy.error().message};
    std::ranges::copy(copy.value()->first(block.size()), block.begin());
  }
  return {};
}

Result<void> SegmentReader::Use(const Piece& piece, std::span<const SegmentCopy> copies,
                                std::span<const std::byte> bytes) const {
  bytes = bytes.first(piece.size_bytes);
  FFR_TRY(CheckBlocks(piece, bytes));
  for (const SegmentCopy& copy :
       copies.subspan(piece.first_copy, piece.last_copy - piece.first_copy)) {
    const std::uint64_t begin = std::max(copy.offset_bytes, piece.offset_bytes);
    const std::uint64_t end =
        std::min(copy.offset_bytes + copy.size_bytes, piece.offset_bytes + piece.size_bytes);
    if (begin < end)
      StreamingCopy({copy.destination + (begin - copy.offset_bytes), end - begin},
                    bytes.subspan(begin - piece.offset_bytes, end - begin));
  }
  return {};
}

bool SegmentReader::IsOfFirstCopy(std::uint32_t segment) const {
  const FileCopies* const copies = FileCopies::Of(*files_);
  return copies == nullptr || copies->DamagedCopies(segment).empty();
}

Result<std::vector<std::byte>> SegmentReader::EndOf(std::uint32_t segment) const {
  const StoredSegment& stored = segments_[segment]->segment.stored;
  const auto table = FFR_TRY(TableOf(segment));
  return EncodeSegmentEnd(stored.id, LayoutOfSegment(stored.payload_size_bytes), *table);
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
  FFR_TRY(files_->Read({&range, 1}));
  FFR_TRY(CheckStatus(range));
  const auto bytes = buffer->first(layout.table_size_bytes);
  const auto is_right = [&](std::span<const std::byte> read) {
    return SegmentTableDigest(read) == open.segment.stored.table_digest;
  };
  if (!is_right(bytes)) {
    VerifiedSegments::Process().Forget(open.segment.stored.id);
    const auto copy = FileCopies::ReadRight(*files_, segment, layout.table_offset_bytes,
                                            layout.table_size_bytes, is_right);
    if (!copy && copy.error().code != ErrorCode::kCorruption)
      return Error{copy.error().code, open.description + ": " + copy.error().message};
    if (copy) std::ranges::copy(copy.value()->first(bytes.size()), bytes.begin());
  }
  if (!is_right(bytes))
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
