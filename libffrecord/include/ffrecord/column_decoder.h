#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The values of one column of a batch, in one block.
struct ColumnValues {
  std::span<const std::byte> data;
  Batch::Owner owner;  // Keeps `data` alive; null where it lies in the batch.
  // Where values differ in shape: start in `data`, height and width of each. Else empty.
  std::vector<std::int64_t> places = {};
};

// Decodes a column of a batch: what a BatchStream runs on the records that it has read. Immutable,
// hence thread-safe.
class FFR_EXPORT ColumnDecoder {
 public:
  using GiveUp = std::function<bool()>;

  // One value per record, which lies in `block`. Randomness is a function of seed, epoch and
  // position: that of the first value is `position`, and each of the others' is one more. Borrowed.
  struct Input {
    std::span<const std::byte> block;
    std::span<const std::int64_t> starts_bytes;
    std::span<const std::int64_t> sizes_bytes;
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t position = 0;

    std::size_t size() const noexcept { return starts_bytes.size(); }
    std::span<const std::byte> operator[](std::size_t i) const noexcept {
      return block.subspan(static_cast<std::size_t>(starts_bytes[i]),
                           static_cast<std::size_t>(sizes_bytes[i]));
    }
  };

  virtual ~ColumnDecoder() = default;

  // Decodes all values. Fails with kCorruption if one cannot be decoded, with kInvalidArgument if
  // one is of a kind that only others decode, with kIo (ENOMEM), and with kDeadlineExceeded once
  // `give_up`, if given, returns true.
  virtual Result<ColumnValues> Decode(const Input& input, const GiveUp& give_up) const = 0;

 protected:
  ColumnDecoder() = default;
  ColumnDecoder(const ColumnDecoder&) = default;
  ColumnDecoder& operator=(const ColumnDecoder&) = default;
};

}  // namespace ffrecord
