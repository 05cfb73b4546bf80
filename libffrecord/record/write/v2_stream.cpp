#include "libffrecord/record/write/v2_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/format/v2_section.h"

namespace ffrecord {

V2Stream::V2Stream(V2Output& output, const V2Header& header,
                   std::span<const std::byte> schema_section)
    : output_(&output), header_(header), fingerprint_(schema_section) {}

V2Stream::V2Stream(V2Output& output, const V2Header& header, V2Resume resume)
    : output_(&output),
      header_(header),
      fingerprint_(FingerprintChain::ResumedAt(resume.footer.fingerprint)),
      totals_(std::move(resume.footer)),
      pages_(std::move(resume.last_pages)),
      segment_offsets_(std::move(resume.segment_offsets)) {
  FFR_ASSERT(pages_.size() <= header.pages_per_segment * kIndexPageSizeBytes);
  totals_.previous_commit_bytes = output_->size_bytes();
  ForgetSections(V2Section::kSegmentDirectory);
  committed_ = TakeSnapshot();
}

Result<void> V2Stream::WriteFront(std::span<const std::byte> schema_section) {
  FFR_ASSERT(output_->size_bytes() == 0);
  std::array<std::byte, V2Header::kEncodedSizeBytes> encoded;
  EncodeV2Header(header_, encoded);
  FFR_TRY(output_->Append(encoded));
  if (schema_section.empty()) return {};
  return AddSection(V2Section::kSchema, schema_section);
}

std::uint64_t V2Stream::next_payload_offset_bytes() const noexcept {
  return PayloadOffsetAfter(output_->size_bytes(), header_.alignment_bytes);
}

Result<void> V2Stream::AddRecord(std::span<const std::byte> raw,
                                 std::span<const std::byte> stored) {
  FFR_ASSERT(!segment_is_full());
  const std::uint64_t index = totals_.record_count;
  const std::uint64_t payload_offset = next_payload_offset_bytes();
  const std::uint64_t header_offset = payload_offset - V2RecordHeader::kEncodedSizeBytes;
  const RecordLocation location = LocationOf(payload_offset, raw, stored);
  std::array<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded;
  EncodeV2RecordHeader({location.check, index, stored.size(), raw.size()}, header_.file_id,
                       header_offset, encoded);
  FFR_TRY(output_->AppendZeros(header_offset - output_->size_bytes()));
  FFR_TRY(output_->Append(encoded));
  FFR_TRY(output_->Append(stored));
  Note(location, raw);
  return {};
}

void V2Stream::AddRecordAt(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                           std::span<const std::byte> stored) {
  FFR_ASSERT(!segment_is_full());
  Note(LocationOf(offset_bytes, raw, stored), raw);
}

RecordLocation V2Stream::LocationOf(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                                    std::span<const std::byte> stored) const {
  const std::uint64_t seed = SeedOf(header_.file_id, PlaceTag::kRecord, totals_.record_count);
  return {Xxh3(stored, seed), offset_bytes, stored.size(), raw.size()};
}

// Adds the newest record to index and totals.
void V2Stream::Note(const RecordLocation& location, std::span<const std::byte> raw) {
  const std::uint64_t slot = totals_.record_count % entries_per_segment();
  const std::uint64_t page_begin = slot / kIndexEntriesPerPage * kIndexPageSizeBytes;
  // Grows as records come: a header alone must not make the stream allocate a segment.
  if (pages_.size() < page_begin + kIndexPageSizeBytes)
    pages_.resize(page_begin + kIndexPageSizeBytes);
  const auto page = std::span(pages_).subspan(page_begin, kIndexPageSizeBytes);
  StoreIndexEntry(location, slot % kIndexEntriesPerPage, page);
  fingerprint_.Add(raw);
  totals_.raw_size_bytes += raw.size();
  totals_.stored_size_bytes += location.stored_size_bytes;
  ++totals_.record_count;
  ++pending_count_;
}

bool V2Stream::segment_is_full() const noexcept {
  return pending_count_ > 0 && totals_.record_count % entries_per_segment() == 0;
}

std::uint64_t V2Stream::segment_number() const noexcept {
  FFR_ASSERT(totals_.record_count > 0);
  return (totals_.record_count - 1) / entries_per_segment();
}

Result<void> V2Stream::EndSegment() {
  FFR_ASSERT(pending_count_ > 0);
  const std::uint64_t segment = segment_number();
  const IndexGeometry geometry{totals_.record_count, header_.pages_per_segment};
  const std::uint64_t first_page = segment * header_.pages_per_segment;
  const auto pages = std::span(pages_).first(geometry.segment_size_bytes(segment));
  for (std::uint64_t page = 0; page < pages.size() / kIndexPageSizeBytes; ++page)
    SealIndexPage(header_.file_id, first_page + page, geometry.entries_in_page(first_page + page),
                  pages.subspan(page * kIndexPageSizeBytes, kIndexPageSizeBytes));
  const std::uint64_t offset = FFR_TRY(AppendStructure(pages, kIndexPageSizeBytes));
  segment_offsets_.resize(segment);  // One that was not full is replaced.
  segment_offsets_.push_back(offset);
  if (segment_is_full()) {
    // The pages of the first segment to end since the mark: they have the entries of before.
    if (mark_ && mark_->pages.empty()) mark_->pages = pages_;
    std::memset(pages_.data(), 0, pages_.size());
  }
  pending_count_ = 0;
  return {};
}

Result<std::uint64_t> V2Stream::AlignTo(std::uint64_t alignment_bytes) {
  const std::uint64_t end = output_->size_bytes();
  FFR_TRY(output_->AppendZeros(AlignUp(end, alignment_bytes) - end));
  return output_->size_bytes();
}

Result<std::uint64_t> V2Stream::AppendStructure(std::span<const std::byte> bytes,
                                                std::uint64_t alignment_bytes) {
  const std::uint64_t offset = FFR_TRY(AlignTo(alignment_bytes));
  FFR_TRY(output_->Append(bytes));
  return offset;
}

Result<void> V2Stream::AddSection(std::uint32_t type, std::span<const std::byte> bytes) {
  // One place is for the segment directory.
  if (totals_.sections.size() + 1 >= V2Footer::kSectionCountMax)
    return Error{ErrorCode::kInvalidArgument, "a file holds at most 4,096 sections"};
  const std::uint64_t header_offset = output_->size_bytes();
  const V2SectionHeader section{
      SectionCheck(bytes, header_.file_id, header_offset + V2SectionHeader::kEncodedSizeBytes),
      type, bytes.size()};
  std::array<std::byte, V2SectionHeader::kEncodedSizeBytes> encoded;
  EncodeV2SectionHeader(section, header_.file_id, header_offset, encoded);
  FFR_TRY(output_->Append(encoded));
  return AppendListed(type, bytes, section.check);
}

Result<void> V2Stream::AppendListed(std::uint32_t type, std::span<const std::byte> bytes,
                                    std::uint64_t check) {
  totals_.sections.push_back({type, output_->size_bytes(), bytes.size(), check});
  return output_->Append(bytes);
}

void V2Stream::ForgetSections(std::uint32_t type) noexcept {
  std::erase_if(totals_.sections, [&](const V2Section& section) { return section.type == type; });
}

Result<void> V2Stream::AppendFooterAndTail(const V2Footer& totals) {
  const std::vector<std::byte> footer = EncodeV2Footer(totals);
  const V2Tail tail{output_->size_bytes(), footer.size(),
                    FooterCheck(footer, header_.file_id, output_->size_bytes())};
  FFR_TRY(output_->Append(footer));
  const std::uint64_t file_size =
      AlignUp(output_->size_bytes() + V2Tail::kEncodedSizeBytes, V2Footer::kAlignmentBytes);
  FFR_TRY(output_->AppendZeros(file_size - V2Tail::kEncodedSizeBytes - output_->size_bytes()));
  std::array<std::byte, V2Tail::kEncodedSizeBytes> encoded;
  EncodeV2Tail(tail, header_.file_id, file_size, encoded);
  return output_->Append(encoded);
}

Result<void> V2Stream::EndCommit(V2Footer& totals, std::span<const std::uint64_t> segment_offsets) {
  std::vector<std::byte> directory(8 * segment_offsets.size());
  for (std::size_t i = 0; i < segment_offsets.size(); ++i)
    StoreLittleEndian(std::span<std::byte>(directory), 8 * i, segment_offsets[i]);
  const std::uint64_t offset = output_->size_bytes();
  totals.sections.push_back({V2Section::kSegmentDirectory, offset, directory.size(),
                             SectionCheck(directory, header_.file_id, offset)});
  FFR_TRY(output_->Append(directory));
  FFR_TRY(AlignTo(V2Footer::kAlignmentBytes));
  FFR_TRY(output_->Barrier());
  FFR_TRY(AppendFooterAndTail(totals));
  totals.sections.pop_back();
  return {};
}

Result<void> V2Stream::Commit() {
  FFR_ASSERT(!mark_);
  if (pending_count_ > 0) FFR_TRY(EndSegment());
  totals_.fingerprint = fingerprint_.digest();
  FFR_TRY(EndCommit(totals_, segment_offsets_));
  FFR_TRY(output_->Commit());
  totals_.previous_commit_bytes = output_->size_bytes();
  committed_ = TakeSnapshot();
  return {};
}

V2Stream::Snapshot V2Stream::TakeSnapshot() const {
  return {totals_, segment_offsets_.size(), segment_offsets_.empty() ? 0 : segment_offsets_.back()};
}

std::vector<std::uint64_t> V2Stream::SegmentOffsetsOf(const Snapshot& snapshot) const {
  std::vector<std::uint64_t> offsets(
      segment_offsets_.begin(),
      segment_offsets_.begin() + static_cast<std::ptrdiff_t>(snapshot.segment_count));
  if (!offsets.empty()) offsets.back() = snapshot.last_segment_offset;
  return offsets;
}

void V2Stream::SetMark() {
  totals_.fingerprint = fingerprint_.digest();
  mark_ = Mark{TakeSnapshot(), output_->size_bytes(), pending_count_};
}

Result<void> V2Stream::CommitAgain() {
  FFR_ASSERT(committed_.has_value());
  V2Footer totals = committed_->totals;
  totals.previous_commit_bytes = totals_.previous_commit_bytes;
  FFR_TRY(EndCommit(totals, SegmentOffsetsOf(*committed_)));
  FFR_TRY(output_->Barrier());  // No Commit(): the output may still be cut to before this.
  totals_.previous_commit_bytes = output_->size_bytes();
  return {};
}

Result<void> V2Stream::ReturnToMark() {
  FFR_ASSERT(mark_.has_value());
  Mark mark = *std::exchange(mark_, std::nullopt);
  FFR_TRY(output_->CutTo(mark.size_bytes));
  segment_offsets_ = SegmentOffsetsOf(mark.snapshot);
  totals_ = std::move(mark.snapshot.totals);
  fingerprint_ = FingerprintChain::ResumedAt(totals_.fingerprint);
  pending_count_ = mark.pending_count;
  if (!mark.pages.empty()) pages_ = std::move(mark.pages);
  const std::uint64_t slot = totals_.record_count % entries_per_segment();
  const std::uint64_t page_begin = slot / kIndexEntriesPerPage * kIndexPageSizeBytes;
  if (page_begin >= pages_.size()) return {};
  // Clears the bytes that later records put behind the entries.
  const std::uint64_t begin =
      slot % kIndexEntriesPerPage == 0
          ? page_begin
          : page_begin + kIndexEntriesBegin + kIndexEntrySizeBytes * (slot % kIndexEntriesPerPage);
  std::fill(pages_.begin() + static_cast<std::ptrdiff_t>(begin), pages_.end(), std::byte{});
  return {};
}

}  // namespace ffrecord
