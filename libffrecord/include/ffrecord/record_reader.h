#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/batch_queue.h>
#include <ffrecord/epoch_plan.h>
#include <ffrecord/export.h>
#include <ffrecord/io_policy.h>
#include <ffrecord/metadata.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>
#include <ffrecord/store_report.h>

namespace ffrecord {

// Reads batches of records of an ordered list of FFRecord files, version 1 or 2, by index.
//
// The list is one sequence: indices run from 0 to record_count() - 1 through the files in list
// order. Sizes are in bytes. The files are sealed: if one is truncated or changed while a reader
// is open, reads of the affected records fail, and behaviour stays defined.
//
// The same class reads local files (Open) and files that a daemon serves
// (ffrecord/client/dataset.h); results are the same, byte for byte.
//
// Thread-safe: many threads may call const functions of one reader at the same time. After fork,
// parent and child may both go on using it.
class FFR_EXPORT RecordReader {
 public:
  struct Options {
    bool verify_checksums = true;  // Each record's own checksum, on every read.
    bool salvage = false;          // Open a damaged v1 file: bad records get a status each.
    IoPolicy io = IoPolicy::kAuto;
    std::uint32_t queue_depth = 64;  // Reads in flight for one ReadBatch; 1 to 4096.
    // Worker threads that may decompress a large batch with the calling thread. They come from
    // one pool per process, which has at most one thread fewer than the processors that the process
    // may use. 0: the calling thread decompresses alone.
    std::uint32_t worker_count_max = 15;
  };

  // Facts about one file that need no read of its records.
  struct FileInfo {
    std::string name;              // The path, or the name under which the daemon serves it.
    std::uint32_t format_version;  // 1 or 2.
    std::uint64_t size_bytes;
    std::uint64_t record_count;
    std::uint64_t first_index;              // Index of this file's first record in the whole list.
    std::array<std::byte, 16> fingerprint;  // Hash of content and order; format.md, "Fingerprint".
    std::vector<std::string> warnings;      // Such as: an old v1 file without metadata checksum.
    bool in_place = false;                  // A file of another kind, with an index (IndexWriter).
  };

  // Time of each stage of all reads so far, summed over the calling threads.
  struct StageTimes {
    std::chrono::nanoseconds submit{0};  // Finding records, planning reads, handing them over.
    std::chrono::nanoseconds device{0};  // Waiting for devices, daemons and stores.
    std::chrono::nanoseconds verify{0};  // Checksums; of data in memory, copying it too.
    // The same, and decompressing, of batches with compressed records.
    std::chrono::nanoseconds decompress{0};
  };

  // How the reader reads, and how much it has read so far; for people.
  struct IoReport {
    IoPolicy policy;                    // For data not in the page cache: kBuffered or kDirect.
    std::uint64_t batches_from_memory;  // Copied whole from the page cache, without a read.
    std::uint64_t batches_read;
    StageTimes times;
    std::optional<StoreReport> store;  // For objects.
  };

  // Opens `paths` and maps their indexes; no record is read.
  //
  // Fails with kNotFound if a file is missing, with kCorruption if a header or an index fails its
  // check, is truncated, or points outside its file, or if a file is not an FFRecord file at all,
  // with kInvalidArgument if `paths` is empty, an option is out of range or the files' schemas
  // differ, and with kIo if the kernel refuses. The message names the file.
  static Result<RecordReader> Open(std::span<const std::filesystem::path> paths,
                                   const Options& options);

  RecordReader(RecordReader&&) noexcept;
  RecordReader& operator=(RecordReader&&) noexcept;
  ~RecordReader();

  std::uint64_t record_count() const noexcept;
  const Schema& schema() const noexcept;
  std::size_t file_count() const noexcept;
  FileInfo file(std::size_t file_index) const;
  // Called on the calling thread about ten times per second while a call waits. Once it returns
  // true, the call fails with kDeadlineExceeded as soon as nothing writes to its memory any more.
  using GiveUp = std::function<bool()>;
  // Reads and checks the user metadata of that file; empty if there is none. Fails with kOutOfRange
  // if there is no such file, with kCorruption, kIo, or as ReadBatch.
  Result<Metadata> metadata(std::size_t file_index, const GiveUp& give_up = {}) const;
  // Fingerprint of the whole list. It changes if any record, or the order of records, changes.
  std::array<std::byte, 16> fingerprint() const noexcept;

  // Reads the records `indices`, in any order; indices may repeat. One submission; the calling
  // thread waits. A record that cannot be read affects only its own status: kCorruption, kIo, or,
  // from a daemon, kUnavailable or kDeadlineExceeded.
  //
  // Fails as a whole with kOutOfRange, before any I/O, if an index is out of range; with kIo
  // (ENOMEM) if there is no memory for the batch; and if no read could be tried at all.
  //
  Result<Batch> ReadBatch(std::span<const std::uint64_t> indices, const GiveUp& give_up = {}) const;

  // Opens a queue that reads several batches at a time; it borrows the reader. Fails with
  // kInvalidArgument for options that are out of range, and with kIo if there are no descriptors or
  // memory for it.
  Result<BatchQueue> OpenQueue(const BatchQueue::Options& options = {}) const;

  // Looks up the size in bytes of each record in `indices`, without reading a record. A damaged
  // index entry gives 0. Requires sizes_bytes.size() == indices.size().
  //
  // Fails as a whole with kOutOfRange if an index is out of range, and as ReadBatch, or with the
  // status that a record would have, if an entry cannot be read now.
  Result<void> ReadSizes(std::span<const std::uint64_t> indices,
                         std::span<std::int64_t> sizes_bytes, const GiveUp& give_up = {}) const;

  // Sends the epoch plan to the daemon that serves the files, which then reads ahead until the
  // returned object is destroyed. The plan is only a prefetch hint: reads give the same bytes with
  // and without it, and the caller need not read the planned records. Returns null for local files,
  // for records in their own order, and if the daemon takes no hints.
  //
  // Fails with kInvalidArgument if the plan does not match an epoch of these records, with
  // kConflict or kNotFound if the dataset was published again or removed since it was opened, and
  // as other daemon calls.
  Result<std::unique_ptr<PrefetchHint>> HintEpoch(const EpochPlan& plan) const;

  IoReport io_report() const;

  // Reads the values of the fixed-width column number `column` of the records [first, first +
  // count), back to back, into `destination`, which must have exactly their size. If the file has a
  // copy of the column (RecordWriter::Options::copied_columns), reads only the copy; otherwise, and
  // if the copy is damaged, reads the records.
  //
  // Fails with kInvalidArgument if there is no such column or it is variable, with kOutOfRange, and
  // with a record's status if it cannot be read. `give_up` as for ReadBatch.
  Result<void> ReadColumn(std::size_t column, std::uint64_t first, std::uint64_t count,
                          std::span<std::byte> destination, const GiveUp& give_up = {}) const;

  // Returns the index of the first record in the list with this `key`, or nullopt. Reads a few
  // pages of each file that has keys, and keeps them. Fails with kInvalidArgument if no file of the
  // list was written with keys, with kCorruption if a page that the look-up needs is damaged, with
  // kIo, or as ReadBatch.
  Result<std::optional<std::uint64_t>> Find(std::span<const std::byte> key) const;
  // The same for each of many keys.
  Result<std::vector<std::optional<std::uint64_t>>> FindAll(
      std::span<const std::span<const std::byte>> keys, const GiveUp& give_up = {}) const;

  // The keys of one file's records, ascending by index. Records without a key are not listed.
  struct Keys {
    std::vector<std::uint64_t> indices;  // In the file.
    std::vector<std::uint64_t> ends;     // End of each key in `bytes`; the next key starts there.
    std::vector<std::byte> bytes;
  };
  // Reads, checks and returns all keys of the file; used to copy a file. Fails with kOutOfRange,
  // with kCorruption if a key or the key index is damaged, or with kIo.
  Result<Keys> ReadKeys(std::size_t file_index, const GiveUp& give_up = {}) const;

  // How the writer of a file was given the keys of its records.
  struct KeyOrigin {
    bool has_keys = false;  // Records may have keys, also if none has one.
    // The column whose values are the keys; empty if they were given apart. nullopt without keys,
    // and in a file of a library that did not store it.
    std::optional<std::string> column = {};
  };
  // Reads, checks and returns it; used to copy a file. Fails with kOutOfRange, with kCorruption if
  // the facts of the file are damaged, or as ReadBatch.
  Result<KeyOrigin> ReadKeyOrigin(std::size_t file_index, const GiveUp& give_up = {}) const;

  // Explains the status of a record, for people: the file, the index within it, and the cause.
  std::string Describe(std::uint64_t index, ErrorCode status) const;

  // For the library's own layers: a reader over files of any RangeReader.
  struct Impl;
  explicit RecordReader(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
