#include "libffrecord/record/index/dictionary_set.h"

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/record/index/v2_commit.h"

namespace ffrecord {

Result<std::vector<std::byte>> FetchDictionary(const RangeReader& source, std::uint32_t file,
                                               const FileId& id, const V2Section& section) {
  FFR_TRY(CheckSectionSize(section));
  std::vector<std::byte> bytes;
  const auto check = [&](std::span<const std::byte> fetched) -> Result<void> {
    // Copied before it is checked: mapped bytes may change.
    bytes.assign(fetched.begin(), fetched.end());
    if (SectionCheck(bytes, id, section.offset_bytes) == section.check) return {};
    return Error{ErrorCode::kCorruption, "dictionary: checksum does not match"};
  };
  const V2Source v2{source, file, id};
  FFR_TRY(v2.Fetch(section.offset_bytes, section.size_bytes, check));
  return bytes;
}

ErrorCode DictionarySet::Load() const {
  if (loaded_.load(std::memory_order_acquire) != nullptr) return ErrorCode::kOk;
  auto fresh = std::make_unique<std::vector<ZstdDictionary>>();
  for (const V2Section& section : footer_.sections) {
    if (section.type != V2Section::kDictionary) continue;
    const auto bytes = FetchDictionary(source_, file_, id_, section);
    if (!bytes && bytes.error().code != ErrorCode::kCorruption) return bytes.error().code;
    if (!bytes) continue;
    auto dictionary = ZstdDictionary::Make(bytes.value());
    if (dictionary) fresh->push_back(std::move(dictionary).value());
  }
  Keep(std::move(fresh));
  return ErrorCode::kOk;
}

// If two threads load at once, the second result is dropped.
void DictionarySet::Keep(std::unique_ptr<std::vector<ZstdDictionary>> fresh) const {
  const std::vector<ZstdDictionary>* none = nullptr;
  if (loaded_.compare_exchange_strong(none, fresh.get(), std::memory_order_acq_rel))
    (void)fresh.release();
}

std::optional<IndexPart> DictionarySet::Lacking() const {
  if (is_empty_ || loaded_.load(std::memory_order_acquire) != nullptr) return {};
  IndexPart part{file_, IndexPart::kDictionaries, {}};
  for (const V2Section& section : footer_.sections) {
    if (section.type != V2Section::kDictionary) continue;
    if (!CheckSectionSize(section)) return {};
    part.pieces.push_back({section.offset_bytes, section.size_bytes});
  }
  return part;
}

void DictionarySet::Take(std::span<const std::span<const std::byte>> pieces) const {
  auto fresh = std::make_unique<std::vector<ZstdDictionary>>();
  auto piece = pieces.begin();
  for (const V2Section& section : footer_.sections) {
    if (section.type != V2Section::kDictionary) continue;
    FFR_ASSERT(piece != pieces.end());
    if (SectionCheck(*piece, id_, section.offset_bytes) != section.check) return;
    auto dictionary = ZstdDictionary::Make(*piece++);
    if (!dictionary) return;
    fresh->push_back(std::move(dictionary).value());
  }
  Keep(std::move(fresh));
}

}  // namespace ffrecord
