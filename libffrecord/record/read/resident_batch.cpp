#include "libffrecord/record/read/resident_batch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "libffrecord/base/align.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/mix.h"
#include "libffrecord/base/prefetch.h"
#include "libffrecord/base/shared_work.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/io/sigbus_guard.h"
#include "libffrecord/record/index/index_pages.h"
#include "libffrecord/record/read/batch_block.h"
#include "libffrecord/record/read/decompression.h"
#include "libffrecord/source/resident_files.h"

namespace ffrecord {
namespace {

// Memory is asked for what is needed next one group of records ahead, and for a whole group at a
// time: a prefetch does not retire before its address is translated, and a processor translates
// several at once only if they follow each other closely. No larger: it also waits for a free
// buffer once too many lines are on their way (8 records of 100 bytes take about 24).
constexpr std::size_t kGroup = 8;
constexpr std::size_t kCacheLineBytes = 64;
// Per record; the processor prefetches the rest.
constexpr std::uint64_t kPrefetchBytesMax = 512;

// After so many records or bytes the thread checks whether it had to wait; then after twice as
// many, and so on.
constexpr std::size_t kFirstStepRecords = 16;
constexpr std::uint64_t kFirstStepBytes = std::uint64_t{256} << 10;
// Waiting for one page takes about as long as reading this many records in the usual way.
constexpr std::size_t kRecordsPerFault = 64;
constexpr std::uint64_t kFaultsAlways = 2;
// No device delivers a page in less time. So a faster step has not waited, and reading the clock,
// unlike the fault count, needs no system call.
constexpr std::chrono::microseconds kFaultTimeMin{5};

// Decompressing one byte takes about as long as copying and checking this many.
constexpr std::uint64_t kBytesCopiedPerDecompressed = 8;
// Memory that the workers of one batch may use for records that are not yet decompressed.
constexpr std::uint64_t kSharedRoomBytesMax = std::uint64_t{64} << 20;

// Records that are sampled before a batch counts as in memory: usually, and if the last batch was.
constexpr std::size_t kSamples = 4;
constexpr std::size_t kSamplesAfterSuccess = 1;

// If records are this small on average, duplicates are copied too: then records of one size have
// one distance, and there is no search for duplicates.
constexpr std::uint64_t kCopyTwiceBytesMax = 4096;

// Records, or bytes, between two checks of the caller's patience: about a millisecond of work.
constexpr std::size_t kStepRecords = 4096;
constexpr std::uint64_t kStepBytes = std::uint64_t{4} << 20;

// The most raw bytes of a batch; BatchPlan rejects a larger one.
constexpr std::uint64_t kBatchSizeBytesMax = std::uint64_t{1} << 46;

// Where one record of the batch lies. Small: a batch of 4096 is walked twice, and should stay in
// the processor's cache between.
struct Source {
  const std::byte* at = nullptr;  // Its index entry, if that is at hand; then its stored bytes.
  std::uint64_t check = 0;
  std::uint64_t index_in_file = 0;
  std::uint64_t stored_size_bytes = 0;
  std::uint64_t raw_size_bytes = 0;
  std::uint32_t file = 0;
  std::uint32_t same_as = 0;  // The first position that names the same record.

  bool compressed() const noexcept { return stored_size_bytes != raw_size_bytes; }
};

// Memory that one batch leaves to the next of its thread.
struct Scratch {
  bool Recycle() const noexcept {
    constexpr std::size_t kKeptRecordsMax = std::size_t{1} << 16;
    constexpr std::size_t kKeptBytesMax = std::size_t{16} << 20;
    return sources.capacity() <= kKeptRecordsMax && stored.capacity() <= kKeptBytesMax;
  }

  std::vector<Source> sources;
  std::vector<std::uint32_t> slots;
  std::vector<std::byte> stored;  // A compressed record, copied before it is checked.
  std::vector<std::uint32_t> piece_ends;
};

class ResidentBatch {
 public:
  ResidentBatch(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                Scratch& scratch, StageClock& clock, Patience& patience)
      : reader_(reader), indices_(indices), scratch_(scratch), clock_(clock), patience_(patience) {}

  std::optional<Batch> Copy() {
    const std::uint64_t lost_before = SigbusGuard::lost_count();
    if (resident_ == nullptr || !Locate() || !SampleIsInMemory()) return std::nullopt;
    auto block = BatchBlock::Take(*reader_.source, size_bytes_, indices_.size());
    if (!block) return std::nullopt;  // Read one by one, without duplicates, it may fit.
    block_ = std::move(block).value();
    clock_.Lap(reader_.stages.submit);
    const bool copied = CopyRecords();
    clock_.Lap(had_to_wait()             ? reader_.stages.device
               : decompressed_bytes_ > 0 ? reader_.stages.decompress
                                         : reader_.stages.verify);
    if (!copied) return std::nullopt;
    if (SigbusGuard::lost_count() != lost_before) return std::nullopt;
    if (!reader_.options.verify_checksums && !FilesAreWhole()) return std::nullopt;
    return block_.Finish(reader_.schema);
  }

  bool had_to_wait() const noexcept { return had_to_wait_.load(std::memory_order_relaxed); }

 private:
  // If a file was truncated inside a page, the rest of that page reads as zeros without a fault.
  // Without checksums, only the size tells.
  bool FilesAreWhole() const {
    std::optional<std::uint32_t> known;
    for (const Source& source : scratch_.sources) {
      if (source.file == known) continue;
      if (resident_->HasShrunk(source.file)) return false;
      known = source.file;
    }
    return true;
  }

  bool Locate() {
    scratch_.sources.resize(indices_.size());
    ApproachGroup(0);
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if (i % kGroup == 0) ApproachGroup(i + kGroup);
      if (i % kStepRecords == 0 && patience_.IsOver()) return false;
      Source& source = scratch_.sources[i];
      if (source.file != mapped_file_ || mapped_.empty()) {
        mapped_file_ = source.file;
        mapped_ = resident_->Mapped(source.file);
        mapped_pages_ = reader_.indexes[source.file]->pages();
        present_ = resident_->PresenceOf(source.file);
        if (mapped_.empty() || (present_ != nullptr && !reader_.options.verify_checksums))
          return false;
      }
      if (!LocateOne(source) || !IsPresent(source)) return false;
      size_bytes_ += source.raw_size_bytes;
      if (size_bytes_ > kBatchSizeBytesMax) return false;
    }
    if (size_bytes_ / indices_.size() > kCopyTwiceBytesMax) ShareDuplicates();
    return true;
  }

  void ApproachGroup(std::size_t begin) {
    const std::size_t end = std::min(begin + kGroup, indices_.size());
    for (std::size_t i = begin; i < end; ++i) Approach(i);
  }

  // Finds the file of the record, and prefetches its index entry.
  void Approach(std::size_t i) {
    Source& source = scratch_.sources[i];
    const std::uint64_t index = indices_[i];
    if (index < file_begin_ || index >= file_end_) {
      file_ = reader_.FileOf(index);
      file_begin_ = reader_.first_indexes[file_];
      file_end_ = reader_.first_indexes[file_ + 1];
      pages_ = reader_.indexes[file_]->pages();
    }
    source.same_as = static_cast<std::uint32_t>(i);
    source.file = file_;
    source.index_in_file = index - file_begin_;
    source.at = pages_ != nullptr ? pages_->CheckedEntry(source.index_in_file) : nullptr;
    if (source.at != nullptr)
      IndexPages::PrefetchEntry(source.at);
    else
      reader_.indexes[file_]->Prefetch(source.index_in_file);
  }

  bool IsPresent(const Source& source) const {
    return present_ == nullptr ||
           present_->Has(static_cast<std::uint64_t>(source.at - mapped_.data()),
                         source.stored_size_bytes);
  }

  // Finds the bytes of the record in its mapped file.
  bool LocateOne(Source& source) {
    RecordLocation location;
    if (source.at != nullptr) location = DecodeIndexEntry(source.at);
    const bool is_plain =
        source.at != nullptr && mapped_pages_->IsSane(location) && !location.compressed();
    if (!is_plain) {
      const FileIndex& index = *reader_.indexes[source.file];
      if (index.Locate(source.index_in_file, location) != ErrorCode::kOk) return false;
      if (location.compressed()) decompressed_bytes_ += location.raw_size_bytes;
    }
    source.at = mapped_.data() + location.offset_bytes;
    source.check = location.check;
    source.stored_size_bytes = location.stored_size_bytes;
    source.raw_size_bytes = location.raw_size_bytes;
    return true;
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
      size_bytes_ -= source.raw_size_bytes;
    }
  }

  bool SampleIsInMemory() {
    const std::size_t samples = std::min(
        reader_.resident_guess.was_right() ? kSamplesAfterSuccess : kSamples, indices_.size());
    for (std::size_t sample = 0; sample < samples; ++sample) {
      // In a random batch any position will do; in a batch of neighbours it should be the last.
      const std::size_t position = indices_.size() - 1 - sample * indices_.size() / samples;
      const Source& source = scratch_.sources[scratch_.sources[position].same_as];
      const std::span stored(source.at, source.stored_size_bytes);
      if (!stored.empty() && !IsInMemory(stored)) return false;
    }
    return true;
  }

  // Copies one by one until enough records were in memory to expect the same of the rest; then
  // workers may share the rest.
  bool CopyRecords() {
    const std::uint64_t faults_before = MajorFaultsOfThread();
    const Clock::time_point start = Clock::now();
    std::size_t next_check = kFirstStepRecords;
    std::uint64_t next_check_bytes = kFirstStepBytes;
    PrefetchGroup(0, indices_.size());
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if (i % kGroup == 0) PrefetchGroup(i + kGroup, indices_.size());
      if (IsTimeToAsk(i) && patience_.IsOver()) return false;
      if (Place(i) && !CopyOne(i, StoredRoom(i), &patience_)) return false;
      if (i < next_check && placed_bytes_ < next_check_bytes) continue;
      next_check = 2 * i + kFirstStepRecords;
      next_check_bytes = 2 * placed_bytes_ + kFirstStepBytes;
      if (HadToWait(start, faults_before, i)) return false;
      if (IsWorthSharing(i + 1)) return CopyTogether(i + 1);
    }
    HadToWait(start, faults_before, indices_.size());
    return true;
  }

  bool IsTimeToAsk(std::size_t i) {
    if (i % kStepRecords != 0 && placed_bytes_ < asked_at_bytes_ + kStepBytes) return false;
    asked_at_bytes_ = placed_bytes_;
    return true;
  }

  // Fills the tables for position `i`. True if its bytes have to be copied there.
  bool Place(std::size_t i) {
    const Source& source = scratch_.sources[i];
    block_.statuses[i] = ErrorCode::kOk;
    if (source.same_as != i) {
      block_.starts_bytes[i] = block_.starts_bytes[source.same_as];
      block_.sizes_bytes[i] = block_.sizes_bytes[source.same_as];
      return false;
    }
    block_.starts_bytes[i] = static_cast<std::int64_t>(placed_bytes_);
    block_.sizes_bytes[i] = static_cast<std::int64_t>(source.raw_size_bytes);
    placed_bytes_ += source.raw_size_bytes;
    return true;
  }

  // Whether so many faults cost more time than reading `record_count` records in the usual way.
  static bool IsTooOften(std::uint64_t faults, std::size_t record_count) {
    return faults > kFaultsAlways + record_count / kRecordsPerFault;
  }

  bool HadToWait(Clock::time_point start, std::uint64_t faults_before, std::size_t record_count) {
    const auto excused = kFaultTimeMin * (kFaultsAlways + record_count / kRecordsPerFault);
    if (Clock::now() - start <= excused) return false;
    had_to_wait_ = IsTooOften(MajorFaultsOfThread() - faults_before, record_count);
    return had_to_wait();
  }

  static std::uint64_t WorkBytes(const Source& source) {
    return source.raw_size_bytes * (source.compressed() ? kBytesCopiedPerDecompressed : 1);
  }

  // One thread that copies uncompressed records already keeps the memory busy.
  bool IsWorthSharing(std::size_t from) const {
    return reader_.options.worker_count_max > 0 &&
           decompressed_bytes_ / indices_.size() * (indices_.size() - from) >=
               kDecompressedBytesMin;
  }

  // Copies the rest, from position `from` on, together with workers.
  bool CopyTogether(std::size_t from) {
    const std::uint64_t room_bytes = PlanPieces(from);
    const std::uint64_t rooms_max = kSharedRoomBytesMax / room_bytes;
    SharedWork work(static_cast<std::uint32_t>(
                        std::min<std::uint64_t>(reader_.options.worker_count_max, rooms_max)),
                    [&](std::size_t piece, std::uint32_t slot) {
                      CopyPiece(from, piece, rooms_->subspan(slot * room_bytes, room_bytes),
                                slot == 0 ? &patience_ : nullptr);
                    });
    auto rooms = BufferPool::Process().Take((work.worker_count() + 1) * room_bytes);
    if (!rooms) return false;
    rooms_ = std::move(rooms).value();
    work.Ready(scratch_.piece_ends.size());
    work.Finish();
    return !failed_.load(std::memory_order_relaxed);
  }

  // Places all and cuts it into pieces. Returns the room that the largest compressed one takes.
  std::uint64_t PlanPieces(std::size_t from) {
    scratch_.piece_ends.clear();
    std::uint64_t room_bytes = 0;
    std::uint64_t piece_bytes = 0;
    for (std::size_t i = from; i < indices_.size(); ++i) {
      if (!Place(i)) continue;
      const Source& source = scratch_.sources[i];
      if (source.compressed()) room_bytes = std::max(room_bytes, source.stored_size_bytes);
      piece_bytes += WorkBytes(source);
      if (piece_bytes < kDecompressedPieceBytes * kBytesCopiedPerDecompressed) continue;
      scratch_.piece_ends.push_back(static_cast<std::uint32_t>(i + 1));
      piece_bytes = 0;
    }
    if (piece_bytes > 0) scratch_.piece_ends.push_back(static_cast<std::uint32_t>(indices_.size()));
    return AlignUp(std::max<std::uint64_t>(room_bytes, 1), kCacheLineBytes);
  }

  // Runs on any thread; `patience` is null on all but the batch's own.
  void CopyPiece(std::size_t from, std::size_t piece, std::span<std::byte> room,
                 Patience* patience) {
    if (patience != nullptr && patience->IsOver()) failed_ = true;
    if (failed_.load(std::memory_order_relaxed)) return;
    const std::uint64_t faults_before = MajorFaultsOfThread();
    const std::size_t begin = piece > 0 ? scratch_.piece_ends[piece - 1] : from;
    const std::size_t end = scratch_.piece_ends[piece];
    PrefetchGroup(begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      if ((i - begin) % kGroup == 0) PrefetchGroup(i + kGroup, end);
      if (scratch_.sources[i].same_as == i && !CopyOne(i, room, patience)) failed_ = true;
    }
    const std::uint64_t faults = MajorFaultsOfThread() - faults_before;
    const std::uint64_t all_faults = shared_faults_.fetch_add(faults) + faults;
    if (IsTooOften(all_faults, shared_records_.fetch_add(end - begin) + (end - begin)))
      had_to_wait_ = failed_ = true;
  }

  void PrefetchGroup(std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < std::min(begin + kGroup, end); ++i) PrefetchData(i);
  }

  void PrefetchData(std::size_t i) const {
    const Source& source = scratch_.sources[i];
    if (source.same_as != i) return;
    const std::uint64_t size = std::min(source.stored_size_bytes, kPrefetchBytesMax);
    for (std::uint64_t at = 0; at < size; at += kCacheLineBytes) Prefetch(source.at + at);
    if (size > 0) Prefetch(source.at + size - 1);
  }

  // Where this thread alone copies what is compressed at `i`.
  std::span<std::byte> StoredRoom(std::size_t i) {
    const Source& source = scratch_.sources[i];
    if (!source.compressed()) return {};
    if (scratch_.stored.size() < source.stored_size_bytes)
      scratch_.stored.resize(source.stored_size_bytes);
    return scratch_.stored;
  }

  // Copies first and checks the copy, because the mapped page may be lost at any moment. Copies
  // compressed bytes to `room`.
  bool CopyOne(std::size_t i, std::span<std::byte> room, Patience* patience) const {
    const Source& source = scratch_.sources[i];
    const std::span<std::byte> raw =
        block_.data.subspan(static_cast<std::size_t>(block_.starts_bytes[i]),
                            static_cast<std::size_t>(block_.sizes_bytes[i]));
    const bool compressed = source.compressed();
    const std::span<std::byte> copy = compressed ? room.first(source.stored_size_bytes) : raw;
    for (std::size_t begin = 0; begin < copy.size(); begin += kStepBytes) {
      if (begin > 0 && patience != nullptr && patience->IsOver()) return false;
      std::memcpy(copy.data() + begin, source.at + begin,
                  std::min<std::size_t>(kStepBytes, copy.size() - begin));
    }
    const FileIndex& index = *reader_.indexes[source.file];
    if (reader_.options.verify_checksums &&
        !index.Matches(source.index_in_file, source.check, copy))
      return false;
    return !compressed || index.Decompress(copy, raw);
  }

  const RecordReader::Impl& reader_;
  const ResidentFiles* const resident_ = reader_.source->resident();
  const std::span<const std::uint64_t> indices_;
  Scratch& scratch_;
  StageClock& clock_;
  Patience& patience_;
  std::uint64_t asked_at_bytes_ = 0;
  BatchBlock block_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t decompressed_bytes_ = 0;
  std::uint64_t placed_bytes_ = 0;
  // For LocateOne().
  std::span<const std::byte> mapped_;
  const ResidentFiles::Presence* present_ = nullptr;
  const IndexPages* mapped_pages_ = nullptr;
  std::uint32_t mapped_file_ = 0;
  // For Approach().
  const IndexPages* pages_ = nullptr;
  std::uint32_t file_ = 0;
  std::uint64_t file_begin_ = 0;
  std::uint64_t file_end_ = 0;
  std::atomic<bool> had_to_wait_{false};
  // Holds records that are copied together.
  PooledBuffer rooms_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> shared_faults_{0};
  std::atomic<std::uint64_t> shared_records_{0};
};

}  // namespace

std::optional<Batch> CopyResident(const RecordReader::Impl& reader,
                                  std::span<const std::uint64_t> indices, StageClock& clock,
                                  Patience& patience) {
  constexpr std::size_t kPositionMax = std::size_t{1} << 31;
  if (indices.empty() || indices.size() > kPositionMax || !reader.resident_guess.Try())
    return std::nullopt;
  const ThreadScratch<Scratch> scratch;
  ResidentBatch batch(reader, indices, *scratch, clock, patience);
  auto copied = batch.Copy();
  if (batch.had_to_wait())
    reader.resident_guess.Wrong();
  else if (copied)
    reader.resident_guess.Right();
  else if (!patience.was_over())
    reader.resident_guess.Absent();
  return copied;
}

}  // namespace ffrecord
