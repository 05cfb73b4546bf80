#include "libffrecord/record/resident_batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "libffrecord/base/mix.h"
#include "libffrecord/base/prefetch.h"
#include "libffrecord/io/lost_pages.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/batch_block.h"

namespace ffrecord {
namespace {

// How many records ahead memory is asked for what is needed next: about as many cache misses as a
// core keeps in flight.
constexpr std::size_t kIndexAhead = 16;
constexpr std::size_t kDataAhead = 8;
constexpr std::size_t kCacheLineBytes = 64;
// Of one record; what follows the processor fetches by itself.
constexpr std::uint64_t kPrefetchBytesMax = 512;

// After so many records or bytes the thread asks how often it had to wait; then after twice as
// many, and so on.
constexpr std::size_t kFirstStepRecords = 16;
constexpr std::uint64_t kFirstStepBytes = std::uint64_t{256} << 10;
// Waiting for one page takes about as long as reading so many records in the usual way.
constexpr std::size_t kRecordsPerFault = 64;
constexpr std::uint64_t kFaultsAlways = 2;

// Records that are looked for before a batch is believed to be in memory, and after one that was.
constexpr std::size_t kSamples = 4;
constexpr std::size_t kSamplesAfterSuccess = 1;

// Records of this size, on average, are copied for each time they are named: then records of one
// size lie at one distance, and nobody has to look for duplicates.
constexpr std::uint64_t kCopyTwiceBytesMax = 4096;

// A batch holds no more than this of raw bytes; what is larger is for BatchPlan to refuse.
constexpr std::uint64_t kBatchSizeBytesMax = std::uint64_t{1} << 46;

// Where one record of the batch lies.
struct Source {
  const FileIndex* index = nullptr;
  std::uint64_t index_in_file = 0;
  std::uint32_t file = 0;
  std::uint32_t same_as = 0;  // The first position that names the same record.
  const std::byte* stored = nullptr;
  RecordLocation location;
};

// Memory that one batch leaves to the next of its thread.
struct Scratch {
  std::vector<Source> sources;
  std::vector<std::uint32_t> slots;
  std::vector<std::byte> stored;  // A compressed record, copied before it is checked.
};

class ResidentBatch {
 public:
  ResidentBatch(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                Scratch& scratch)
      : reader_(reader), indices_(indices), scratch_(scratch) {}

  std::optional<Batch> Copy() {
    if (!Locate() || !SampleIsInMemory()) return std::nullopt;
    auto block = BatchBlock::Take(*reader_.source, size_bytes_, indices_.size());
    if (!block) return std::nullopt;  // Without duplicates and one by one it may fit.
    block_ = std::move(block).value();
    const std::uint64_t lost_before = LostPageGuard::lost_count();
    if (!CopyRecords()) return std::nullopt;
    if (LostPageGuard::lost_count() != lost_before) return std::nullopt;
    return block_.Finish(reader_.schema);
  }

  bool had_to_wait() const noexcept { return had_to_wait_; }

 private:
  bool Locate() {
    scratch_.sources.resize(indices_.size());
    for (std::size_t i = 0; i < std::min(kIndexAhead, indices_.size()); ++i) Approach(i);
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if (i + kIndexAhead < indices_.size()) Approach(i + kIndexAhead);
      Source& source = scratch_.sources[i];
      if (source.index->Locate(source.index_in_file, source.location) != ErrorCode::kOk)
        return false;
      if (source.file != mapped_file_ || mapped_.empty()) {
        mapped_file_ = source.file;
        mapped_ = reader_.source->Mapped(source.file);
        if (mapped_.empty()) return false;
      }
      source.stored = mapped_.data() + source.location.offset_bytes;
      size_bytes_ += source.location.raw_size_bytes;
      if (size_bytes_ > kBatchSizeBytesMax) return false;
    }
    if (size_bytes_ / indices_.size() > kCopyTwiceBytesMax) ShareDuplicates();
    return true;
  }

  // Finds out which file holds the record, and brings its index entry closer.
  void Approach(std::size_t i) {
    Source& source = scratch_.sources[i];
    const std::uint64_t index = indices_[i];
    if (index < file_begin_ || index >= file_end_) {
      file_ = reader_.FileOf(index);
      file_begin_ = reader_.first_indexes[file_];
      file_end_ = reader_.first_indexes[file_ + 1];
    }
    source.same_as = static_cast<std::uint32_t>(i);
    source.file = file_;
    source.index = reader_.indexes[file_].get();
    source.index_in_file = index - file_begin_;
    source.index->Prefetch(source.index_in_file);
  }

  // Large records that are named twice share their bytes: each position learns the first one that
  // names its record.
  void ShareDuplicates() {
    // An open hash table of positions, at most half full. 0 is free, else one more than a position.
    const std::size_t slot_count = std::bit_ceil(indices_.size() * 2);
    const int shift = 64 - std::countr_zero(slot_count);
    scratch_.slots.assign(slot_count, 0);
    for (std::uint32_t i = 0; i < indices_.size(); ++i) {
      std::size_t slot = indices_[i] * kGoldenGamma >> shift;
      while (scratch_.slots[slot] != 0 && indices_[scratch_.slots[slot] - 1] != indices_[i])
        slot = (slot + 1) & (slot_count - 1);
      if (scratch_.slots[slot] == 0) {
        scratch_.slots[slot] = i + 1;
        continue;
      }
      Source& source = scratch_.sources[i];
      source.same_as = scratch_.slots[slot] - 1;
      size_bytes_ -= source.location.raw_size_bytes;
    }
  }

  bool SampleIsInMemory() {
    const std::size_t samples = std::min(
        reader_.resident_guess.was_right() ? kSamplesAfterSuccess : kSamples, indices_.size());
    for (std::size_t sample = 0; sample < samples; ++sample) {
      // Of random batches any place will do; of neighbours it should be the last.
      const std::size_t position = indices_.size() - 1 - sample * indices_.size() / samples;
      const Source& source = scratch_.sources[scratch_.sources[position].same_as];
      const std::span stored(source.stored, source.location.stored_size_bytes);
      if (!stored.empty() && !IsInMemory(stored)) return false;
    }
    return true;
  }

  bool CopyRecords() {
    const std::uint64_t faults_before = MajorFaultsOfThread();
    std::uint64_t begin = 0;
    std::size_t next_check = kFirstStepRecords;
    std::uint64_t next_check_bytes = kFirstStepBytes;
    for (std::size_t i = 0; i < std::min(kDataAhead, indices_.size()); ++i) PrefetchData(i);
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if (i + kDataAhead < indices_.size()) PrefetchData(i + kDataAhead);
      const Source& source = scratch_.sources[i];
      block_.statuses[i] = ErrorCode::kOk;
      if (source.same_as != i) {
        block_.starts_bytes[i] = block_.starts_bytes[source.same_as];
        block_.sizes_bytes[i] = block_.sizes_bytes[source.same_as];
        continue;
      }
      const std::uint64_t size = source.location.raw_size_bytes;
      if (!CopyOne(source, block_.data.subspan(begin, size))) return false;
      block_.starts_bytes[i] = static_cast<std::int64_t>(begin);
      block_.sizes_bytes[i] = static_cast<std::int64_t>(size);
      begin += size;
      if (i < next_check && begin < next_check_bytes) continue;
      next_check = 2 * i + kFirstStepRecords;
      next_check_bytes = 2 * begin + kFirstStepBytes;
      if (HadToWait(faults_before, i)) return false;
    }
    HadToWait(faults_before, indices_.size());
    return true;
  }

  // More often than `record_count` records, read in the usual way, would excuse.
  bool HadToWait(std::uint64_t faults_before, std::size_t record_count) {
    had_to_wait_ =
        MajorFaultsOfThread() - faults_before > kFaultsAlways + record_count / kRecordsPerFault;
    return had_to_wait_;
  }

  void PrefetchData(std::size_t i) const {
    const Source& source = scratch_.sources[i];
    if (source.same_as != i) return;
    const std::uint64_t size = std::min(source.location.stored_size_bytes, kPrefetchBytesMax);
    for (std::uint64_t at = 0; at < size; at += kCacheLineBytes) Prefetch(source.stored + at);
    if (size > 0) Prefetch(source.stored + size - 1);
  }

  // Copies first and checks the copy: the page behind the original may go at any moment.
  bool CopyOne(const Source& source, std::span<std::byte> raw) {
    const std::uint64_t stored_size = source.location.stored_size_bytes;
    std::span<std::byte> copy = raw;
    if (source.location.compressed()) {
      if (scratch_.stored.size() < stored_size) scratch_.stored.resize(stored_size);
      copy = std::span(scratch_.stored).first(stored_size);
    }
    if (!copy.empty()) std::memcpy(copy.data(), source.stored, copy.size());
    if (reader_.options.verify_checksums &&
        !source.index->Matches(source.index_in_file, source.location, copy))
      return false;
    if (!source.location.compressed()) return true;
    return static_cast<bool>(source.index->Expand(copy, raw));
  }

  const RecordReader::Impl& reader_;
  const std::span<const std::uint64_t> indices_;
  Scratch& scratch_;
  BatchBlock block_;
  std::uint64_t size_bytes_ = 0;
  std::span<const std::byte> mapped_;
  std::uint32_t mapped_file_ = 0;
  std::uint32_t file_ = 0;
  std::uint64_t file_begin_ = 0;
  std::uint64_t file_end_ = 0;
  bool had_to_wait_ = false;
};

}  // namespace

std::optional<Batch> CopyResident(const RecordReader::Impl& reader,
                                  std::span<const std::uint64_t> indices) {
  constexpr std::size_t kPositionMax = std::size_t{1} << 31;
  if (indices.empty() || indices.size() > kPositionMax || !reader.resident_guess.Try())
    return std::nullopt;
  thread_local Scratch scratch;
  ResidentBatch batch(reader, indices, scratch);
  auto copied = batch.Copy();
  if (batch.had_to_wait())
    reader.resident_guess.Wrong();
  else if (copied)
    reader.resident_guess.Right();
  else
    reader.resident_guess.Absent();
  constexpr std::size_t kKeptRecordsMax = std::size_t{1} << 16;
  constexpr std::size_t kKeptBytesMax = std::size_t{16} << 20;
  // What one enormous batch needed is not kept for ever.
  if (scratch.sources.capacity() > kKeptRecordsMax || scratch.stored.size() > kKeptBytesMax)
    scratch = {};
  return copied;
}

}  // namespace ffrecord
