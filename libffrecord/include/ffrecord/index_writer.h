#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/metadata.h>
#include <ffrecord/record_form.h>
#include <ffrecord/record_writer.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>
#include <ffrecord/source_description.h>

namespace ffrecord {

// Writes an index over a file of another kind, with which RecordReader reads samples of that file
// as records; the file stays as it is. Like a new file of RecordWriter, the index appears whole and
// durable when Close() succeeds, or not at all.
//
// Memory: the stream's and the largest record. Single-use, thread-bound.
class FFR_EXPORT IndexWriter {
 public:
  struct Options {
    RecordForm form = RecordForm::kPlain;
    std::string key_column = {};  // Whose values are keys; empty: records have none.
    bool replace = false;         // Replace an index of that name.
    // The file that describes the source, as it was before it was read.
    SourceDescription description = {};
  };

  // Fails with kInvalidArgument if an option does not fit the schema, or the file is too large or
  // its path too long, with kConflict if `index` exists and may not be replaced, as
  // RecordWriter::Create and RecordReader::Open.
  static Result<IndexWriter> Create(const std::filesystem::path& source,
                                    const std::filesystem::path& index, Schema schema,
                                    const Options& options);
  IndexWriter(IndexWriter&&) noexcept;
  IndexWriter& operator=(IndexWriter&&) noexcept;
  ~IndexWriter();

  // Adds the sample in bytes [offset, offset + size) of the source, which lies behind all added
  // before. Reads and checks it. Fails with kInvalidArgument if those bytes are no sample of that
  // form and schema, or do not lie in the source.
  Result<void> Add(std::uint64_t offset_bytes, std::uint64_t size_bytes);

  // The columns in which a sample had no value, so far.
  std::vector<std::string> ColumnsWithNulls() const;
  Result<void> SetMetadata(const Metadata& metadata);

  // Fails with kConflict if the source has changed since Create(), or what describes it.
  Result<WriteSummary> Close();

  // The source that an index is read with, and what described it. Fails as RecordReader::Open if
  // the index is missing or its front is damaged.
  struct Source {
    std::filesystem::path path;
    SourceDescription description;
  };
  static Result<Source> ReadSource(const std::filesystem::path& index);
  // Makes the index say that its source is described as `description` says, of which the digest is
  // the same: the file has changed in what concerns other sources. The index with it takes the
  // place of the other by one rename. Reads no sample.
  static Result<void> WriteDescription(const std::filesystem::path& index,
                                       const SourceDescription& description);

 private:
  struct Impl;
  explicit IndexWriter(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
