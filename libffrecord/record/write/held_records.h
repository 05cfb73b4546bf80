#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord {

// The first records of a file, with their keys, held back until a dictionary is trained from them.
//
// Memory: the records, 100 times the dictionary's size and at most 16 MiB; more do not improve the
// dictionary. Thread-bound.
class HeldRecords {
 public:
  explicit HeldRecords(std::size_t dictionary_size_bytes);

  // False: write the held records first, then this one.
  bool HasRoomFor(std::span<const std::byte> record, std::span<const std::byte> key) const noexcept;
  void Add(std::span<const std::byte> record, std::span<const std::byte> key);
  std::uint64_t count() const noexcept { return record_sizes_bytes_.size(); }

  // Keeps only the first `count` records. Requires count <= count().
  void CutTo(std::uint64_t count);

  // A dictionary made of the records; empty if they are too few.
  std::vector<std::byte> Train() const;

  // Calls `write(record, key)` for each, in order, until one fails.
  template <class Write>
  Result<void> ForEach(const Write& write) const {
    std::size_t record_begin = 0;
    std::size_t key_begin = 0;
    for (std::size_t i = 0; i < record_sizes_bytes_.size(); ++i) {
      FFR_TRY(write(std::span(records_).subspan(record_begin, record_sizes_bytes_[i]),
                    std::span(keys_).subspan(key_begin, key_sizes_bytes_[i])));
      record_begin += record_sizes_bytes_[i];
      key_begin += key_sizes_bytes_[i];
    }
    return {};
  }

 private:
  std::size_t dictionary_size_bytes_;
  std::size_t room_bytes_;
  std::vector<std::byte> records_;  // Back to back.
  std::vector<std::size_t> record_sizes_bytes_;
  std::vector<std::byte> keys_;
  std::vector<std::size_t> key_sizes_bytes_;
};

}  // namespace ffrecord
