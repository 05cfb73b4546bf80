#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include <ffrecord/export.h>
#include <ffrecord/record_writer.h>
#include <ffrecord/result.h>

namespace ffrecord {

// A file that holds values of records.
struct RowFile {
  struct Version {
    std::uint64_t size_bytes = 0;
    std::int64_t modified_ns = 0;  // Since the epoch.

    bool operator==(const Version&) const = default;
  };

  std::filesystem::path path;
  std::optional<Version> listed = {};  // The version that the caller has seen; unset: any.
};

// Where the value of one column is: in memory, or in a range of a file.
struct FieldSource {
  std::span<const std::byte> bytes = {};  // If `file` is null.
  const RowFile* file = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// Describes the fields of a row, one per column in schema order. Called by several threads at once;
// what it returns stays valid until WriteFileRows() returns.
using FieldsOfRow = std::function<void(std::size_t row, std::span<FieldSource> fields)>;

// Writes the rows [0, row_count) in their order, each as RecordWriter::WriteFields does, to a file
// with a schema. Threads
// read the files of later rows while the calling thread writes. The value of column `key`, if
// given, is the key of the row.
//
// Returns the first row with a file that is not in the version that was listed, or nullopt; the
// rows before it are written. Fails as RecordWriter::WriteFields, and with kNotFound, kDenied or
// kIo if a file cannot be read, kInvalidArgument if it is no regular file, kCorruption if it ends
// before the range.
//
// Memory: 64 MiB for rows that are read ahead, or two rows if they are larger.
FFR_EXPORT Result<std::optional<std::size_t>> WriteFileRows(RecordWriter& writer,
                                                            std::size_t row_count,
                                                            const FieldsOfRow& fields_of,
                                                            std::optional<std::size_t> key = {});

}  // namespace ffrecord
