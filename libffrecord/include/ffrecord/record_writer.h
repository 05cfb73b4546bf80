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

// What a finished file holds.
struct WriteSummary {
  std::uint64_t record_count = 0;
  std::uint64_t raw_size_bytes = 0;  // Of all records, before compression.
  std::uint64_t file_size_bytes = 0;
  std::array<std::byte, 16> fingerprint{};
  // Of the dictionary that the records are compressed with; 0 if there is none, as where there was
  // too little data to train one.
  std::uint64_t dictionary_size_bytes = 0;
};

// Writes one FFRecord version 2 file, strictly forward, of any number of records: a new one, or
// what is added to an old one.
//
// Of a new file nothing is visible under `path` before Close() succeeds, and then it is whole and
// on stable storage. Destroyed or discarded before that, it leaves nothing behind; so does a kill.
//
// An old file is extended in place, by one writer at a time, commit by commit. Each commit is on
// stable storage before it counts; destroyed or killed before one, the writer leaves the file as it
// was at the last, and bytes behind it that readers ignore and the next Append() removes. Readers
// that have the file open keep their view of it; those that open it later see the last commit.
//
// Memory is constant in the number of records: at most 64 MiB. Single-use, thread-bound.
class FFR_EXPORT RecordWriter {
 public:
  static constexpr std::uint32_t kTrainedDictionaryBytesMin = 1024;

  struct Options {
    bool compress = false;              // zstd for each record; kept raw when it gains under 5 %.
    int compression_level = 3;          // 1 to 19.
    std::uint32_t alignment_bytes = 1;  // Of each record in the file: 1, 512 or 4096.
    bool replace = false;               // Replace a file of that name; else Close gives kConflict.
    // For many small records that are alike: a dictionary of zstd's format (`zstd --train`), or the
    // size of one to be trained, 0 or 1,024 to 16 MiB; 110 KiB is usual. To train, the writer holds
    // back the first records: 100 times that size, at most 16 MiB. Both need `compress`.
    std::vector<std::byte> dictionary = {};
    std::uint32_t train_dictionary_bytes = 0;
    bool keys = false;  // Records may have keys, by which readers find them.
    // Columns whose values are kept once more, apart from the records, so that they can be read
    // alone (RecordReader::ReadColumn): of fixed width, at most 64 bytes each, 512 together.
    std::vector<std::string> copied_columns = {};
    Metadata metadata = {};  // Kept with the file; RecordReader::metadata gives it back.
  };

  // Fails with kInvalidArgument if an option is out of range, with kConflict if `path` exists and
  // `replace` is false, with kIo if the folder cannot be written.
  static Result<RecordWriter> Create(const std::filesystem::path& path, Schema schema,
                                     const Options& options);

  struct AppendOptions {
    std::optional<bool> compress = {};      // Unset: if the file was begun so. A file that was not
                                            // stays without.
    int compression_level = 3;              // 1 to 19.
    std::optional<Metadata> metadata = {};  // In place of the file's; unset keeps that.
    // A commit is made when so much has been written since the last one: 1 MiB to 64 MiB.
    std::uint64_t commit_interval_bytes = std::uint64_t{64} << 20;
  };

  // Goes on behind the last record of the file `path`, with its schema and alignment; only for
  // local files that are not published. What an earlier append left unfinished is removed.
  //
  // Fails with kConflict if another writer appends to the file, with kNotFound, with kDenied if it
  // is read-only, with kInvalidArgument if it has version 1, needs a newer library or was begun
  // without what an option asks for, with kCorruption if it is damaged, with kIo.
  static Result<RecordWriter> Append(const std::filesystem::path& path,
                                     const AppendOptions& options);

  RecordWriter(RecordWriter&&) noexcept;
  RecordWriter& operator=(RecordWriter&&) noexcept;
  ~RecordWriter();

  // Adds one record: its bytes as they are. The bytes are copied. Fails with kInvalidArgument if
  // the record does not fit the schema or has 2^40 bytes or more (in an append, more than 512 MiB),
  // with kIo if the disk refuses; after kIo every later call fails alike.
  //
  // `key`, of 1 to 65,535 bytes, is what RecordReader::Find finds the record by; empty for none.
  // Keys need not be unique. Fails with kInvalidArgument if it is larger, or if the file was begun
  // without Options::keys.
  Result<void> Write(std::span<const std::byte> record, std::span<const std::byte> key = {});

  // Adds one record made of `fields`, one for each column of the schema, in its order.
  Result<void> WriteFields(std::span<const std::span<const std::byte>> fields,
                           std::span<const std::byte> key = {});

  std::uint64_t record_count() const noexcept;  // Those of the old file included.
  const Schema& schema() const noexcept;

  // Makes what was appended so far durable and visible to those who open the file from now on. If
  // nothing was, does nothing. Fails with kInvalidArgument if the file is new: it is visible after
  // Close(); with kIo.
  Result<void> Commit();

  // Writes the index, syncs, publishes under `path`; of an append, the last commit. Fails with kIo,
  // or with kConflict if `path` has come into being meanwhile; the file that was there before is
  // then untouched.
  Result<WriteSummary> Close();

  // For the library's own layers.
  struct Impl;
  explicit RecordWriter(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

// Writes one FFRecord version 1 file, byte for byte as HFAiLab/ffrecord 1.x does. The number of
// records is declared first, for offsets depend on it. Otherwise as RecordWriter.
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

  // Fails with kInvalidArgument if records are missing; nothing is then published.
  Result<WriteSummary> Close();

  // For the library's own layers.
  struct Impl;
  explicit V1Writer(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
