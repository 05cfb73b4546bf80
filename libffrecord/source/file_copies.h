#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// An interface of a RangeReader whose files have several copies: bytes that have failed a check of
// its caller's may be whole in another one. Thread-safe, as the reader.
class FileCopies {
 public:
  using IsRight = std::function<bool(std::span<const std::byte>)>;

  // Null: the files of `reader` have one copy.
  static const FileCopies* Of(const RangeReader& reader) {
    return dynamic_cast<const FileCopies*>(&reader.origin());
  }

  // Reads a range, which lies inside the file, from one copy after the other, and returns the first
  // that `is_right` holds for. Fails with kCorruption if no copy is right, with kUnavailable if one
  // that may be cannot be read now, with kDeadlineExceeded once `patience` is over, and with kIo
  // (ENOMEM).
  virtual Result<PooledBuffer> ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                              std::uint64_t size_bytes, const IsRight& is_right,
                                              Patience& patience) const = 0;

  // The same for the files of any reader. Fails with kCorruption, too, if they have one copy.
  static Result<PooledBuffer> ReadRight(const RangeReader& reader, std::uint32_t file,
                                        std::uint64_t offset_bytes, std::uint64_t size_bytes,
                                        const IsRight& is_right) {
    if (const FileCopies* const copies = Of(reader))
      return copies->ReadFromCopies(file, offset_bytes, size_bytes, is_right, Patience::OfThread());
    return Error{ErrorCode::kCorruption, "there is one copy of the file"};
  }

  // For people: the copies of the file that were found to be damaged, one line each.
  virtual std::vector<std::string> DamagedCopies(std::uint32_t file) const = 0;

 protected:
  ~FileCopies() = default;
};

}  // namespace ffrecord
