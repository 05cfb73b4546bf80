#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Record indices [begin, end).
struct IndexRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  bool operator==(const IndexRange&) const = default;
};

// What became of a damaged file.
struct RepairReport {
  // Ranges and losses that are listed; the rest is only counted.
  static constexpr std::size_t kListedMax = 1000;

  std::uint32_t format_version = 0;
  std::uint64_t kept_count = 0;  // Records in the new file, in the order of the old one.
  std::uint64_t lost_count = 0;
  std::vector<IndexRange> lost;  // Of the old file, ascending.
  // Whether the old file still says how many records it had: its end is whole. Else more may be
  // lost behind the last record of which anything was left than lost_count says.
  bool record_count_is_known = false;
  // Of the old file, where records are missing: from the end of what was kept before them to the
  // beginning of what was kept behind them.
  std::uint64_t skipped_bytes = 0;
  // For people, what stands beside the records: as it was; made anew for those that are kept; not
  // or not all there any more, with what that means.
  std::vector<std::string> kept_parts;     // "the schema"
  std::vector<std::string> rebuilt_parts;  // "the keys: 300"
  std::vector<std::string> other_losses;   // "the schema: ..."
  std::uint64_t kept_key_count = 0;
  // As far as the file says how many there were; some may be of records that are lost too.
  std::uint64_t lost_key_count = 0;
  std::uint64_t file_size_bytes = 0;  // Of the new file.
  std::array<std::byte, 16> fingerprint{};

  bool lost_nothing() const noexcept {
    return lost_count == 0 && record_count_is_known && other_losses.empty();
  }
};

struct RepairOptions {
  bool replace = false;  // Replace a file of the destination's name; else that is kConflict.
  // Called on the calling thread with bytes done and bytes in all; when it returns false, the
  // repair ends with kDeadlineExceeded and leaves nothing.
  std::function<bool(std::uint64_t, std::uint64_t)> progress = {};
};

// Makes a new file of what is whole in a damaged one, which it only reads, through the page cache.
//
// Version 2: neither index nor footer is needed. Every record whose own header and checksum hold is
// kept, found by a scan; alignment, compressed bytes, schema, dictionaries and metadata are kept as
// far as they can be found. Records are numbered anew; their keys, and copies of columns, are
// written anew. The file's id must be known, from its header or from any tail. Version 1, which has
// no record headers, needs its tables: what they say is whole is kept.
//
// The destination appears whole or not at all, as with RecordWriter. Fails with kCorruption if
// nothing says what the file is, with kNotFound, kConflict or kIo; with kInvalidArgument if the
// file needs a newer library.
FFR_EXPORT Result<RepairReport> RepairFile(const std::filesystem::path& source,
                                           const std::filesystem::path& destination,
                                           const RepairOptions& options = {});

}  // namespace ffrecord
