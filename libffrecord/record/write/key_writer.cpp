#include "libffrecord/record/write/key_writer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/format/v2_record.h"

namespace ffrecord {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
constexpr std::size_t kSpillBufferEntries = 1024;
constexpr std::uint64_t kPagesPerRead = 16;
// Larger runs (this is 400 MB of pages) could put more bytes between two commits than readers
// search for the older one (kCommitSearchBytesMax).
constexpr std::uint64_t kMergedEntriesMax = std::uint64_t{1} << 24;

// A source of sorted entries, one by one. `current` is null at the end.
class EntrySource {
 public:
  virtual ~EntrySource() = default;

  const KeyEntry* current() const noexcept {
    return at_ < entries_.size() ? &entries_[at_] : nullptr;
  }
  Result<void> Advance() {
    if (++at_ < entries_.size()) return {};
    return Fill();
  }
  // Fetches the next entries; call it once before all else.
  Result<void> Fill() {
    at_ = 0;
    entries_ = FFR_TRY(Next());
    return {};
  }

 protected:
  // Valid until the next call; none at the end.
  virtual Result<std::span<const KeyEntry>> Next() = 0;

 private:
  std::span<const KeyEntry> entries_;
  std::size_t at_ = 0;
};

class MemorySource final : public EntrySource {
 public:
  explicit MemorySource(std::span<const KeyEntry> entries) : entries_(entries) {}

 private:
  Result<std::span<const KeyEntry>> Next() override { return std::exchange(entries_, {}); }
  std::span<const KeyEntry> entries_;
};

class SpillSource final : public EntrySource {
 public:
  SpillSource(const ScratchFile& file, std::uint64_t offset_bytes, std::uint64_t entry_count)
      : file_(file), offset_bytes_(offset_bytes), left_(entry_count) {}

 private:
  Result<std::span<const KeyEntry>> Next() override {
    buffer_.resize(std::min<std::uint64_t>(left_, kSpillBufferEntries));
    const auto bytes = std::as_writable_bytes(std::span(buffer_));
    FFR_TRY(file_.ReadAt(offset_bytes_, bytes));
    offset_bytes_ += bytes.size();
    left_ -= buffer_.size();
    return std::span<const KeyEntry>(buffer_);
  }

  const ScratchFile& file_;
  std::uint64_t offset_bytes_;
  std::uint64_t left_;
  std::vector<KeyEntry> buffer_;
};

class RunSource final : public EntrySource {
 public:
  RunSource(const KeyWriter::ReadAt& read_at, const FileId& id, const KeyRun& run)
      : read_at_(read_at), id_(id), run_(run) {}

 private:
  Result<std::span<const KeyEntry>> Next() override {
    buffer_.clear();
    const std::uint64_t page_count = std::min(kPagesPerRead, run_.page_count() - page_);
    const std::uint64_t begin = run_.offset_bytes + page_ * kKeyPageSizeBytes;
    pages_.resize(page_count * kKeyPageSizeBytes);
    if (page_count > 0) FFR_TRY(read_at_(begin, pages_));
    for (std::uint64_t i = 0; i < page_count; ++i, ++page_) {
      const auto page = std::span(pages_).subspan(i * kKeyPageSizeBytes, kKeyPageSizeBytes);
      const std::uint64_t count = run_.entries_in_page(page_);
      FFR_TRY(CheckKeyPage(page, id_, begin + i * kKeyPageSizeBytes, count));
      for (std::uint64_t slot = 0; slot < count; ++slot)
        buffer_.push_back(LoadKeyEntry(page, slot));
    }
    return std::span<const KeyEntry>(buffer_);
  }

  const KeyWriter::ReadAt& read_at_;
  const FileId& id_;
  const KeyRun run_;
  std::uint64_t page_ = 0;
  std::vector<std::byte> pages_;
  std::vector<KeyEntry> buffer_;
};

using Sources = std::vector<std::unique_ptr<EntrySource>>;

// Writes the pages of one run.
class RunWriter {
 public:
  explicit RunWriter(V2Stream& stream)
      : stream_(stream), pages_(kPagesPerRead * kKeyPageSizeBytes) {}

  Result<void> Begin() {
    run_.offset_bytes = FFR_TRY(stream_.AlignTo(kKeyPageSizeBytes));
    return {};
  }

  Result<void> Add(const KeyEntry& entry) {
    const std::uint64_t slot = run_.entry_count++ % (kPagesPerRead * kKeyEntriesPerPage);
    StoreKeyEntry(entry, slot % kKeyEntriesPerPage,
                  std::span(pages_).subspan(slot / kKeyEntriesPerPage * kKeyPageSizeBytes,
                                            kKeyPageSizeBytes));
    if (slot + 1 < kPagesPerRead * kKeyEntriesPerPage) return {};
    return WritePages();
  }

  Result<KeyRun> End() {
    FFR_TRY(WritePages());
    return run_;
  }

 private:
  Result<void> WritePages() {
    const std::uint64_t page_count = run_.page_count() - written_page_count_;
    for (std::uint64_t i = 0; i < page_count; ++i, ++written_page_count_)
      SealKeyPage(stream_.header().file_id,
                  run_.offset_bytes + written_page_count_ * kKeyPageSizeBytes,
                  run_.entries_in_page(written_page_count_),
                  std::span(pages_).subspan(i * kKeyPageSizeBytes, kKeyPageSizeBytes));
    FFR_TRY(stream_.AppendStructure(std::span(pages_).first(page_count * kKeyPageSizeBytes), 1));
    std::fill(pages_.begin(), pages_.end(), std::byte{});
    return {};
  }

  V2Stream& stream_;
  KeyRun run_;
  std::uint64_t written_page_count_ = 0;
  std::vector<std::byte> pages_;  // Zero behind the last entry.
};

// Writes the entries of all sources as one run.
Result<KeyRun> Merge(Sources& sources, V2Stream& stream) {
  // On top of the heap is the source with the lowest entry.
  const auto later = [](const auto& a, const auto& b) { return *b->current() < *a->current(); };
  for (const auto& source : sources) FFR_TRY(source->Fill());
  std::erase_if(sources, [](const auto& source) { return source->current() == nullptr; });
  std::make_heap(sources.begin(), sources.end(), later);
  RunWriter writer(stream);
  FFR_TRY(writer.Begin());
  while (!sources.empty()) {
    std::pop_heap(sources.begin(), sources.end(), later);
    EntrySource& lowest = *sources.back();
    FFR_TRY(writer.Add(*lowest.current()));
    FFR_TRY(lowest.Advance());
    if (lowest.current() == nullptr)
      sources.pop_back();
    else
      std::push_heap(sources.begin(), sources.end(), later);
  }
  return writer.End();
}

// The working directory may change before a scratch file is needed.
std::filesystem::path Absolute(const std::filesystem::path& path) {
  std::error_code failure;
  auto absolute = std::filesystem::absolute(path, failure);
  return failure ? path : absolute;
}

}  // namespace

KeyWriter::KeyWriter(Options options)
    : path_(Absolute(options.path)),
      read_at_(std::move(options.read_at)),
      pending_max_(options.pending_max),
      hash_(options.hash),
      runs_(std::move(options.runs)) {}

Result<void> KeyWriter::Add(std::uint64_t record_index, std::span<const std::byte> key,
                            V2Stream& stream) {
  const bool descends = block_key_count_ > 0 && record_index <= block_last_index_;
  if (descends || block_.size() + V2KeyBlockHeader::kKeyHeadBytes + key.size() > kBlockBytes)
    FFR_TRY(WriteBlock(stream));
  if (pending_.size() == pending_max_) {
    FFR_TRY(WriteBlock(stream));
    FFR_TRY(Spill());
  }
  AppendBlockKey(record_index, key, block_);
  KeyEntry entry;
  entry.hash = hash_(stream.header().file_id, key);
  entry.record_index = record_index & (kRecordCountMax - 1);
  entry.size_bytes = key.size() & kKeySizeBytesMax;
  entry.offset_bytes = block_.size() - key.size();
  pending_.push_back(entry);
  block_last_index_ = record_index;
  ++block_key_count_;
  return {};
}

Result<void> KeyWriter::WriteBlock(V2Stream& stream) {
  if (block_key_count_ == 0) return {};
  const std::uint64_t offset = FFR_TRY(stream.AlignTo(1));
  if (offset + V2KeyBlockHeader::kEncodedSizeBytes + block_.size() >= kPayloadOffsetBytesEnd)
    return Error{ErrorCode::kInvalidArgument, "the file has reached 2^48 bytes; begin another"};
  FFR_TRY(stream.AppendStructure(
      EncodeV2KeyBlockHeader(block_, block_key_count_, stream.header().file_id, offset), 1));
  FFR_TRY(stream.AppendStructure(block_, 1));
  SaveBlockOfMark();
  for (KeyEntry& entry : std::span(pending_).last(block_key_count_))
    entry.offset_bytes += offset + V2KeyBlockHeader::kEncodedSizeBytes;
  block_.clear();
  block_key_count_ = 0;
  return {};
}

Result<void> KeyWriter::Spill() {
  if (!scratch_) scratch_.emplace(FFR_TRY(ScratchFile::Create(path_)));
  SavePendingOfMark();
  std::sort(pending_.begin(), pending_.end());
  FFR_TRY(scratch_->Append(std::as_bytes(std::span(pending_))));
  spill_counts_.push_back(pending_.size());
  pending_.clear();
  return {};
}

void KeyWriter::SetMark() {
  mark_ = Mark{pending_.size(), block_.size(), block_key_count_, block_last_index_,
               spill_counts_.size()};
}

void KeyWriter::SaveBlockOfMark() {
  if (!mark_ || mark_->block) return;
  const auto end = pending_.begin() + static_cast<std::ptrdiff_t>(mark_->pending_count);
  mark_->block.emplace(block_.begin(),
                       block_.begin() + static_cast<std::ptrdiff_t>(mark_->block_size_bytes));
  mark_->block_entries.assign(end - mark_->block_key_count, end);
}

void KeyWriter::SavePendingOfMark() {
  if (!mark_ || mark_->pending) return;
  mark_->pending.emplace(pending_.begin(),
                         pending_.begin() + static_cast<std::ptrdiff_t>(mark_->pending_count));
}

void KeyWriter::ReturnToMark() {
  FFR_ASSERT(mark_.has_value());
  Mark mark = *std::exchange(mark_, std::nullopt);
  if (mark.pending)
    pending_ = *std::move(mark.pending);
  else
    pending_.resize(mark.pending_count);
  if (mark.block) {
    block_ = *std::move(mark.block);
    std::ranges::copy(mark.block_entries, pending_.end() - mark.block_key_count);
  } else {
    block_.resize(mark.block_size_bytes);
  }
  block_key_count_ = mark.block_key_count;
  block_last_index_ = mark.block_last_index;
  spill_counts_.resize(mark.spill_count);
  std::uint64_t spilled_count = 0;
  for (const std::uint64_t count : spill_counts_) spilled_count += count;
  if (scratch_) scratch_->CutTo(spilled_count * sizeof(KeyEntry));
}

std::vector<KeyRun> KeyWriter::TakeSmallRuns(std::uint64_t entry_count) {
  std::vector<KeyRun> small;
  while (!runs_.empty() && entry_count < kMergedEntriesMax) {
    const std::uint64_t last_count = runs_.back().entry_count;
    const bool is_small = last_count / 2 < entry_count || runs_.size() + 1 > kKeyRunCountMax;
    if (!is_small || last_count > kMergedEntriesMax - entry_count) break;
    entry_count += last_count;
    small.push_back(runs_.back());
    runs_.pop_back();
  }
  return small;
}

Result<void> KeyWriter::Finish(V2Stream& stream) {
  FFR_TRY(WriteBlock(stream));
  std::uint64_t entry_count = pending_.size();
  for (const std::uint64_t count : spill_counts_) entry_count += count;
  if (entry_count == 0) return {};
  std::sort(pending_.begin(), pending_.end());
  Sources sources;
  sources.push_back(std::make_unique<MemorySource>(pending_));
  std::uint64_t spill_begin = 0;
  for (const std::uint64_t count : spill_counts_) {
    sources.push_back(std::make_unique<SpillSource>(*scratch_, spill_begin, count));
    spill_begin += count * sizeof(KeyEntry);
  }
  const std::vector<KeyRun> small_runs = TakeSmallRuns(entry_count);
  if (runs_.size() == kKeyRunCountMax)
    return Error{ErrorCode::kInvalidArgument,
                 path_.string() +
                     ": there are too many keys to append more; write the records to a new file"};
  for (const KeyRun& run : small_runs) {
    FFR_ASSERT(read_at_ != nullptr);
    sources.push_back(std::make_unique<RunSource>(read_at_, stream.header().file_id, run));
  }
  runs_.push_back(FFR_TRY(Merge(sources, stream)));
  pending_.clear();
  scratch_.reset();
  spill_counts_.clear();
  stream.ForgetSections(V2Section::kKeyDirectory);
  return stream.AddSection(V2Section::kKeyDirectory, EncodeKeyDirectory(runs_));
}

}  // namespace ffrecord
