#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/record/index/index_part.h"
#include "libffrecord/record/read/record_reader_impl.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord {

// The parts of indexes that the records need and that have to be read first, each once, sorted by
// file and number. Reads nothing. Requires every index to be below the record count.
std::vector<IndexPart> LackingParts(const RecordReader::Impl& reader,
                                    std::span<const std::uint64_t> indices);

// Parts that could not be read, and why: a batch that needs one does not try again.
class IndexFailures {
 public:
  // Ignores kIo and kCorruption: one bad block must not cost all records of a part, and other
  // copies of the file may be whole. A look-up of such a record reads the part again, and waits.
  void Note(const IndexPart& part, ErrorCode status);
  bool empty() const noexcept { return failures_.empty(); }
  // Why the record cannot be located; kOk: it can, or was not tried.
  ErrorCode Of(const FileIndex& index, std::uint64_t index_in_file) const;

 private:
  struct Failure {
    std::uint32_t file;
    std::uint64_t number;
    ErrorCode status;
  };
  std::vector<Failure> failures_;
};

// Reads what the records need of indexes, all at once: a batch of many files waits for a daemon or
// a store once, not for each file. Parts that could not be had in time are the failures. A part for
// which there is no memory, or whose bytes are bad, is read again when a record is looked up. Does
// nothing for a source whose indexes are mapped.
IndexFailures FetchLacking(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                           Patience& patience);

// The bytes of one part, on their way.
class IndexPartRead {
 public:
  explicit IndexPartRead(IndexPart wanted) : part(std::move(wanted)) {}

  // Fails with kIo (ENOMEM).
  Result<void> Prepare(const RangeReader& source);
  // In place until they were read.
  std::span<RangeRead> ranges() noexcept { return ranges_; }
  // Hands the bytes to the index, if all have arrived. `result`: of the reads as a whole.
  ErrorCode Take(const FileIndex& index, const Result<void>& result) const;

  const IndexPart part;

 private:
  PooledBuffer memory_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<RangeRead> ranges_;
};

// Reads of parts of indexes, through the queue that reads the records: each part once at a time,
// for all batches that wait for it.
//
// Memory: a part is kept as long as its reader, as if it had been read when its first record was
// looked up. Thread-bound, as the queue; groups end only in its Poll(). Outlives the queue; in a
// forked child it can only be destroyed.
class IndexFetches {
 public:
  // The fetches that one batch waits for. In place until nothing is pending.
  struct Wait {
    std::size_t pending_count = 0;
    IndexFailures failures;
  };

  explicit IndexFetches(const RecordReader::Impl& reader);
  ~IndexFetches();

  // Has `wait` wait for the parts. Begins to read those that are not on their way.
  void Begin(std::vector<IndexPart> parts, Wait& wait, RangeQueue& queue);
  // `wait` waits no more. Gives up the parts that nobody else waits for.
  void Leave(Wait& wait, RangeQueue& queue);
  // Whether no group of the queue's is one of these.
  bool empty() const noexcept { return fetches_.empty(); }

 private:
  class Fetch;
  void End(Fetch& fetch, const Result<void>& result);

  const RecordReader::Impl& reader_;
  const HomeProcess home_;
  std::vector<std::unique_ptr<Fetch>> fetches_;
};

}  // namespace ffrecord
