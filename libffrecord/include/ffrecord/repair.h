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

// The result of a repair.
struct RepairReport {
  // At most this many ranges and losses are listed; the rest are only counted.
  static constexpr std::size_t kListedMax = 1000;

  std::uint32_t format_version = 0;
  std::uint64_t kept_count = 0;  // Records in the new file, in the order of the old one.
  std::uint64_t lost_count = 0;
  std::vector<IndexRange> lost;  // Indices in the old file, ascending.
  // Whether the old file's end is whole, so that it still says how many records it had. If not,
  // records behind the last one found may be lost too, and lost_count does not include them.
  bool record_count_is_known = false;
  // Bytes of the old file in gaps with missing records: each gap runs from the end of the kept
  // record before it to the beginning of the kept record after it.
  std::uint64_t skipped_bytes = 0;
  // For people: parts of the file other than records. Kept unchanged; rebuilt for the kept records;
  // lost wholly or in part, with the consequence.
  std::vector<std::string> kept_parts;     // "the schema"
  std::vector<std::string> rebuilt_parts;  // "the keys: 300"
  std::vector<std::string> other_losses;   // "the schema: ..."
  std::uint64_t kept_key_count = 0;
  // As far as the file says how many keys there were; includes keys of lost records.
  std::uint64_t lost_key_count = 0;
  std::uint64_t file_size_bytes = 0;  // Size of the new file.
  std::array<std::byte, 16> fingerprint{};

  bool lost_nothing() const noexcept {
    return lost_count == 0 && record_count_is_known && other_losses.empty();
  }
};

struct RepairOptions {
  bool replace = false;  // Replace an existing destination; else it gives kConflict.
  // Called on the calling thread with bytes done and total bytes. When it returns false, the repair
  // fails with kDeadlineExceeded and leaves no file.
  std::function<bool(std::uint64_t, std::uint64_t)> progress = {};
};

// Writes a new file with all intact parts of a damaged one, which it only reads, through the page
// cache.
//
// Version 2 needs neither index nor footer. A scan finds the records, and keeps every record whose
// header and checksum are valid. Alignment, compressed bytes, schema, dictionaries and metadata are
// kept as far as the scan finds them. Records get new indices; their keys and column copies are
// rewritten. The scan needs the file's id, from its header or from any tail. Version 1 has no
// record headers and needs its tables: a record is kept if the tables confirm it.
//
// The destination appears whole or not at all, as with RecordWriter. Fails with kCorruption if the
// file cannot be identified, with kNotFound, kConflict or kIo, and with kInvalidArgument if it
// needs a newer library.
FFR_EXPORT Result<RepairReport> RepairFile(const std::filesystem::path& source,
                                           const std::filesystem::path& destination,
                                           const RepairOptions& options = {});

}  // namespace ffrecord
