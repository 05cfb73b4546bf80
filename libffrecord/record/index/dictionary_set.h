#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/record/index/index_part.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The dictionaries of one open file, fetched and prepared when the first record may need one.
//
// A damaged dictionary is left out: records that use it cannot be read, other records can. Memory:
// a copy of each dictionary. Borrows the RangeReader and the footer. Thread-safe; holds no lock
// that a fork could leave locked.
class DictionarySet {
 public:
  DictionarySet(const RangeReader& source, std::uint32_t file, const FileId& id,
                const V2Footer& footer) noexcept
      : source_(source),
        file_(file),
        id_(id),
        footer_(footer),
        is_empty_(footer.Find(V2Section::kDictionary) == nullptr) {}
  DictionarySet(const DictionarySet&) = delete;
  DictionarySet& operator=(const DictionarySet&) = delete;
  ~DictionarySet() { delete loaded_.load(); }

  // The part that Load() would read; none if it has been done, if there is no dictionary, or if one
  // is damaged so that Load() leaves it out.
  std::optional<IndexPart> Lacking() const;
  // Takes the bytes of that part, which were read elsewhere, if all of them are right. Otherwise
  // Load() reads them again, from other copies too.
  void Take(std::span<const std::span<const std::byte>> pieces) const;

  // Fetches the dictionaries, once. Returns the error of the RangeReader if it fails; a later call
  // tries again.
  ErrorCode Load() const;

  // The dictionaries that Load() has fetched; empty before.
  std::span<const ZstdDictionary> loaded() const noexcept {
    const auto* loaded = loaded_.load(std::memory_order_acquire);
    return loaded == nullptr ? std::span<const ZstdDictionary>() : std::span(*loaded);
  }

 private:
  void Keep(std::unique_ptr<std::vector<ZstdDictionary>> fresh) const;

  const RangeReader& source_;
  const std::uint32_t file_;
  const FileId& id_;
  const V2Footer& footer_;
  const bool is_empty_;
  mutable std::atomic<const std::vector<ZstdDictionary>*> loaded_{nullptr};  // Owned.
};

// Reads and checks one dictionary section. Fails with kCorruption, or as the RangeReader.
Result<std::vector<std::byte>> FetchDictionary(const RangeReader& source, std::uint32_t file,
                                               const FileId& id, const V2Section& section);

}  // namespace ffrecord
