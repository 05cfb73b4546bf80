#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/source/coalesce.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The files of another reader, for work that looks at bytes of many of them: instead of a wait for
// each look, all looks that can be made wait together.
//
// MapIndex() returns bytes that were read; other bytes it notes, and fails with kUnavailable. The
// caller does what it can without those, calls ReadNoted(), which reads all that was noted at once,
// and does the rest again, until nothing is noted any more. Bytes that could not be read fail as
// the other reader's MapIndex would, without another try; only damaged bytes, and those for which
// there was no memory, are read again by the other reader.
//
// Borrows the other reader. Thread-bound.
class GatheredReads final : public RangeReader {
 public:
  explicit GatheredReads(const RangeReader& reader) : reader_(reader) {}

  // How often MapIndex() was asked for bytes that were not read: if it has grown, what was done
  // meanwhile is to be done again.
  std::uint64_t miss_count() const noexcept { return miss_count_; }
  bool has_noted() const noexcept { return !noted_.empty(); }
  // Fails with kDeadlineExceeded once `patience` is over.
  Result<void> ReadNoted(Patience& patience);
  // Forgets all bytes, also those that were only noted; those that were handed out stay.
  void Clear();

  std::size_t file_count() const noexcept override { return reader_.file_count(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return reader_.file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return reader_.file_size_bytes(file);
  }
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    return reader_.alignment_bytes(file);
  }
  const CoalescingOptions& coalescing() const noexcept override { return reader_.coalescing(); }
  FileForm form(std::uint32_t file) const noexcept override { return reader_.form(file); }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return reader_.TakeMemory(size_bytes);
  }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    return reader_.ReadEach(ranges, arrived, patience);
  }
  const RangeReader& origin() const noexcept override { return reader_.origin(); }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override;

 private:
  using Place = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // File, offset, size.
  struct Piece {
    IndexBytes bytes;
    Result<void> outcome;
  };

  // Noted places that overlap or touch, widened to the file's alignment: read as one.
  struct Block {
    std::uint32_t file = 0;
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
    std::vector<Place> places;
    PooledBuffer owner = {};
    std::span<std::byte> memory = {};
    std::vector<RangeRead> ranges = {};

    std::uint64_t size_bytes() const noexcept { return end_bytes - begin_bytes; }
  };
  std::vector<Block> PlanBlocks() const;
  Result<void> TakeMemory(std::span<Block> blocks) const;
  void End(const Block& block, const Result<void>& read);
  Result<void> OutcomeOf(const Place& place, const Block& block) const;

  const RangeReader& reader_;
  mutable std::uint64_t miss_count_ = 0;
  mutable std::map<Place, std::optional<Piece>> pieces_;  // None: noted.
  mutable std::vector<Place> noted_;
};

}  // namespace ffrecord
