#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/record_writer.h>
#include <ffrecord/result.h>

#include "libffrecord/format/place.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/record/write/column_copy_writer.h"
#include "libffrecord/record/write/held_records.h"
#include "libffrecord/record/write/key_writer.h"
#include "libffrecord/record/write/v2_stream.h"

namespace ffrecord {

// Record files are written with O_DIRECT in pieces of this size: they are read much later, if at
// all on this host, and filling the page cache slows the writer down (10-plain-rings.md).
inline constexpr std::uint64_t kWriteSizeBytes = 2 << 20;

// Options that only tests choose: golden files need a fixed id, fault tests need an engine that
// fails.
struct WriterInternals {
  std::optional<FileId> file_id;  // Random if there is none.
  std::uint32_t pages_per_segment = V2Header::kPagesPerSegmentDefault;
  std::unique_ptr<IoEngine> engine;  // The file's own if null.
  bool states_facts = true;          // Files of before have no facts.
};

// RecordWriter::Create and Append, and V1Writer::Create, with a choice of internals.
Result<RecordWriter> CreateRecordWriter(const std::filesystem::path& path, Schema schema,
                                        const RecordWriter::Options& options,
                                        WriterInternals internals);
Result<RecordWriter> AppendToRecords(const std::filesystem::path& path,
                                     const RecordWriter::AppendOptions& options,
                                     std::unique_ptr<IoEngine> engine);
Result<V1Writer> CreateV1Writer(const std::filesystem::path& path, std::uint64_t record_count,
                                bool replace, std::unique_ptr<IoEngine> engine);

// Creates and appends: checks, compresses and streams each record.
//
// Memory: the stream's, the largest record if it is compressed or made of fields, what is held for
// training, and the output's buffers.
struct RecordWriter::Impl {
  std::string path;
  Schema schema;
  std::unique_ptr<V2Output> output;  // Until it is closed.
  V2Stream stream;
  std::optional<ZstdCompressor> compressor;
  int compression_level = 0;
  std::optional<HeldRecords> held;               // Until there is a dictionary.
  std::uint64_t held_count_of_group = 0;         // When the group began.
  std::optional<HeldRecords> held_before_group;  // If they were written since.
  std::uint64_t dictionary_size_bytes = 0;
  std::optional<KeyWriter> keys;
  std::optional<ColumnCopyWriter> copies;
  std::optional<std::string> key_column;    // None in an append to a file that does not say.
  std::vector<std::byte> facts_section;     // Goes into the next commit; empty if there is none.
  std::vector<std::byte> metadata_section;  // Goes into the next commit; empty if there is none.
  std::vector<std::span<const std::byte>> fields;  // Only to check records against the schema.
  std::vector<std::byte> joined;
  std::uint64_t commit_interval_bytes = 0;  // For appends; 0: one commit, on close.
  std::optional<Error> broken;              // The first failure of the disk; later calls return it.
  bool closed = false;

  Impl(std::string name, Schema columns, std::unique_ptr<V2Output> destination, V2Stream stream_)
      : path(std::move(name)),
        schema(std::move(columns)),
        output(std::move(destination)),
        stream(std::move(stream_)),
        fields(schema.columns().size()) {}

  Error Invalid(const std::string& found) const;
  // Returns `result`, and keeps its error for later calls.
  Result<void> Kept(Result<void> result);
  Result<void> Usable() const;
  // Fails with kInvalidArgument if a group is open.
  Result<void> NoGroup() const;
  bool is_append() const noexcept { return commit_interval_bytes != 0; }

  // The number of records, written or held.
  std::uint64_t record_count() const noexcept;
  // Compresses later records with this dictionary, in zstd's format.
  Result<void> UseDictionary(std::span<const std::byte> dictionary);
  Result<void> Write(std::span<const std::byte> record, std::span<const std::byte> key);
  // Writes a record whose stored bytes are given, without compressing it again. Requires that it
  // fits the schema if columns are copied.
  Result<void> WriteStored(std::span<const std::byte> raw, std::span<const std::byte> stored);
  // Adds a record whose stored bytes are in the hole of an index in place, at that offset. Requires
  // that it fits the schema.
  Result<void> AddAt(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                     std::span<const std::byte> stored, std::span<const std::byte> key);
  // Writes the key of a record that was written with WriteStored(). Requires keys, and a key of a
  // size that is allowed.
  Result<void> WriteKey(std::uint64_t record_index, std::span<const std::byte> key);
  // A group of writes: all of them, or none. Requires Usable().
  Result<void> BeginGroup();
  Result<void> EndGroup();
  Result<void> UndoGroup();
  // Commits new records, if there are any. Requires Usable().
  Result<void> Commit();
  Result<WriteSummary> Close();

 private:
  Result<void> ReturnToGroup();
  Result<void> CheckRecord(std::span<const std::byte> record);
  Result<void> CheckKey(std::span<const std::byte> key) const;
  Result<void> Store(std::span<const std::byte> record, std::span<const std::byte> key);
  Result<void> EndTraining();
  std::uint64_t uncommitted_bytes() const noexcept;
  Result<void> CommitIfDue(std::uint64_t next_size_bytes);
  Result<void> AddRecord(std::span<const std::byte> raw, std::span<const std::byte> stored,
                         std::span<const std::byte> key);
  Result<void> EndSegment();
  Result<void> EndCommit();
};

// The same as CreateRecordWriter, but returns the Impl.
Result<std::unique_ptr<RecordWriter::Impl>> MakeRecordWriter(const std::filesystem::path& path,
                                                             Schema schema,
                                                             const RecordWriter::Options& options,
                                                             WriterInternals internals);

}  // namespace ffrecord
