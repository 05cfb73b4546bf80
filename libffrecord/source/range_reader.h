#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/io_policy.h>
#include <ffrecord/record_form.h>
#include <ffrecord/result.h>
#include <ffrecord/store_report.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/source/coalesce.h"

namespace ffrecord {

class RangeQueue;     // range_queue.h
class ResidentFiles;  // resident_files.h

// Bytes [offset_bytes, offset_bytes + destination.size()) of one file, to be put at `destination`.
struct RangeRead {
  std::uint32_t file = 0;  // Index into the RangeReader's files.
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> destination;   // Borrowed for the call.
  ErrorCode status = ErrorCode::kOk;  // Set by Read: kOk only if every byte has arrived.
};

// The error of a call whose patience is over.
inline Error GivenUp() {
  return {ErrorCode::kDeadlineExceeded, "read records: the caller gave it up"};
}

// A list of sealed files of which any ranges can be read: local files, or files that a daemon
// serves. Everything above (indexes, planning, checksums, decompression) is the same for both.
// Thread-safe.
class RangeReader {
 public:
  virtual ~RangeReader() = default;

  virtual std::size_t file_count() const noexcept = 0;
  virtual const std::string& file_name(std::uint32_t file) const noexcept = 0;
  virtual std::uint64_t file_size_bytes(std::uint32_t file) const noexcept = 0;

  // Offsets, sizes and addresses given to Read must be multiples of this; 1 where any range
  // may be read at no extra cost. ReadBatch widens what it reads to it. A power of two, at most
  // BufferPool::kAlignment.
  virtual std::uint32_t alignment_bytes(std::uint32_t file) const noexcept = 0;

  // How callers merge and cut ranges.
  virtual const CoalescingOptions& coalescing() const noexcept { return kDiskCoalescing; }

  // Memory that Read can fill at the least cost. Fails with kIo (ENOMEM).
  virtual Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const {
    return BufferPool::Process().Take(size_bytes);
  }

  // Reads all ranges in one submission, in any order, of any of the files. The ranges may overlap,
  // their destinations may not. A range that fails affects only its own status. One that passes the
  // end of the file is kCorruption, also if it is empty; an aligned read of the last block ends at
  // the file's end, and what lies behind it at the destination is undefined.
  //
  // Calls `arrived` on the calling thread once for each range, as soon as its status is set, in any
  // order: the caller checks one range while others are on their way. `arrived` must not read.
  //
  // Fails as a whole only if nothing could be tried, or if memory or the I/O engine fails: then
  // `arrived` is not called for the rest. Once `patience` is over, nothing more is begun, and it
  // fails with kDeadlineExceeded as soon as nothing is on its way to a destination.
  using Arrived = std::function<void(RangeRead&)>;
  virtual Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                Patience& patience) const = 0;
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived) const {
    return ReadEach(ranges, arrived, Patience::OfThread());
  }
  Result<void> Read(std::span<RangeRead> ranges) const {
    return ReadEach(ranges, [](RangeRead&) {});
  }

  // A queue that reads the ranges of many calls at a time (range_queue.h). Borrows the reader.
  // Fails with kIo if there are no descriptors or memory for it.
  //
  // kOneThread: the thread that uses it first is the only one to use and destroy it. For a ring,
  // that saves about a quarter of the processor time of small reads.
  enum class QueueUse : std::uint8_t { kAnyThread, kOneThread };
  virtual Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const;

  // Bytes of an index, addressable without a copy where the reader can map them, else read into
  // memory; they stay valid as long as the returned owner lives, or, without one, the reader. Fails
  // with kCorruption if the range passes the end of the file, and as the status of a range would.
  struct IndexBytes {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
  };
  Result<IndexBytes> MapIndex(std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const;

  // Whether MapIndex reads as Read does, and so may wait for a network or a store. The parts of
  // indexes that a batch needs are then read at once beforehand.
  virtual bool reads_indexes() const noexcept { return true; }

  // The files in memory, if records can be copied from there; null: all are read. The same for as
  // long as the reader lives.
  virtual const ResidentFiles* resident() const noexcept { return nullptr; }

  // For messages: why a range of the file ended with `status`, if the reader knows; else empty.
  virtual std::string Trouble(std::uint32_t /*file*/, ErrorCode /*status*/) const { return {}; }

  // Whether the size of a file has changed since it was opened: a failed check may then not mean
  // damage.
  virtual bool HasChanged() const { return false; }

  // The kind of the file, and of the bytes that its index points to.
  struct FileForm {
    bool is_spliced = false;  // The file is one of another kind and its index: none to be copied.
    RecordForm records = RecordForm::kPlain;  // How the bytes become records.
  };
  virtual FileForm form(std::uint32_t /*file*/) const noexcept { return {}; }

  // The reader whose files these are, if this one only stands before it.
  virtual const RangeReader& origin() const noexcept { return *this; }

  struct Report {
    IoPolicy policy = IoPolicy::kBuffered;  // For ranges that are not in memory; never kAuto.
    std::optional<StoreReport> store;  // The requests to object stores so far, if there are any.
  };
  virtual Report report() const { return {}; }

 protected:
  // Whether a range passes the end of its file, the last block being whole where reads are aligned.
  bool PassesEnd(const RangeRead& range) const noexcept;

  // Why MapIndex has no bytes, after a read of `reader` that ended with `status`.
  static Error NotRead(const RangeReader& reader, std::uint32_t file, std::uint64_t offset_bytes,
                       std::uint64_t size_bytes, ErrorCode status);

  // MapIndex for a non-empty range inside the file. By default reads it into memory. Requires an
  // alignment of 1.
  virtual Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                                       std::uint64_t size_bytes) const;
};

}  // namespace ffrecord
