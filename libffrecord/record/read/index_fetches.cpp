#include "libffrecord/record/read/index_fetches.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "libffrecord/base/align.h"

namespace ffrecord {
namespace {

bool IsSamePart(const IndexPart& a, const IndexPart& b) {
  return a.file == b.file && a.number == b.number;
}

}  // namespace

std::vector<IndexPart> LackingParts(const RecordReader::Impl& reader,
                                    std::span<const std::uint64_t> indices) {
  std::vector<IndexPart> parts;
  if (!reader.source->reads_indexes()) return parts;
  std::uint32_t file = 0;
  std::uint64_t file_begin = 0;
  std::uint64_t file_end = 0;
  for (const std::uint64_t index : indices) {
    if (index < file_begin || index >= file_end) {
      file = reader.FileOf(index);
      file_begin = reader.first_indexes[file];
      file_end = reader.first_indexes[file + 1];
    }
    reader.indexes[file]->AddLacking(index - file_begin, parts);
  }
  std::ranges::sort(parts, {}, [](const auto& part) { return std::tuple(part.file, part.number); });
  parts.erase(std::unique(parts.begin(), parts.end(), IsSamePart), parts.end());
  return parts;
}

void IndexFailures::Note(const IndexPart& part, ErrorCode status) {
  if (status == ErrorCode::kOk || status == ErrorCode::kIo || status == ErrorCode::kCorruption)
    return;
  failures_.push_back({part.file, part.number, status});
}

ErrorCode IndexFailures::Of(const FileIndex& index, std::uint64_t index_in_file) const {
  std::vector<IndexPart> lacking;
  index.AddLacking(index_in_file, lacking);
  for (const IndexPart& part : lacking)
    for (const Failure& failure : failures_)
      if (failure.file == part.file && failure.number == part.number) return failure.status;
  return ErrorCode::kOk;
}

// Widens each piece to the file's alignment, and cuts it as the source wants reads to be.
Result<void> IndexPartRead::Prepare(const RangeReader& source) {
  const std::uint64_t alignment = source.alignment_bytes(part.file);
  const std::uint64_t range_bytes_max = source.coalescing().piece_bytes_max;
  const auto begin_of = [&](const auto& piece) { return AlignDown(piece.offset_bytes, alignment); };
  const auto size_of = [&](const auto& piece) {
    return AlignUp(piece.offset_bytes + piece.size_bytes, alignment) - begin_of(piece);
  };
  std::uint64_t size_bytes = 0;
  for (const auto& piece : part.pieces) size_bytes += size_of(piece);
  memory_ = FFR_TRY(BufferPool::Process().Take(size_bytes));
  auto left = *memory_;
  for (const auto& piece : part.pieces) {
    const auto wide = left.first(size_of(piece));
    left = left.subspan(wide.size());
    pieces_.push_back(wide.subspan(piece.offset_bytes - begin_of(piece), piece.size_bytes));
    for (std::uint64_t at = 0; at < wide.size(); at += range_bytes_max)
      ranges_.push_back({part.file, begin_of(piece) + at,
                         wide.subspan(at, std::min(range_bytes_max, wide.size() - at))});
  }
  return {};
}

ErrorCode IndexPartRead::Take(const FileIndex& index, const Result<void>& result) const {
  if (!result) return result.error().code;
  for (const RangeRead& range : ranges_)
    if (range.status != ErrorCode::kOk) return range.status;
  index.Take(part, memory_, pieces_);
  return ErrorCode::kOk;
}

IndexFailures FetchLacking(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                           Patience& patience) {
  IndexFailures failures;
  std::vector<IndexPartRead> parts;
  std::vector<RangeRead> ranges;
  for (IndexPart& part : LackingParts(reader, indices)) {
    IndexPartRead read(std::move(part));
    if (!read.Prepare(*reader.source)) continue;  // Looking the record up says why.
    ranges.insert(ranges.end(), read.ranges().begin(), read.ranges().end());
    parts.push_back(std::move(read));
  }
  if (parts.empty()) return failures;
  const auto result = reader.source->ReadEach(
      ranges, [](RangeRead&) {}, patience);
  auto arrived = ranges.begin();
  for (IndexPartRead& read : parts)
    for (RangeRead& range : read.ranges()) range.status = (arrived++)->status;
  for (const IndexPartRead& read : parts)
    failures.Note(read.part, read.Take(*reader.indexes[read.part.file], result));
  return failures;
}

// One part on its way, for those that wait for it.
class IndexFetches::Fetch final : public RangeGroup {
 public:
  Fetch(IndexFetches& fetches, IndexPart wanted) : read(std::move(wanted)), fetches_(fetches) {}

  std::span<RangeRead> ranges() noexcept override { return read.ranges(); }
  void Arrived(RangeRead&) override {}
  void Ended(Result<void> result) override { fetches_.End(*this, result); }

  IndexPartRead read;
  std::vector<Wait*> waits;
  bool is_given_up = false;

 private:
  IndexFetches& fetches_;
};

IndexFetches::IndexFetches(const RecordReader::Impl& reader) : reader_(reader) {}

IndexFetches::~IndexFetches() {
  if (home_.is_here()) return;
  // In a forked child, the parent still reads into their memory.
  for (auto& fetch : fetches_) static_cast<void>(fetch.release());
}

void IndexFetches::Begin(std::vector<IndexPart> parts, Wait& wait, RangeQueue& queue) {
  for (IndexPart& part : parts) {
    const auto under_way = std::ranges::find_if(fetches_, [&](const auto& fetch) {
      return IsSamePart(fetch->read.part, part) && !fetch->is_given_up;
    });
    if (under_way != fetches_.end()) {
      (*under_way)->waits.push_back(&wait);
      ++wait.pending_count;
      continue;
    }
    auto fetch = std::make_unique<Fetch>(*this, std::move(part));
    if (!fetch->read.Prepare(*reader_.source)) continue;  // Looking the record up says why.
    fetch->waits.push_back(&wait);
    ++wait.pending_count;
    fetches_.push_back(std::move(fetch));
    queue.Submit(*fetches_.back());
  }
}

void IndexFetches::Leave(Wait& wait, RangeQueue& queue) {
  wait.pending_count = 0;
  for (const auto& fetch : fetches_) {
    if (std::erase(fetch->waits, &wait) == 0 || !fetch->waits.empty()) continue;
    fetch->is_given_up = true;
    queue.GiveUp(*fetch);
  }
}

void IndexFetches::End(Fetch& fetch, const Result<void>& result) {
  const IndexPart& part = fetch.read.part;
  const ErrorCode status = fetch.read.Take(*reader_.indexes[part.file], result);
  for (Wait* const wait : fetch.waits) {
    --wait->pending_count;
    wait->failures.Note(part, status);
  }
  std::erase_if(fetches_, [&](const auto& one) { return one.get() == &fetch; });
}

}  // namespace ffrecord
