#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/column_decoder.h>
#include <ffrecord/epoch_plan.h>
#include <ffrecord/export.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Reads the steps of an epoch, and of the epochs after it, ahead of a consumer: threads of its own
// compute the order, read, verify and decompress, and gather and decode columns. Next() returns
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
    // Of the memory that these batches may take together, if all are as large as the last one; one
    // always fits. The others are begun once the first one's size is known.
    std::uint64_t memory_limit_bytes = std::uint64_t{1} << 30;
    // Columns of the schema, of fixed width and by number, that are gathered: Item::columns.
    std::vector<std::uint32_t> gathered_columns = {};
    // Columns that are decoded: Item::columns has them behind those that are gathered.
    struct Decoded {
      std::optional<std::uint32_t> column;  // By number; none: whole records.
      std::shared_ptr<const ColumnDecoder> decoder;
    };
    std::vector<Decoded> decoded_columns = {};
    // Item::batch has the records even if all columns were made. Else it is empty then, unless
    // columns lie in it: a batch that waits for the consumer takes only the memory of its columns.
    bool keeps_records = true;
  };

  // What the threads have read so far, and where their time went, in sum; that of the reads is in
  // RecordReader::io_report().
  struct Stats {
    std::uint64_t batches = 0;
    std::uint64_t records = 0;
    std::uint64_t size_bytes = 0;  // Of the batches' blocks.
    // Memory of batches that were begun and not returned yet, but for what a decoder is filling.
    std::uint64_t held_bytes = 0;
    std::chrono::nanoseconds order{0};    // Computing which records a step consists of.
    std::chrono::nanoseconds decode{0};   // Decoding columns.
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
    // If all statuses are kOk, all records fit the schema and all values could be decoded: those of
    // each of Options::gathered_columns, back to back, aligned to 8 bytes or more, bools as 0 or 1;
    // and what the decoder made of each of Options::decoded_columns. Else none.
    std::vector<ColumnValues> columns;
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
