#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/metadata.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/v1_tables.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/record/index/index_part.h"
#include "libffrecord/record/index/v2_commit.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

class IndexPages;

// The structures of an open version 2 file.
struct V2Layout {
  V2Header header;
  V2Footer footer;
  std::uint64_t footer_offset_bytes = 0;
  std::uint64_t commit_size_bytes = 0;  // Where the tail ends; bytes behind it are ignored.
  RangeReader::IndexBytes directory;    // The offset of each index segment, u64 each.
  // The damaged part at the front of the file, whose copy at the end was used; empty if nothing.
  std::string damaged_front;
};

// Says where each record of one open file lies. Thread-safe; borrows the RangeReader.
class FileIndex {
 public:
  virtual ~FileIndex() = default;

  virtual std::uint32_t format_version() const noexcept = 0;
  virtual std::uint64_t record_count() const noexcept = 0;
  virtual const Schema& schema() const noexcept = 0;
  virtual const Digest128& fingerprint() const noexcept = 0;
  // Warnings for people, found while opening.
  virtual std::span<const std::string> warnings() const noexcept = 0;

  // Fills `location`, whose bytes then lie inside the file. Otherwise returns kCorruption, or the
  // error of the RangeReader. Requires index < record_count().
  virtual ErrorCode Locate(std::uint64_t index, RecordLocation& location) const = 0;

  // Adds the parts that Locate(index) would read from the source, and so might wait for. If a part
  // was taken, Locate does not read it, unless it is damaged. Requires index < record_count().
  virtual void AddLacking(std::uint64_t /*index*/, std::vector<IndexPart>& /*parts*/) const {}
  // Takes the bytes of a part that AddLacking added and its caller has read: those of each of its
  // pieces, in `owner`.
  virtual void Take(const IndexPart& /*part*/, const std::shared_ptr<const void>& /*owner*/,
                    std::span<const std::span<const std::byte>> /*pieces*/) const {}

  // Prefetches the memory that Locate will read, without waiting. Requires index < record_count().
  virtual void Prefetch(std::uint64_t /*index*/) const noexcept {}

  // The pages of the index, for callers that look up many records and avoid a virtual call for
  // each; null in version 1.
  virtual const IndexPages* pages() const noexcept { return nullptr; }

  // Whether `stored` are the bytes that were written for the record; `check` is that of its
  // location.
  virtual bool Matches(std::uint64_t index, std::uint64_t check,
                       std::span<const std::byte> stored) const noexcept = 0;

  // Decompresses to `raw` the frame `stored`, of a record that Locate reported as compressed. Reads
  // nothing and allocates nothing. Fails with kCorruption.
  virtual Result<void> Decompress(std::span<const std::byte> /*stored*/,
                                  std::span<std::byte> /*raw*/) const {
    return Error{ErrorCode::kCorruption, "this version of the format has no compressed records"};
  }

  // Makes the record of that size from the stored bytes of a file of another kind, in their memory,
  // and returns where in it the record begins. Requires that the stored bytes are not fewer.
  // Allocates nothing for each record. Fails with kCorruption.
  virtual Result<std::size_t> FormWithin(std::span<std::byte> /*stored*/,
                                         std::uint64_t /*record_size_bytes*/) const {
    return Error{ErrorCode::kCorruption, "the record is not as large as the bytes that it is"};
  }

  // Whether it was written so that records may have keys.
  virtual bool has_keys() const noexcept { return false; }

  // The first record with this key, if there is one. Pages that are not in memory are read through
  // `bytes`, a reader of the same files. Fails with kCorruption, or as `bytes`.
  virtual Result<std::optional<std::uint64_t>> FindKey(std::span<const std::byte> /*key*/,
                                                       const RangeReader& /*bytes*/) const {
    return std::optional<std::uint64_t>();
  }

  // The keys of all records. Fails with kCorruption, or as the RangeReader.
  virtual Result<RecordReader::Keys> ReadKeys() const { return RecordReader::Keys{}; }

  // How the writer was given the keys. Fails with kCorruption, or as the RangeReader.
  virtual Result<RecordReader::KeyOrigin> ReadKeyOrigin() const {
    return RecordReader::KeyOrigin{};
  }

  // The user's metadata, fetched and checked by this call, not when the file was opened. Empty if
  // there is none. Fails with kCorruption, or as the RangeReader.
  virtual Result<Metadata> ReadMetadata() const { return Metadata{}; }

  // For callers that need the file's structures; null in version 1.
  virtual const V2Layout* v2_layout() const noexcept { return nullptr; }

  // Why Locate rejects the index entry; empty if it does not.
  virtual std::string Explain(std::uint64_t index) const = 0;
};

// Opens all files of `source` with as few rounds of reads as possible. Messages name the file.
Result<std::vector<std::unique_ptr<FileIndex>>> OpenIndexes(const RangeReader& source,
                                                            const RecordReader::Options& options);

// The parts of it, one for each version. `header` is decoded and its checks hold.
Result<std::unique_ptr<FileIndex>> OpenV1Index(const RangeReader& source, std::uint32_t file,
                                               const V1Header& header,
                                               const RecordReader::Options& options);

// `commit` is the one to be read; `warnings` are for people. If the schema is damaged, its copy
// among the facts is used; `header_is_copy` says that the header comes from there already.
Result<std::unique_ptr<FileIndex>> OpenV2Index(const V2Source& source, const V2Header& header,
                                               V2Commit commit, std::vector<std::string> warnings,
                                               bool header_is_copy = false);

}  // namespace ffrecord
