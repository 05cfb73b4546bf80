#pragma once

#include <cstdint>

#include <ffrecord/result.h>

#include "libffrecord/base/mix.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/source/file_window.h"

namespace ffrecord {

// Whether the runs of a file say of its keys what the blocks say: sums in which order does not
// count, so that memory is constant in the number of keys.
class KeyTally {
 public:
  void AddFromBlock(const KeyEntry& entry) noexcept { blocks_ += MixOf(entry); }
  void AddFromRun(const KeyEntry& entry) noexcept { runs_ += MixOf(entry); }
  bool agrees() const noexcept { return blocks_ == runs_; }

 private:
  static std::uint64_t MixOf(const KeyEntry& entry) noexcept {
    const std::uint64_t place = entry.offset_bytes << 16 | entry.size_bytes;
    return Mix64(entry.hash + Mix64(entry.record_index + Mix64(place + kGoldenGamma)));
  }
  std::uint64_t blocks_ = 0;
  std::uint64_t runs_ = 0;
};

// Checks the pages of a run and the order of its entries, and adds them to `tally` unless that is
// null. Fails with kCorruption, or as the window.
Result<void> CheckKeyRun(FileWindow& window, const FileId& id, const KeyRun& run, KeyTally* tally);

// Checks the key block at `offset_bytes`, adds its keys to `tally`, and says how large it is; 0 if
// there is none. Fails with kCorruption if there is one and its contents are damaged; its size is
// then in `size_bytes`.
Result<void> CheckKeyBlock(FileWindow& window, const FileId& id, std::uint64_t offset_bytes,
                           KeyTally& tally, std::uint64_t& size_bytes);

}  // namespace ffrecord
