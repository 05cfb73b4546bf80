#include "libffrecord/record/check/key_recovery.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::size_t kPageCountOffset = 8;

// The last of the ascending ranges that begins at or before `value`.
template <class Ranges>
auto LastBeginningAt(const Ranges& ranges, std::uint64_t value) {
  const auto above =
      std::upper_bound(ranges.begin(), ranges.end(), value,
                       [](auto wanted, const auto& range) { return wanted < range.begin; });
  return above == ranges.begin() ? ranges.end() : above - 1;
}

}  // namespace

void KeyRecovery::NoteKept(std::uint64_t old_index, std::uint64_t new_index) {
  if (kept_.empty() || kept_.back().end != old_index) {
    kept_.push_back({old_index, old_index});
    kept_as_.push_back(new_index);
  }
  ++kept_.back().end;
}

std::optional<std::uint64_t> KeyRecovery::NewIndexOf(std::uint64_t old_index) const {
  const auto range = LastBeginningAt(kept_, old_index);
  if (range == kept_.end() || old_index >= range->end) return std::nullopt;
  return kept_as_[static_cast<std::size_t>(range - kept_.begin())] + (old_index - range->begin);
}

bool KeyRecovery::LiesInWholeBlock(const KeyEntry& entry) const {
  const auto block = LastBeginningAt(blocks_, entry.offset_bytes);
  return block != blocks_.end() && entry.offset_bytes < block->end;
}

Result<std::optional<std::uint64_t>> KeyRecovery::TakeBlock(std::uint64_t header_offset_bytes,
                                                            RecordWriter::Impl& writer) {
  const std::optional<std::uint64_t> none;
  const auto encoded = window_.View(header_offset_bytes, V2KeyBlockHeader::kEncodedSizeBytes);
  if (!encoded) return none;
  const auto header = DecodeV2KeyBlockHeader(encoded.value(), id_, header_offset_bytes);
  if (!header) return none;
  const std::uint64_t begin = header_offset_bytes + V2KeyBlockHeader::kEncodedSizeBytes;
  const auto contents = window_.View(begin, header.value().contents_size_bytes);
  if (!contents) return none;
  const auto keys = DecodeKeyBlock(header.value(), contents.value(), id_, header_offset_bytes);
  if (!keys) return none;
  for (const BlockKey& key : keys.value()) {
    ++found_count_;
    const auto index = NewIndexOf(key.record_index);
    // Only a forger makes blocks that do not ascend.
    if (!index || (last_index_ && *index <= *last_index_)) continue;
    FFR_TRY(writer.WriteKey(*index, key.key));
    last_index_ = index;
    ++written_count_;
  }
  const std::uint64_t end = begin + contents.value().size();
  blocks_.push_back({begin, end});
  return std::optional(end);
}

void KeyRecovery::CollectFromPage(std::span<const std::byte> page, std::uint64_t offset_bytes,
                                  std::vector<KeyEntry>& entries) const {
  const auto count = LoadLittleEndian<std::uint32_t>(page, kPageCountOffset);
  if (count == 0 || count > kKeyEntriesPerPage || !CheckKeyPage(page, id_, offset_bytes, count))
    return;
  for (std::uint64_t slot = 0; slot < count; ++slot) {
    const KeyEntry entry = LoadKeyEntry(page, slot);
    if (!LiesInWholeBlock(entry)) entries.push_back(entry);
  }
}

Result<void> KeyRecovery::TakeFromRuns(RecordWriter::Impl& writer) {
  std::vector<KeyEntry> entries;
  for (std::uint64_t at = kKeyPageSizeBytes;
       at < file_size_bytes_ && file_size_bytes_ - at >= kKeyPageSizeBytes; at += kKeyPageSizeBytes)
    if (const auto page = window_.View(at, kKeyPageSizeBytes))
      CollectFromPage(page.value(), at, entries);
  std::sort(entries.begin(), entries.end(), [](const KeyEntry& a, const KeyEntry& b) {
    return std::tuple(std::uint64_t{a.record_index}, a.offset_bytes) <
           std::tuple(std::uint64_t{b.record_index}, b.offset_bytes);
  });
  // Merged runs list the same keys as their sources.
  const auto of_one_record = [](const KeyEntry& a, const KeyEntry& b) {
    return a.record_index == b.record_index;
  };
  entries.erase(std::unique(entries.begin(), entries.end(), of_one_record), entries.end());
  found_count_ += entries.size();
  for (const KeyEntry& entry : entries)
    if (!FFR_TRY(TakeEntry(entry, writer))) ++damaged_count_;
  return {};
}

Result<bool> KeyRecovery::TakeEntry(const KeyEntry& entry, RecordWriter::Impl& writer) {
  const auto index = NewIndexOf(entry.record_index);
  if (!index) return true;  // The record is lost, not only its key.
  const auto key = window_.View(entry.offset_bytes, entry.size_bytes);
  if (!key || key.value().empty() || KeyHash(id_, key.value()) != entry.hash) return false;
  FFR_TRY(writer.WriteKey(*index, key.value()));
  ++written_count_;
  return true;
}

}  // namespace ffrecord
