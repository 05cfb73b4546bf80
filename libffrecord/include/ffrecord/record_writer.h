#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/metadata.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord {

// Counts and sizes of a finished file.
struct WriteSummary {
  std::uint64_t record_count = 0;
  std::uint64_t raw_size_bytes = 0;  // Size of all records, before compression.
  std::uint64_t file_size_bytes = 0;
  std::array<std::byte, 16> fingerprint{};
  // Size of the dictionary that the records are compressed with. 0 if there is none, for example
  // because there was too little data to train one.
  std::uint64_t dictionary_size_bytes = 0;
};

// Writes one FFRecord version 2 file of any number of records, strictly forward. Create() starts a
// new file; Append() extends an existing one.
//
// A new file becomes visible under `path` only when Close() succeeds; it is then whole and on
// stable storage. If the writer is destroyed, or the process killed, before that, nothing remains.
//
// An existing file is extended in place, by one writer at a time, commit by commit. Each commit is
// on stable storage before it counts. If the writer is destroyed, it cuts the file back to its last
// commit. If it is killed, readers ignore the bytes behind the last commit, and the next Append()
// removes them. Readers that have the file open keep their view of it. Readers that open it later
// see the last commit.
//
// Memory use does not grow with the number of records: at most 64 MiB. Single-use, thread-bound.
class FFR_EXPORT RecordWriter {
 public:
  static constexpr std::uint32_t kTrainedDictionaryBytesMin = 1024;

  struct Options {
    bool compress = false;              // zstd for each record; kept raw when it gains under 5 %.
    int compression_level = 3;          // 1 to 19.
    std::uint32_t alignment_bytes = 1;  // Alignment of each record in the file: 1, 512 or 4096.
    bool replace = false;               // Replace an existing file; else Close gives kConflict.
    // For many small, similar records: a dictionary in zstd's format (`zstd --train`), or the size
    // of one to train, 0 or 1,024 bytes to 16 MiB; 110 KiB is usual. To train, the writer buffers
    // the first records: 100 times that size, at most 16 MiB. Both need `compress`.
    std::vector<std::byte> dictionary = {};
    std::uint32_t train_dictionary_bytes = 0;
    bool keys = false;  // Records may have keys, by which readers find them.
    // The column whose values the caller gives as keys; the file remembers it for later appends.
    // Empty if the keys are not in a column.
    std::string key_column = {};
    // Columns that the writer also stores apart from the records, so that RecordReader::ReadColumn
    // can read them alone: fixed-width, at most 64 bytes per value, 512 bytes together.
    std::vector<std::string> copied_columns = {};
    Metadata metadata = {};  // Stored in the file; RecordReader::metadata returns it.
    // Tells the file from every other; readers notice parts of other files by it. Random if it is
    // not given. Give it only where the same input has to give the same bytes, and derive it from
    // all that decides them: two different files with one id are a danger to both.
    std::optional<std::array<std::byte, 16>> file_id = {};
  };

  // Fails with kInvalidArgument if an option is out of range, with kConflict if `path` exists and
  // `replace` is false, with kIo if the folder cannot be written.
  static Result<RecordWriter> Create(const std::filesystem::path& path, Schema schema,
                                     const Options& options);

  struct AppendOptions {
    std::optional<bool> compress = {};      // Unset: as the file was created. A file that was
                                            // created without compression stays so.
    int compression_level = 3;              // 1 to 19.
    std::optional<Metadata> metadata = {};  // Replaces the file's metadata; unset keeps it.
    // Commits after this many bytes since the last commit: 1 MiB to 64 MiB.
    std::uint64_t commit_interval_bytes = std::uint64_t{64} << 20;
  };

  // Appends after the last record of the file `path`, with its schema and alignment. Only for local
  // files that are not published. Removes what an earlier append left unfinished.
  //
  // Fails with kConflict if another writer appends to the file, with kNotFound, with kDenied if the
  // file is read-only, with kInvalidArgument if it has version 1, needs a newer library or was
  // created without a feature that an option requests, with kCorruption if it is damaged, with kIo.
  static Result<RecordWriter> Append(const std::filesystem::path& path,
                                     const AppendOptions& options);

  RecordWriter(RecordWriter&&) noexcept;
  RecordWriter& operator=(RecordWriter&&) noexcept;
  ~RecordWriter();

  // Adds one encoded record; copies its bytes. Fails with kInvalidArgument if the record does not
  // fit the schema or has 2^40 bytes or more (in an append, more than 512 MiB), with kIo if the
  // disk refuses; after kIo every later call fails with kIo too.
  //
  // RecordReader::Find finds the record by `key`: 1 to 65,535 bytes, or empty for none. Keys need
  // not be unique. Fails with kInvalidArgument if the key is larger, or if the file was created
  // without Options::keys.
  Result<void> Write(std::span<const std::byte> record, std::span<const std::byte> key = {});

  // Adds one record made of `fields`, one per column, in schema order.
  Result<void> WriteFields(std::span<const std::span<const std::byte>> fields,
                           std::span<const std::byte> key = {});

  // A group of writes takes effect as a whole: UndoGroup() takes back all records since
  // BeginGroup(), EndGroup() keeps them. Commit() and Close() fail with kInvalidArgument meanwhile,
  // and an append does not commit on its own. BeginGroup() fails with kInvalidArgument if a group
  // is open, the others if none is. After a failed UndoGroup() (kIo) the writer is unusable.
  Result<void> BeginGroup();
  Result<void> EndGroup();
  Result<void> UndoGroup();

  std::uint64_t record_count() const noexcept;  // In an append, includes the existing records.
  const Schema& schema() const noexcept;
  bool has_keys() const noexcept;
  // Options::key_column of the file; nullopt in an append to a file of a library that did not store
  // it.
  const std::optional<std::string>& key_column() const noexcept;

  // Makes all appended records durable, and visible to readers that open the file from now on. Does
  // nothing if no record was appended. Fails with kInvalidArgument if the file is new, because it
  // becomes visible at Close(); with kConflict if another program has deleted, renamed or replaced
  // the file, or wrote over it; with kIo.
  Result<void> Commit();

  // Replaces the metadata, which the next commit, or Close() of a new file, writes. Fails with
  // kInvalidArgument if there is none, or it is too large.
  Result<void> SetMetadata(const Metadata& metadata);

  // Writes the index, syncs, and publishes the file under `path`; in an append, makes the last
  // commit. Fails with kIo, or with kConflict if another process has created `path` since Create();
  // that file is untouched.
  Result<WriteSummary> Close();

  // For the library's own layers.
  struct Impl;
  explicit RecordWriter(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

// Writes one FFRecord version 1 file, byte for byte as HFAiLab/ffrecord 1.x does. The caller
// declares the number of records first, because offsets depend on it. Otherwise like RecordWriter.
class FFR_EXPORT V1Writer {
 public:
  // Fails as RecordWriter::Create; with kInvalidArgument if record_count is 2^48 or more.
  static Result<V1Writer> Create(const std::filesystem::path& path, std::uint64_t record_count,
                                 bool replace);
  V1Writer(V1Writer&&) noexcept;
  V1Writer& operator=(V1Writer&&) noexcept;
  ~V1Writer();

  // Fails with kInvalidArgument after `record_count` records, with kIo if the disk refuses.
  Result<void> Write(std::span<const std::byte> record);

  // Fails with kInvalidArgument if records are missing; the file is then not published.
  Result<WriteSummary> Close();

  // For the library's own layers.
  struct Impl;
  explicit V1Writer(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
