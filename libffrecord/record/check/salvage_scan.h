#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/metadata.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The structures that can still be read from a damaged version 2 file, without its records.
struct SalvageScan {
  V2Header header;  // If the file's header is damaged, one that fits the rest.
  Schema schema;
  std::vector<std::vector<std::byte>> dictionary_sections;
  std::vector<ZstdDictionary> dictionaries;  // The same, prepared.
  Metadata metadata;
  bool has_keys = false;
  std::string key_column;                   // As in V2Facts.
  std::vector<std::string> copied_columns;  // Columns whose copies can be made again.
  // The index of the newest commit that can be opened; null if there is none. Borrows the source.
  std::unique_ptr<FileIndex> index;
  // The least number of records that the file had, by its commits and the remains of one at the
  // end; and whether this is the exact number, because the file ends with a whole commit.
  std::uint64_t record_count_min = 0;
  bool record_count_is_known = false;
  // How many keys its runs list; known only if the file ends in that commit.
  std::optional<std::uint64_t> key_count;
  // Messages: the parts that are intact, rebuilt, and lost.
  std::vector<std::string> kept;
  std::vector<std::string> losses;
};

// Looks for header, commits and sections: first where they should be and, if something is missing,
// in the whole file. `window` is over file 0 of `source`. None if the file has neither a header nor
// a tail of version 2. Fails with kInvalidArgument if the file needs a newer library, or as
// MapIndex.
Result<std::optional<SalvageScan>> ScanForSalvage(const RangeReader& source, FileWindow& window);

}  // namespace ffrecord
