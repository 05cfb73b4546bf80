#include "libffrecord/record/index/key_index.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/index/kept_mappings.h"
#include "libffrecord/record/index/v2_commit.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord {
namespace {

// Pages that are fetched together: a source without mappings pays for each fetch.
constexpr std::uint64_t kPagesPerChunk = 16;

std::span<const std::byte> Bytes(const std::byte* page) { return {page, kKeyPageSizeBytes}; }

Error Corrupt(const KeyEntry& entry, const char* found) {
  return {ErrorCode::kCorruption,
          "key of record " + std::to_string(entry.record_index) + ": " + found};
}

// The slot of the first of `entry_count` entries whose hash is not below `hash`.
std::uint64_t FirstNotBelow(const std::byte* page, std::uint64_t entry_count, std::uint64_t hash) {
  std::uint64_t low = 0;
  std::uint64_t high = entry_count;
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (LoadKeyEntry(Bytes(page), middle).hash < hash)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

// The pages of one run, each checked when it is first asked for.
class KeyIndex::Run {
 public:
  Run(std::uint32_t file, const FileId& id, const KeyRun& run)
      : file_(file),
        id_(id),
        run_(run),
        chunks_(run.page_count() / kPagesPerChunk + 1),
        checked_(run.page_count() / 64 + 1) {}

  explicit operator bool() const noexcept { return chunks_ && checked_; }
  const KeyRun& run() const noexcept { return run_; }

  // Fetched from `source`, if it is not there.
  Result<const std::byte*> Page(std::uint64_t number, const RangeReader& source) const {
    const std::uint64_t chunk_number = number / kPagesPerChunk;
    const std::byte* chunk = chunks_[chunk_number].load(std::memory_order_acquire);
    if (chunk == nullptr) chunk = FFR_TRY(FetchChunk(chunk_number, source));
    const std::byte* page = PageIn(chunk, number);
    const std::uint64_t bit = std::uint64_t{1} << (number % 64);
    if ((checked_[number / 64].load(std::memory_order_acquire) & bit) != 0) return page;
    if (auto checked = CheckPage(page, number); !checked) {
      auto other = FetchFromCopies(chunk_number, source);
      if (!other)
        return other.error().code == ErrorCode::kCorruption ? checked.error() : other.error();
      page = PageIn(other.value(), number);
    }
    checked_[number / 64].fetch_or(bit, std::memory_order_release);
    return page;
  }

  // The first page whose last hash is not below `hash`; page_count() if there is none. Hashes are
  // evenly spread, so this guesses the page from the value, and falls back to bisection.
  Result<std::uint64_t> FirstPageNotBelow(std::uint64_t hash, const RangeReader& source) const {
    constexpr int kGuessesMax = 6;
    std::uint64_t low = 0;
    std::uint64_t high = run_.page_count();
    std::uint64_t low_hash = 0;
    std::uint64_t high_hash = std::numeric_limits<std::uint64_t>::max();
    for (int step = 0; low < high; ++step) {
      std::uint64_t number = low + (high - low) / 2;
      if (step < kGuessesMax && low_hash < high_hash) {
        const double share =
            static_cast<double>(hash - low_hash) / static_cast<double>(high_hash - low_hash);
        const double guess = share * static_cast<double>(high - low);
        number = low + std::min(static_cast<std::uint64_t>(guess), high - low - 1);
      }
      const std::byte* page = FFR_TRY(Page(number, source));
      const std::uint64_t first = LoadKeyEntry(Bytes(page), 0).hash;
      const std::uint64_t last = LoadKeyEntry(Bytes(page), run_.entries_in_page(number) - 1).hash;
      if (last < hash) {
        low = number + 1;
        low_hash = last;
      } else if (first < hash) {
        return number;
      } else {
        high = number;
        high_hash = first;
      }
    }
    return low;
  }

 private:
  static const std::byte* PageIn(const std::byte* chunk, std::uint64_t number) {
    return chunk + number % kPagesPerChunk * kKeyPageSizeBytes;
  }

  Result<void> CheckPage(const std::byte* page, std::uint64_t number) const {
    return CheckKeyPage(Bytes(page), id_, run_.offset_bytes + number * kKeyPageSizeBytes,
                        run_.entries_in_page(number));
  }

  std::uint64_t ChunkSizeBytes(std::uint64_t number) const {
    return std::min(kPagesPerChunk * kKeyPageSizeBytes, run_.size_bytes() - ChunkBegin(number));
  }
  static std::uint64_t ChunkBegin(std::uint64_t number) {
    return number * kPagesPerChunk * kKeyPageSizeBytes;
  }

  Result<const std::byte*> FetchChunk(std::uint64_t number, const RangeReader& source) const {
    auto mapped = FFR_TRY(
        source.MapIndex(file_, run_.offset_bytes + ChunkBegin(number), ChunkSizeBytes(number)));
    return Keep(number, mapped.bytes.data(), std::move(mapped.owner));
  }

  // The chunk of another copy of the file, whole: pages that were checked before are looked up in
  // it from now on.
  Result<const std::byte*> FetchFromCopies(std::uint64_t chunk_number,
                                           const RangeReader& source) const {
    const auto is_right = [&](std::span<const std::byte> chunk) {
      for (std::uint64_t at = 0; at < chunk.size(); at += kKeyPageSizeBytes)
        if (!CheckPage(chunk.data() + at, chunk_number * kPagesPerChunk + at / kKeyPageSizeBytes))
          return false;
      return true;
    };
    auto copy =
        FFR_TRY(FileCopies::ReadRight(source, file_, run_.offset_bytes + ChunkBegin(chunk_number),
                                      ChunkSizeBytes(chunk_number), is_right));
    const std::byte* const bytes = copy->data();
    return Keep(chunk_number, bytes, std::move(copy));
  }

  // If two threads fetch one chunk, both copies are kept, and either will do.
  const std::byte* Keep(std::uint64_t chunk_number, const std::byte* bytes,
                        std::shared_ptr<const void> owner) const {
    owners_.Keep(std::move(owner));
    chunks_[chunk_number].store(bytes, std::memory_order_release);
    return bytes;
  }

  const std::uint32_t file_;
  const FileId& id_;
  const KeyRun run_;
  ZeroedAtomics<const std::byte*> chunks_;  // Null until fetched.
  ZeroedAtomics<std::uint64_t> checked_;    // One bit for each page.
  mutable KeptOwners owners_;
};

struct KeyIndex::Runs {
  std::vector<std::unique_ptr<const Run>> runs;
};

KeyIndex::~KeyIndex() { delete runs_.load(); }

Result<const KeyIndex::Runs*> KeyIndex::Load(const RangeReader& bytes) const {
  const Runs* loaded = runs_.load(std::memory_order_acquire);
  if (loaded != nullptr) return loaded;
  auto fresh = std::make_unique<Runs>();
  if (const V2Section* section = layout_.footer.Find(V2Section::kKeyDirectory)) {
    const V2Source source{bytes, file_, layout_.header.file_id};
    const auto directory = FFR_TRY(source.FetchSection(*section));
    for (const KeyRun& run :
         FFR_TRY(DecodeKeyDirectory(directory.bytes, layout_.footer_offset_bytes))) {
      fresh->runs.push_back(std::make_unique<const Run>(file_, layout_.header.file_id, run));
      if (!*fresh->runs.back())
        return Error{ErrorCode::kIo, "no memory to keep track of the pages of keys", ENOMEM};
    }
  }
  // If two threads load at once, the second result is dropped.
  if (runs_.compare_exchange_strong(loaded, fresh.get(), std::memory_order_acq_rel))
    return fresh.release();
  return loaded;
}

Result<std::optional<std::uint64_t>> KeyIndex::Find(std::span<const std::byte> key,
                                                    const RangeReader& bytes) const {
  const Runs* runs = FFR_TRY(Load(bytes));
  std::optional<std::uint64_t> lowest;
  if (runs->runs.empty()) return lowest;
  const std::uint64_t hash = hash_(layout_.header.file_id, key);
  for (const auto& run : runs->runs) {
    const auto found = FFR_TRY(FindIn(*run, hash, key, bytes));
    if (found && (!lowest || *found < *lowest)) lowest = found;
  }
  return lowest;
}

Result<std::optional<std::uint64_t>> KeyIndex::FindIn(const Run& run, std::uint64_t hash,
                                                      std::span<const std::byte> key,
                                                      const RangeReader& bytes) const {
  const std::uint64_t page_count = run.run().page_count();
  for (std::uint64_t number = FFR_TRY(run.FirstPageNotBelow(hash, bytes)); number < page_count;
       ++number) {
    const std::byte* page = FFR_TRY(run.Page(number, bytes));
    const std::uint64_t count = run.run().entries_in_page(number);
    for (std::uint64_t slot = FirstNotBelow(page, count, hash); slot < count; ++slot) {
      const KeyEntry entry = LoadKeyEntry(Bytes(page), slot);
      if (entry.hash != hash) return std::optional<std::uint64_t>();
      if (FFR_TRY(Matches(entry, key, bytes)))
        return std::optional<std::uint64_t>(entry.record_index);
    }
  }
  return std::optional<std::uint64_t>();
}

Result<RecordReader::Keys> KeyIndex::ReadAll() const {
  const Runs* runs = FFR_TRY(Load(source_));
  // A forged directory may list one page many times.
  std::uint64_t entry_count = 0;
  for (const auto& run : runs->runs) entry_count += run->run().entry_count;
  if (entry_count > layout_.footer.record_count)
    return Error{ErrorCode::kCorruption, "there are more keys than records"};
  std::vector<KeyEntry> entries;
  for (const auto& run : runs->runs) {
    for (std::uint64_t number = 0; number < run->run().page_count(); ++number) {
      const std::byte* page = FFR_TRY(run->Page(number, source_));
      for (std::uint64_t slot = 0; slot < run->run().entries_in_page(number); ++slot) {
        entries.push_back(LoadKeyEntry(Bytes(page), slot));
        FFR_TRY(CheckPlace(entries.back()));
      }
    }
  }
  // Records and their keys are written in the same order, so this is nearly that of the file.
  std::ranges::sort(entries, {}, [](const KeyEntry& entry) { return entry.record_index; });
  RecordReader::Keys keys;
  RangeReader::IndexBytes window;
  std::uint64_t window_begin = 0;
  for (const KeyEntry& entry : entries) {
    if (!keys.indices.empty() && keys.indices.back() == entry.record_index)
      return Corrupt(entry, "the record has another one");
    if (entry.offset_bytes < window_begin ||
        entry.offset_bytes + entry.size_bytes > window_begin + window.bytes.size()) {
      window_begin = entry.offset_bytes;
      const std::uint64_t size = std::min<std::uint64_t>(
          V2KeyBlockHeader::kContentsSizeBytesMax, layout_.footer_offset_bytes - window_begin);
      window = FFR_TRY(source_.MapIndex(file_, window_begin, size));
    }
    // Each key has its own bytes; only forged entries share them.
    if (keys.bytes.size() + entry.size_bytes > layout_.footer_offset_bytes)
      return Corrupt(entry, "the keys are together larger than the file");
    auto key = window.bytes.subspan(entry.offset_bytes - window_begin, entry.size_bytes);
    RangeReader::IndexBytes other;
    if (hash_(layout_.header.file_id, key) != entry.hash)
      key = (other = FFR_TRY(FetchKey(entry, source_))).bytes;
    keys.indices.push_back(entry.record_index);
    keys.bytes.insert(keys.bytes.end(), key.begin(), key.end());
    keys.ends.push_back(keys.bytes.size());
  }
  return keys;
}

Result<void> KeyIndex::CheckPlace(const KeyEntry& entry) const {
  if (entry.record_index >= layout_.footer.record_count || entry.size_bytes == 0 ||
      entry.offset_bytes > layout_.footer_offset_bytes ||
      entry.size_bytes > layout_.footer_offset_bytes - entry.offset_bytes)
    return Corrupt(entry, "it, or the record, does not lie in the file");
  return {};
}

Result<RangeReader::IndexBytes> KeyIndex::FetchKey(const KeyEntry& entry,
                                                   const RangeReader& bytes) const {
  const auto check = [&](std::span<const std::byte> key) -> Result<void> {
    if (hash_(layout_.header.file_id, key) == entry.hash) return {};
    return Corrupt(entry, "its bytes are damaged");
  };
  const V2Source source{bytes, file_, layout_.header.file_id};
  return source.Fetch(entry.offset_bytes, entry.size_bytes, check);
}

Result<bool> KeyIndex::Matches(const KeyEntry& entry, std::span<const std::byte> key,
                               const RangeReader& bytes) const {
  FFR_TRY(CheckPlace(entry));
  if (entry.size_bytes != key.size()) return false;
  const auto stored = FFR_TRY(FetchKey(entry, bytes));
  return std::equal(key.begin(), key.end(), stored.bytes.begin(), stored.bytes.end());
}

}  // namespace ffrecord
