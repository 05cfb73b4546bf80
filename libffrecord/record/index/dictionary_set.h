#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/zstd_codec.h"
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
      : source_(source), file_(file), id_(id), footer_(footer) {}
  DictionarySet(const DictionarySet&) = delete;
  DictionarySet& operator=(const DictionarySet&) = delete;
  ~DictionarySet() { delete loaded_.load(); }

  // Fetches the dictionaries, once. Returns the error of the RangeReader if it fails; a later call
  // tries again.
  ErrorCode Load() const;

  // The dictionaries that Load() has fetched; empty before.
  std::span<const ZstdDictionary> loaded() const noexcept {
    const auto* loaded = loaded_.load(std::memory_order_acquire);
    return loaded == nullptr ? std::span<const ZstdDictionary>() : std::span(*loaded);
  }

 private:
  const RangeReader& source_;
  const std::uint32_t file_;
  const FileId& id_;
  const V2Footer& footer_;
  mutable std::atomic<const std::vector<ZstdDictionary>*> loaded_{nullptr};  // Owned.
};

// Reads and checks one dictionary section. Fails with kCorruption, or as the RangeReader.
Result<std::vector<std::byte>> FetchDictionary(const RangeReader& source, std::uint32_t file,
                                               const FileId& id, const V2Section& section);

}  // namespace ffrecord
