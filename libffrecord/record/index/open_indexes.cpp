#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/source/file_copies.h"
#include "libffrecord/source/gathered_reads.h"

namespace ffrecord {
namespace {

// The first reads of each file: its beginning, with the schema unless that is very large, and its
// end, which in version 2 holds the tail, the footer and, except for very large files, the
// directory.
constexpr std::uint64_t kHeadSizeBytes = std::uint64_t{16} << 10;
constexpr std::uint64_t kTailSizeBytes = std::uint64_t{64} << 10;
// An aligned read begins up to one block before the tail.
constexpr std::uint64_t kTailRoomBytes = kTailSizeBytes + BufferPool::kAlignment;
constexpr std::uint64_t kRoomBytes = kHeadSizeBytes + kTailRoomBytes;
// Files opened in one round of reads: 21 MiB of memory.
constexpr std::size_t kFilesPerRound = 256;

// The beginning and end of one file, and the reads that fetch them. The tail has all of a small
// file.
struct FileEnds {
  std::span<std::byte> head;
  std::span<std::byte> tail;
};

Error InFile(const RangeReader& source, std::uint32_t file, Error error) {
  error.message = source.file_name(file) + ": " + error.message;
  return error;
}

Error NotRead(const RangeReader& source, const RangeRead& range) {
  const std::string trouble = source.Trouble(range.file, range.status);
  const std::string why = !trouble.empty() ? trouble
                          : range.status == ErrorCode::kCorruption
                              ? "the file was truncated while it was opened"
                              : "the device or the connection failed";
  return InFile(source, range.file,
                {range.status, "cannot read " + std::to_string(range.destination.size()) +
                                   " bytes at " + std::to_string(range.offset_bytes) + ": " + why});
}

FileEnds PlanEnds(const RangeReader& source, std::uint32_t file, std::span<std::byte> room,
                  std::vector<RangeRead>& reads) {
  const std::uint64_t size = source.file_size_bytes(file);
  const std::uint64_t alignment = source.alignment_bytes(file);
  const std::uint64_t tail_begin = AlignDown(size - std::min(size, kTailSizeBytes), alignment);
  const std::uint64_t tail_size = size - tail_begin;
  const auto tail_room = room.subspan(kHeadSizeBytes);
  FileEnds ends;
  ends.tail = tail_room.first(tail_size);
  ends.head = ends.tail;
  if (size > 0) reads.push_back({file, tail_begin, tail_room.first(AlignUp(tail_size, alignment))});
  if (tail_begin > 0) {
    ends.head = room.first(kHeadSizeBytes);
    reads.push_back({file, 0, room.first(kHeadSizeBytes)});
  }
  return ends;
}

// Whether the bytes begin a file of either version, judged from these bytes alone. A header of a
// newer version may be a damaged one.
bool IsHeader(std::span<const std::byte> head, std::uint64_t file_size_bytes) {
  return HasV2Magic(head) ? static_cast<bool>(DecodeV2Header(head))
                          : static_cast<bool>(DecodeV1Header(head, file_size_bytes));
}

// A header that is damaged in one copy of the file is replaced by that of another one. If all are
// alike, the caller finds out what they are.
Result<void> MendHeader(const RangeReader& source, std::uint32_t file, std::span<std::byte> head) {
  const std::uint64_t file_size_bytes = source.file_size_bytes(file);
  const auto header = head.first(std::min(head.size(), V2Header::kEncodedSizeBytes));
  if (FileCopies::Of(source) == nullptr || IsHeader(header, file_size_bytes)) return {};
  const auto is_right = [&](std::span<const std::byte> bytes) {
    return IsHeader(bytes, file_size_bytes);
  };
  const auto copy = FileCopies::ReadRight(source, file, 0, header.size(), is_right);
  if (copy) std::copy(copy.value()->begin(), copy.value()->end(), header.begin());
  if (copy || copy.error().code == ErrorCode::kCorruption) return {};
  return copy.error();
}

// The facts at the end of a file that ends with a commit, which states its id; none in any other
// file. Fails as ReadFacts.
Result<std::optional<V2Facts>> ReadFactsAtTheEnd(const RangeReader& reader, std::uint32_t file,
                                                 const FileEnds& ends) {
  const std::optional<V2Facts> none;
  const std::uint64_t size = reader.file_size_bytes(file);
  if (ends.tail.size() < V2Tail::kEncodedSizeBytes) return none;
  const auto id =
      FileIdOfV2Tail(std::span<const std::byte>(ends.tail).last<V2Tail::kEncodedSizeBytes>());
  if (!id) return none;
  const V2Source source{reader, file, *id, {}, ends.tail};
  const auto commit = ReadCommit(source, size);
  if (!commit && commit.error().code == ErrorCode::kCorruption) return none;
  if (!commit) return commit.error();
  return ReadFacts(source, commit.value().footer);
}

// Opens the commit at the end of a file by the facts in it; nothing if it has none, or if its id is
// `known`, of which all was tried.
Result<std::unique_ptr<FileIndex>> OpenByFacts(const RangeReader& reader, std::uint32_t file,
                                               const FileEnds& ends, const FileId* known) {
  const auto facts = ReadFactsAtTheEnd(reader, file, ends);
  if (!facts || !facts.value()) return std::unique_ptr<FileIndex>();
  const V2Header& header = facts.value()->header;
  if (known != nullptr && header.file_id == *known) return std::unique_ptr<FileIndex>();
  const V2Source at_end{reader, file, header.file_id, {}, ends.tail};
  auto commit = FFR_TRY(ReadCommit(at_end, at_end.file_size_bytes()));
  return OpenV2Index(at_end, header, std::move(commit), {}, /*header_is_copy=*/true);
}

// Whether the file ends with a tail that is right: it was a record file, whatever its first bytes
// are now.
bool EndsWithTail(const FileEnds& ends, std::uint64_t file_size_bytes) {
  if (ends.tail.size() < V2Tail::kEncodedSizeBytes) return false;
  const auto bytes = std::span<const std::byte>(ends.tail).last<V2Tail::kEncodedSizeBytes>();
  const auto id = FileIdOfV2Tail(bytes);
  return id && DecodeV2Tail(bytes, *id, file_size_bytes);
}

// Opens the newest commit, also if an append is running or was killed.
Result<std::unique_ptr<FileIndex>> OpenV2(const RangeReader& reader, std::uint32_t file,
                                          const FileEnds& ends, const V2Header& header) {
  const V2Source source{reader, file, header.file_id, ends.head, ends.tail};
  const std::uint64_t size = source.file_size_bytes();
  auto commit = ReadCommit(source, size);
  if (commit) return OpenV2Index(source, header, std::move(commit).value(), {});
  if (commit.error().code != ErrorCode::kCorruption) return std::move(commit).error();
  // Alone: after each look that is gathered it would search again.
  const V2Source alone{reader.origin(), file, header.file_id, ends.head, ends.tail};
  auto older = FFR_TRY(FindCommitBelow(alone, size));
  if (!older) return std::move(commit).error();
  std::vector<std::string> warnings{"the last " + std::to_string(size - older->size_bytes) +
                                    " bytes are ignored: they belong to an append that is under "
                                    "way or was cut off, or the end is damaged"};
  return OpenV2Index(alone, header, *std::move(older), std::move(warnings));
}

Result<std::unique_ptr<FileIndex>> OpenIndex(const RangeReader& source, std::uint32_t file,
                                             const FileEnds& ends,
                                             const RecordReader::Options& options) {
  FFR_TRY(MendHeader(source, file, ends.head));
  auto header2 = DecodeV2Header(ends.head);
  if (header2) {
    auto opened = OpenV2(source, file, ends, header2.value());
    if (opened || opened.error().code != ErrorCode::kCorruption) return opened;
    // A header that is whole may be that of another file, which was written to the wrong place.
    auto by_facts = FFR_TRY(OpenByFacts(source, file, ends, &header2.value().file_id));
    return by_facts ? Result<std::unique_ptr<FileIndex>>(std::move(by_facts)) : std::move(opened);
  }
  if (auto by_facts = FFR_TRY(OpenByFacts(source, file, ends, nullptr))) return by_facts;
  if (HasV2Magic(ends.head)) return std::move(header2).error();
  if (EndsWithTail(ends, source.file_size_bytes(file)))
    return Error{ErrorCode::kCorruption,
                 "the file ends as a record file does, and its first bytes, the header, are "
                 "overwritten; get it again, or save its records with 'ffrecord repair'"};
  if (BeginsLikeAnotherKind(ends.head))
    return Error{ErrorCode::kInvalidArgument,
                 "not an FFRecord file, by its first bytes: check the path, or pack it into a "
                 "record file first (ffrecord-pack), or index it where it is (ffrecord index)"};
  const auto header = FFR_TRY(DecodeV1Header(ends.head, source.file_size_bytes(file)));
  return OpenV1Index(source, file, header, options);
}

// Bytes that lie elsewhere, such as the tables of version 1, are read from all files at once.
Result<void> OpenWithEnds(const RangeReader& source, std::uint32_t first_file,
                          std::span<const FileEnds> ends, const RecordReader::Options& options,
                          std::vector<std::unique_ptr<FileIndex>>& indexes) {
  GatheredReads gathered(source);
  const RangeReader& bytes =
      source.reads_indexes() ? static_cast<const RangeReader&>(gathered) : source;
  std::vector<std::unique_ptr<FileIndex>> opened(ends.size());
  for (;;) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (opened[i]) continue;
      const auto file = first_file + static_cast<std::uint32_t>(i);
      const std::uint64_t misses = gathered.miss_count();
      auto index = OpenIndex(bytes, file, ends[i], options);
      if (gathered.miss_count() != misses) continue;
      if (!index) return InFile(source, file, std::move(index).error());
      opened[i] = std::move(index).value();
    }
    if (!gathered.has_noted()) break;
    FFR_TRY(gathered.ReadNoted(Patience::OfThread()));
  }
  std::ranges::move(opened, std::back_inserter(indexes));
  return {};
}

Result<void> OpenRound(const RangeReader& source, std::uint32_t first_file, std::size_t file_count,
                       const RecordReader::Options& options,
                       std::vector<std::unique_ptr<FileIndex>>& indexes) {
  const auto memory = FFR_TRY(BufferPool::Process().Take(file_count * kRoomBytes));
  std::vector<RangeRead> reads;
  std::vector<FileEnds> ends;
  for (std::size_t i = 0; i < file_count; ++i)
    ends.push_back(PlanEnds(source, first_file + static_cast<std::uint32_t>(i),
                            memory->subspan(i * kRoomBytes, kRoomBytes), reads));
  auto read = source.Read(reads);
  if (!read) return read;
  for (const RangeRead& range : reads)
    if (range.status != ErrorCode::kOk) return NotRead(source, range);
  return OpenWithEnds(source, first_file, ends, options, indexes);
}

}  // namespace

Result<std::vector<std::unique_ptr<FileIndex>>> OpenIndexes(const RangeReader& source,
                                                            const RecordReader::Options& options) {
  std::vector<std::unique_ptr<FileIndex>> indexes;
  while (indexes.size() < source.file_count()) {
    const std::size_t count = std::min(kFilesPerRound, source.file_count() - indexes.size());
    auto opened =
        OpenRound(source, static_cast<std::uint32_t>(indexes.size()), count, options, indexes);
    if (!opened) return std::move(opened).error();
  }
  return indexes;
}

}  // namespace ffrecord
