#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/epoch_plan.h>
#include <ffrecord/export.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Reads the steps of an epoch, and of the epochs after it, ahead of a consumer: threads of its own
// compute the order, read, verify and decompress, and gather columns into tensors. Next() returns
// the batches in the order of their steps, each complete.
//
// Any thread may call it, one at a time: calls must not overlap. The reader outlives it. In a
// forked child a stream of the parent's can only be destroyed; the child makes its own.
class FFR_EXPORT BatchStream {
 public:
  struct Options {
    std::uint32_t threads = 2;  // 1 to 64.
    // Batches that are read or wait for the consumer, at the beginning, 1 to 256. There are more
    // while the consumer sometimes waits although all were ready before, and where batches are
    // small.
    std::uint32_t batches_ahead = 4;
    // Of the memory that these batches may take together; one always fits.
    std::uint64_t memory_limit_bytes = std::uint64_t{1} << 30;
    // Columns of the schema, of fixed width and by number, that are gathered: Item::columns.
    std::vector<std::uint32_t> gathered_columns = {};
  };

  // What the threads have read so far, and where their time went, in sum.
  struct Stats {
    std::uint64_t batches = 0;
    std::uint64_t records = 0;
    std::uint64_t size_bytes = 0;         // Of the batches' blocks.
    std::chrono::nanoseconds plan{0};     // The order, and what is to be read.
    std::chrono::nanoseconds read{0};     // Inside reads: reading, checking, waiting.
    std::chrono::nanoseconds cpu{0};      // Of `read`, what the threads computed.
    std::chrono::nanoseconds collate{0};  // Gathering columns.
    std::chrono::nanoseconds queue{0};    // Batches that were ready waited for the consumer.
    std::chrono::nanoseconds idle{0};     // Threads waited for the consumer to take batches.
  };

  // The batch of one step.
  struct Item {
    std::uint64_t epoch = 0;
    std::uint64_t position = 0;          // In the epoch, of the first record.
    std::vector<std::uint64_t> indices;  // Of the records.
    Result<Batch> batch = Error{};       // As RecordReader::ReadBatch returns it.
    // If all statuses are kOk and all records fit the schema: the values of each of
    // Options::gathered_columns, back to back, aligned to 8 bytes or more; bools as 0 or 1. Else no
    // spans.
    std::vector<std::span<const std::byte>> columns;
    Batch::Owner columns_owner;  // Keeps them alive; null where they lie in the batch.
  };

  // Begins to read. The first epoch consists of the steps of `plan`; those that follow it have the
  // positions [0, `epoch_end`), in steps of the same size. `epoch_end` may pass the record count by
  // at most a step, which then goes on at the epoch's start.
  //
  // Fails with kInvalidArgument if an option is out of range, or if these are not steps of the
  // reader's records, and with kIo if the system has no threads.
  static Result<BatchStream> Open(const RecordReader& reader, const EpochPlan& plan,
                                  std::uint64_t epoch_end, const Options& options);

  BatchStream(BatchStream&&) noexcept;
  BatchStream& operator=(BatchStream&&) noexcept;
  // Gives up what is not complete, and waits until nothing writes to its memory.
  ~BatchStream();

  // The batch of the next step; waits for it, at most `timeout`. Nothing: the time is over. Fails
  // with kInvalidArgument in a forked child.
  Result<std::optional<Item>> Next(std::chrono::milliseconds timeout);

  // Batches that are read ahead at present, and those that were begun and not returned.
  std::uint32_t depth() const;
  std::uint32_t pending() const;
  Stats stats() const;

 private:
  struct Impl;
  explicit BatchStream(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
