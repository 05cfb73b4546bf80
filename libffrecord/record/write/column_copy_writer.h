#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/schema.h>

#include "libffrecord/format/v2_column_copy.h"
#include "libffrecord/record/index/column_copies.h"
#include "libffrecord/record/write/v2_stream.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

struct V2Layout;

// Writes copies of some columns: a chunk of each column behind each index segment and, before each
// commit, the sections that list the chunks.
//
// Memory: the values of one segment (43,520 records), at most 512 bytes of each record, and 16
// bytes for each chunk. Thread-bound.
class ColumnCopyWriter {
 public:
  static constexpr std::uint64_t kCopiedBytesMax = 512;  // Limit for one record, over all columns.

  // Fails with kInvalidArgument if a name is no column or stands twice, if a column is variable or
  // wider than kCopiedColumnBytesMax, or if all together exceed kCopiedBytesMax.
  static Result<ColumnCopyWriter> Make(const Schema& schema, std::span<const std::string> names);
  // Continues the column copies of a file. Fails with kCorruption if they are damaged, or as the
  // RangeReader.
  static Result<ColumnCopyWriter> Resume(const RangeReader& source, const V2Layout& layout,
                                         const Schema& schema);

  // Call it for each record that was added to the stream. Requires that the record fits the schema.
  void Add(std::span<const std::byte> record);
  // Call it after V2Stream::EndSegment().
  Result<void> EndSegment(V2Stream& stream);
  // Call it before each commit, after EndSegment().
  Result<void> Finish(V2Stream& stream) const;

  // As those of V2Stream. Requires that Finish() is not called between.
  void SetMark();
  void ReturnToMark();
  void ForgetMark() noexcept;

 private:
  struct Mark {
    std::size_t chunk_count = 0;
    ColumnChunk last_chunk;  // May be replaced later.
    std::size_t values_size_bytes = 0;
    std::optional<std::vector<std::byte>> values = {};  // Once their segment has ended.
  };
  struct Copied {
    ColumnPlace place;
    ColumnCopy copy;
    std::vector<std::byte> values = {};  // Values in the last segment, if it is not full.
    std::optional<Mark> mark = {};
  };
  std::vector<Copied> columns_;
};

}  // namespace ffrecord
