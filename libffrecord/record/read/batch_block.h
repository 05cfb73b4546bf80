#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/batch.h>
#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The memory of one Batch while it is filled: the bytes of its records, aligned as direct reads
// want, and behind them its tables, in one block.
struct BatchBlock {
  PooledBuffer memory;
  std::span<std::byte> data;
  // For each record, in request order. Uninitialised.
  std::span<std::int64_t> starts_bytes;
  std::span<std::int64_t> sizes_bytes;
  std::span<ErrorCode> statuses;

  // Takes memory that `source` can read into at the least cost. Fails with kIo (ENOMEM).
  static Result<BatchBlock> Take(const RangeReader& source, std::uint64_t data_size_bytes,
                                 std::size_t record_count);

  // Makes the Batch, which shares the block. Its `data` may be smaller than the memory that was
  // taken.
  Batch Finish(std::shared_ptr<const Schema> schema) const;
};

}  // namespace ffrecord
