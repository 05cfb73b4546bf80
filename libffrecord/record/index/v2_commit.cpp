#include "libffrecord/record/index/v2_commit.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/align.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord {
namespace {

// Bytes that one step of the search for a commit covers; a multiple of the alignment of commit
// ends. The first step is small, because most commits are near; the largest ones are several reads
// side by side.
constexpr std::uint64_t kSearchPieceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kSearchPieceBytesMax = std::uint64_t{16} << 20;

// Reads all of `bytes`, from an offset that suits every alignment; a mapping would wait for each
// page alone. Bytes that the file has lost meanwhile stay zero.
Result<void> ReadPiece(const V2Source& source, std::uint64_t offset_bytes,
                       std::span<std::byte> bytes) {
  const std::uint64_t piece_bytes_max = source.reader.coalescing().piece_bytes_max;
  std::vector<RangeRead> reads;
  for (std::uint64_t begin = 0; begin < bytes.size(); begin += piece_bytes_max)
    reads.push_back({source.file, offset_bytes + begin,
                     bytes.subspan(begin, std::min(piece_bytes_max, bytes.size() - begin))});
  FFR_TRY(source.reader.Read(reads));
  for (const RangeRead& read : reads) {
    if (read.status == ErrorCode::kCorruption)
      std::fill(read.destination.begin(), read.destination.end(), std::byte{});
    else if (read.status != ErrorCode::kOk)
      return Error{read.status, std::to_string(read.destination.size()) + " bytes at " +
                                    std::to_string(read.offset_bytes) +
                                    ", where a commit may end, cannot be read"};
  }
  return {};
}

// Bytes [offset, offset + size) if they are among `bytes`, which begin at `begin_bytes`.
std::optional<std::span<const std::byte>> Within(std::span<const std::byte> bytes,
                                                 std::uint64_t begin_bytes,
                                                 std::uint64_t offset_bytes,
                                                 std::uint64_t size_bytes) {
  if (offset_bytes < begin_bytes || offset_bytes - begin_bytes > bytes.size() ||
      size_bytes > bytes.size() - (offset_bytes - begin_bytes))
    return std::nullopt;
  return bytes.subspan(offset_bytes - begin_bytes, size_bytes);
}

}  // namespace

Result<RangeReader::IndexBytes> V2Source::FetchOnce(std::uint64_t offset_bytes,
                                                    std::uint64_t size_bytes) const {
  if (const auto found = Within(head, 0, offset_bytes, size_bytes))
    return RangeReader::IndexBytes{nullptr, *found};
  if (const auto found = Within(tail, file_size_bytes() - tail.size(), offset_bytes, size_bytes))
    return RangeReader::IndexBytes{nullptr, *found};
  return reader.MapIndex(file, offset_bytes, size_bytes);
}

Result<RangeReader::IndexBytes> V2Source::Fetch(std::uint64_t offset_bytes,
                                                std::uint64_t size_bytes,
                                                const Check& check) const {
  auto fetched = FFR_TRY(FetchOnce(offset_bytes, size_bytes));
  auto checked = check(fetched.bytes);
  if (checked) return fetched;
  if (FileCopies::Of(reader) == nullptr) return std::move(checked).error();
  const auto is_right = [&](std::span<const std::byte> bytes) {
    return static_cast<bool>(check(bytes));
  };
  auto copy = FileCopies::ReadRight(reader, file, offset_bytes, size_bytes, is_right);
  if (!copy) return Error{copy.error().code, checked.error().message + "; " + copy.error().message};
  const std::span<const std::byte> bytes = *copy.value();
  return RangeReader::IndexBytes{std::move(copy).value(), bytes};
}

Result<RangeReader::IndexBytes> V2Source::FetchSection(const V2Section& section) const {
  FFR_TRY(CheckSectionSize(section));
  const auto check = [&](std::span<const std::byte> bytes) -> Result<void> {
    if (SectionCheck(bytes, id, section.offset_bytes) == section.check) return {};
    return Error{ErrorCode::kCorruption,
                 "section of type " + std::to_string(section.type) + ": checksum does not match"};
  };
  return Fetch(section.offset_bytes, section.size_bytes, check);
}

Result<V2Commit> ReadCommit(const V2Source& source, std::uint64_t size_bytes) {
  if (size_bytes < V2Tail::kEncodedSizeBytes)
    return Error{ErrorCode::kCorruption, "file is truncated: it has no tail; get it again"};
  V2Tail tail;
  const auto check_tail = [&](std::span<const std::byte> bytes) -> Result<void> {
    tail = FFR_TRY(DecodeV2Tail(bytes.first<V2Tail::kEncodedSizeBytes>(), source.id, size_bytes));
    return {};
  };
  FFR_TRY(
      source.Fetch(size_bytes - V2Tail::kEncodedSizeBytes, V2Tail::kEncodedSizeBytes, check_tail));
  const auto check_footer = [&](std::span<const std::byte> bytes) -> Result<void> {
    if (FooterCheck(bytes, source.id, tail.footer_offset_bytes) == tail.footer_check) return {};
    return Error{ErrorCode::kCorruption, "footer: checksum does not match"};
  };
  const auto footer =
      FFR_TRY(source.Fetch(tail.footer_offset_bytes, tail.footer_size_bytes, check_footer));
  V2Commit commit{size_bytes, tail.footer_offset_bytes, tail.footer_size_bytes, {}};
  commit.footer = FFR_TRY(DecodeV2Footer(footer.bytes, tail.footer_offset_bytes));
  return commit;
}

Result<std::optional<V2Facts>> ReadFacts(const V2Source& source, const V2Footer& footer) {
  const V2Section* section = footer.Find(V2Section::kFacts);
  if (section == nullptr) return std::optional<V2Facts>();
  const auto fetched = FFR_TRY(source.FetchSection(*section));
  V2Facts facts = FFR_TRY(DecodeV2Facts(fetched.bytes));
  if (facts.header.file_id != source.id)
    return Error{ErrorCode::kCorruption, "facts: they are those of another file"};
  return std::optional(std::move(facts));
}

Result<std::optional<V2Commit>> FindCommitBelow(const V2Source& source, std::uint64_t end_bytes) {
  const std::uint64_t lowest =
      std::max(end_bytes - std::min(end_bytes, kCommitSearchBytesMax), V2Footer::kAlignmentBytes);
  if (end_bytes == 0) return std::optional<V2Commit>();
  std::uint64_t end = AlignDown(end_bytes - 1, V2Footer::kAlignmentBytes);
  PooledBuffer memory;
  std::uint64_t piece_bytes = kSearchPieceBytes;
  for (; end >= lowest; piece_bytes = std::min(2 * piece_bytes, kSearchPieceBytesMax)) {
    const std::uint64_t begin = end - std::min(end, piece_bytes);
    if (!memory || memory->size() < end - begin)
      memory = FFR_TRY(source.reader.TakeMemory(end - begin));
    const std::span<std::byte> piece = memory->first(end - begin);
    FFR_TRY(ReadPiece(source, begin, piece));
    for (; end > begin && end >= lowest; end -= V2Footer::kAlignmentBytes) {
      const auto place = piece.first(end - begin).last<V2Tail::kEncodedSizeBytes>();
      if (!DecodeV2Tail(place, source.id, end)) continue;
      auto commit = ReadCommit(source, end);
      if (commit) return std::optional<V2Commit>(std::move(commit).value());
      if (commit.error().code != ErrorCode::kCorruption) return std::move(commit).error();
    }
  }
  return std::optional<V2Commit>();
}

}  // namespace ffrecord
