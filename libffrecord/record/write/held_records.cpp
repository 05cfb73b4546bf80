#include "libffrecord/record/write/held_records.h"

#include <algorithm>

#include "libffrecord/base/assert.h"
#include "libffrecord/format/zstd_codec.h"

namespace ffrecord {
namespace {

constexpr std::size_t kSamplesPerDictionary = 100;
constexpr std::size_t kHeldBytesMax = std::size_t{16} << 20;
// Memory for a record besides its bytes.
constexpr std::size_t kSizesBytes = 2 * sizeof(std::size_t);

}  // namespace

HeldRecords::HeldRecords(std::size_t dictionary_size_bytes)
    : dictionary_size_bytes_(dictionary_size_bytes),
      room_bytes_(std::min(kSamplesPerDictionary * dictionary_size_bytes, kHeldBytesMax)) {}

bool HeldRecords::HasRoomFor(std::span<const std::byte> record,
                             std::span<const std::byte> key) const noexcept {
  return record.size() <= room_bytes_ && key.size() + kSizesBytes <= room_bytes_ - record.size();
}

void HeldRecords::Add(std::span<const std::byte> record, std::span<const std::byte> key) {
  records_.insert(records_.end(), record.begin(), record.end());
  record_sizes_bytes_.push_back(record.size());
  keys_.insert(keys_.end(), key.begin(), key.end());
  key_sizes_bytes_.push_back(key.size());
  room_bytes_ -= record.size() + key.size() + kSizesBytes;
}

void HeldRecords::CutTo(std::uint64_t count) {
  FFR_ASSERT(count <= this->count());
  std::size_t records_bytes = 0;
  std::size_t keys_bytes = 0;
  for (std::uint64_t i = count; i < this->count(); ++i) {
    records_bytes += record_sizes_bytes_[i];
    keys_bytes += key_sizes_bytes_[i];
  }
  room_bytes_ += records_bytes + keys_bytes + (this->count() - count) * kSizesBytes;
  records_.resize(records_.size() - records_bytes);
  keys_.resize(keys_.size() - keys_bytes);
  record_sizes_bytes_.resize(count);
  key_sizes_bytes_.resize(count);
}

std::vector<std::byte> HeldRecords::Train() const {
  return TrainZstdDictionary(records_, record_sizes_bytes_, dictionary_size_bytes_);
}

}  // namespace ffrecord
