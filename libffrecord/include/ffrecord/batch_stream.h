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

// Reads the steps of an epoch, and of the epochs after it, ahead of a consumer: its threads compute
// the order, read, verify and decompress records, and gather and decode columns. Next() returns
// the batches in the order of their steps, each complete.
//
// Any thread may call it, one at a time: calls must not overlap. The reader outlives it. In a
// forked child, the parent's stream can only be destroyed; the child must open its own.
class FFR_EXPORT BatchStream {
 public:
  struct Options {
    std::uint32_t threads = 2;  // 1 to 64.
    // Batches that are being read or wait for the consumer, at first; 1 to 256. The stream uses
    // more while the consumer sometimes waits although all were ready before, and if batches are
    // small.
    std::uint32_t batches_ahead = 4;
    // Limit of the memory of these batches together, if all are as large as the last one; one batch
    // always fits. The other batches begin once the size of the first one is known.
    std::uint64_t memory_limit_bytes = std::uint64_t{1} << 30;
    // Columns of the schema, of fixed width and by number, that are gathered: Item::columns.
    std::vector<std::uint32_t> gathered_columns = {};
    // Columns that are decoded: Item::columns has them behind those that are gathered.
    struct Decoded {
      std::optional<std::uint32_t> column;  // By number; none: whole records.
      std::shared_ptr<const ColumnDecoder> decoder;
    };
    std::vector<Decoded> decoded_columns = {};
    // True: Item::batch always has the records. False: it is empty if all columns were made and lie
    // outside of it, so that a waiting batch uses only the memory of its columns.
    bool keeps_records = true;
  };

  // Totals of the threads' work, and of the time for it; the time of the reads is in
  // RecordReader::io_report().
  struct Stats {
    std::uint64_t batches = 0;
    std::uint64_t records = 0;
    std::uint64_t size_bytes = 0;  // Size of the batches' blocks.
    // Memory of batches that have begun and are not returned, except what a decoder is filling.
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
    std::vector<std::uint64_t> indices;  // Indices of the records.
    Result<Batch> batch = Error{};       // As RecordReader::ReadBatch returns it.
    // Empty unless all statuses are kOk, all records fit the schema and all values were decoded.
    // First the values of each of Options::gathered_columns, back to back, aligned to 8 bytes or
    // more, bools as 0 or 1; then the output of the decoder of each of Options::decoded_columns.
    std::vector<ColumnValues> columns;
  };

  // Begins to read. The first epoch consists of the steps of `plan`; those that follow it have the
  // positions [0, `epoch_end`), in steps of the same size. `epoch_end`
  // may exceed the record count by at most a step, which then continues at the epoch's start.
  //
  // Fails with kInvalidArgument if an option is out of range, or if these are not steps of the
  // reader's records, and with kIo if the system has no threads.
  static Result<BatchStream> Open(const RecordReader& reader, const EpochPlan& plan,
                                  std::uint64_t epoch_end, const Options& options);

  BatchStream(BatchStream&&) noexcept;
  BatchStream& operator=(BatchStream&&) noexcept;
  // Cancels incomplete batches, and waits until nothing writes to their memory.
  ~BatchStream();

  // Returns the batch of the next step; waits for at most `timeout`, without end for a year or
  // more, then returns nullopt. Fails with kInvalidArgument in a forked child.
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
