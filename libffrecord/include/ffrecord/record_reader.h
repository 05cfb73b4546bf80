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
#include <ffrecord/epoch_plan.h>
#include <ffrecord/export.h>
#include <ffrecord/metadata.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord {

// How local files are read.
enum class IoPolicy : std::uint8_t {
  kBuffered = 0,  // Through the page cache: best when the data fits in memory.
  kDirect = 1,    // Past it, straight into the batch: best for data that is read once.
                  // Falls back to buffered, file by file, where the file system refuses O_DIRECT.
  kAuto = 2,      // The page cache first. What is not in it is read buffered if all files together
                  // fill at most half of the memory that was free when they were opened, so that
                  // the next epoch finds them there, else direct, for they would only push each
                  // other out.
};

// Reads batches of records of an ordered list of FFRecord files, version 1 or 2, by index.
//
// The list is one sequence: indices run from 0 to record_count() - 1 through the files in list
// order. Sizes are in bytes. The files are sealed: if one is cut or changed while a reader is
// open, reads of the records concerned fail, and behaviour stays defined.
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
    // Above 0, for reads past what is in memory: a thread of the kernel, one for each thread that
    // reads, takes requests without system calls (SQPOLL) and sleeps after so long without any, at
    // most an hour. For machines with processors to spare; ignored where the kernel refuses.
    std::chrono::milliseconds poll_idle{0};
    // Threads that may help the calling one to expand a batch of many compressed bytes: of one pool
    // of the process, which never has more than the processors it may use less one. At 0 the
    // calling thread does all.
    std::uint32_t helper_count_max = 15;
  };

  // What is known of one file without reading its records.
  struct FileInfo {
    std::string name;              // The path, or the name under which the daemon serves it.
    std::uint32_t format_version;  // 1 or 2.
    std::uint64_t size_bytes;
    std::uint64_t record_count;
    std::uint64_t first_index;              // Of this file's first record in the whole list.
    std::array<std::byte, 16> fingerprint;  // Of content and order; format.md, "Fingerprint".
    std::vector<std::string> warnings;      // Such as: an old v1 file without metadata checksum.
  };

  // How a reader reads, and what it has read so far; for people.
  struct IoReport {
    IoPolicy policy;                    // Of what is not in memory: kBuffered or kDirect.
    std::uint64_t batches_from_memory;  // Copied whole from the page cache, without a read.
    std::uint64_t batches_read;
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
  // What the writer of that file kept with it, read and checked now; empty if there is none. Fails
  // with kOutOfRange if there is no such file, with kCorruption, kIo, or as ReadBatch.
  Result<Metadata> metadata(std::size_t file_index) const;
  // Of the whole list: changes if any record, or the order of records, changes.
  std::array<std::byte, 16> fingerprint() const noexcept;

  // Reads the records `indices`, which may repeat and need no order. A record that cannot be read
  // spoils only its own status: kCorruption, kIo, or, from a daemon, kUnavailable or
  // kDeadlineExceeded. One submission; the calling thread waits.
  //
  // Fails as a whole with kOutOfRange, before any I/O, if an index is out of range, with kIo
  // (ENOMEM) if there is no memory for the batch, and if no read could be tried at all.
  //
  // `give_up`, if given, is asked on the calling thread some ten times a second while that takes
  // long; once it says true, the call fails with kDeadlineExceeded as soon as no memory of the
  // batch is written to any more.
  using GiveUp = std::function<bool()>;
  Result<Batch> ReadBatch(std::span<const std::uint64_t> indices, const GiveUp& give_up = {}) const;

  // Tells the size in bytes of each of the records `indices`, as the index has it: no record is
  // read. It is 0 where the entry is damaged. Requires sizes_bytes.size() == indices.size().
  //
  // Fails as a whole with kOutOfRange if an index is out of range.
  Result<void> ReadSizes(std::span<const std::uint64_t> indices,
                         std::span<std::int64_t> sizes_bytes) const;

  // Tells the daemon that serves the files what is going to be read, so that it reads ahead until
  // the Announcement ends. Only a hint: reads give the same bytes with and without it, and what was
  // announced need not be read. Null if there is nobody to tell: for local files, and where the
  // daemon does not want to know.
  //
  // Fails with kInvalidArgument if the plan is not one of an epoch of these records, with kConflict
  // or kNotFound if the dataset was published anew or removed meanwhile, and as a daemon's calls
  // do.
  Result<std::unique_ptr<Announcement>> Announce(const EpochPlan& plan) const;

  IoReport io_report() const noexcept;

  // Reads the values of the fixed-width column number `column` of the records [first, first +
  // count), back to back, into `destination`, which is exactly as large. Where the file has a copy
  // of the column (RecordWriter::Options::copied_columns), nothing else is read; elsewhere, and
  // where the copy is damaged, the records are.
  //
  // Fails with kInvalidArgument if there is no such column or it is variable, with kOutOfRange, and
  // if any of the records cannot be read, with its status. `give_up` as for ReadBatch.
  Result<void> ReadColumn(std::size_t column, std::uint64_t first, std::uint64_t count,
                          std::span<std::byte> destination, const GiveUp& give_up = {}) const;

  // The record that was written with `key`, of several the first in the list; none if there is
  // none. Reads a few pages of each file that has keys, and keeps them. Fails with kInvalidArgument
  // if no file of the list was written with keys, with kCorruption if what it had to look at is
  // damaged, with kIo, or as ReadBatch.
  Result<std::optional<std::uint64_t>> Find(std::span<const std::byte> key) const;
  // The same for each of many keys.
  Result<std::vector<std::optional<std::uint64_t>>> FindAll(
      std::span<const std::span<const std::byte>> keys) const;

  // The keys of the records of one file, ascending by index: those without a key are not listed.
  struct Keys {
    std::vector<std::uint64_t> indices;  // In the file.
    std::vector<std::uint64_t> ends;     // Of each key in `bytes`; it begins where the last ends.
    std::vector<std::byte> bytes;
  };
  // Reads and checks all keys of the file, and holds them: to copy a file. Fails with kOutOfRange,
  // with kCorruption if a key or what lists it is damaged, or with kIo.
  Result<Keys> ReadKeys(std::size_t file_index) const;

  // Why the record has the status it has, for people: file, index in it, what was found.
  std::string Describe(std::uint64_t index, ErrorCode status) const;

  // For the library's own layers: a reader over files of any RangeReader.
  struct Impl;
  explicit RecordReader(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
