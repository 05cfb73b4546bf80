#include "libffrecord/record/check/key_check.h"

#include <optional>

namespace ffrecord {

Result<void> CheckKeyRun(FileWindow& window, const FileId& id, const KeyRun& run, KeyTally* tally) {
  std::optional<KeyEntry> last;
  for (std::uint64_t number = 0; number < run.page_count(); ++number) {
    const std::uint64_t offset = run.offset_bytes + number * kKeyPageSizeBytes;
    const std::uint64_t count = run.entries_in_page(number);
    const auto page = FFR_TRY(window.View(offset, kKeyPageSizeBytes));
    FFR_TRY(CheckKeyPage(page, id, offset, count));
    for (std::uint64_t slot = 0; slot < count; ++slot) {
      const KeyEntry entry = LoadKeyEntry(page, slot);
      if (last && !(*last < entry))
        return Error{ErrorCode::kCorruption,
                     "key page at " + std::to_string(offset) + ": its entries do not ascend"};
      last = entry;
      if (tally != nullptr) tally->AddFromRun(entry);
    }
  }
  return {};
}

Result<void> CheckKeyBlock(FileWindow& window, const FileId& id, std::uint64_t offset_bytes,
                           KeyTally& tally, std::uint64_t& size_bytes) {
  size_bytes = 0;
  const auto encoded = FFR_TRY(window.View(offset_bytes, V2KeyBlockHeader::kEncodedSizeBytes));
  const auto header = DecodeV2KeyBlockHeader(encoded, id, offset_bytes);
  if (!header) return {};
  size_bytes = V2KeyBlockHeader::kEncodedSizeBytes + header.value().contents_size_bytes;
  const std::uint64_t contents_offset = offset_bytes + V2KeyBlockHeader::kEncodedSizeBytes;
  const auto contents = FFR_TRY(window.View(contents_offset, header.value().contents_size_bytes));
  for (const BlockKey& key : FFR_TRY(DecodeKeyBlock(header.value(), contents, id, offset_bytes))) {
    KeyEntry entry;
    entry.hash = KeyHash(id, key.key);
    entry.record_index = key.record_index & ((std::uint64_t{1} << 48) - 1);
    entry.size_bytes = key.key.size() & kKeySizeBytesMax;
    entry.offset_bytes =
        contents_offset + static_cast<std::uint64_t>(key.key.data() - contents.data());
    tally.AddFromBlock(entry);
  }
  return {};
}

}  // namespace ffrecord
