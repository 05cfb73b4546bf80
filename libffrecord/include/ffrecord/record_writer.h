#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
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

// Writes one FFRecord version 2 file, strictly forward, of any number of records.
//
// Nothing is visible under `path` before Close() succeeds, and then the file is whole and on
// stable storage. Destroyed or discarded before that, it leaves nothing behind; so does a kill.
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
    Metadata metadata = {};  // Kept with the file; RecordReader::metadata gives it back.
  };

  // Fails with kInvalidArgument if an option is out of range, with kConflict if `path` exists and
  // `replace` is false, with kIo if the folder cannot be written.
  static Result<RecordWriter> Create(const std::filesystem::path& path, Schema schema,
                                     const Options& options);
  RecordWriter(RecordWriter&&) noexcept;
  RecordWriter& operator=(RecordWriter&&) noexcept;
  ~RecordWriter();

  // Adds one record: its bytes as they are. The bytes are copied. Fails with kInvalidArgument if
  // the record does not fit the schema or has 2^40 bytes or more, with kIo if the disk refuses;
  // after kIo every later call fails alike.
  Result<void> Write(std::span<const std::byte> record);

  // Adds one record made of `fields`, one for each column of the schema, in its order.
  Result<void> WriteFields(std::span<const std::span<const std::byte>> fields);

  std::uint64_t record_count() const noexcept;

  // Writes the index, syncs, publishes under `path`. Fails with kIo, or with kConflict if `path`
  // has come into being meanwhile; the file that was there before is then untouched.
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
