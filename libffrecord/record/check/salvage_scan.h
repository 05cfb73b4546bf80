#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/metadata.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// What a damaged version 2 file still says of itself, its records apart.
struct SalvageScan {
  V2Header header;  // If the file's is damaged, one that fits what was found.
  Schema schema;
  std::vector<std::vector<std::byte>> dictionary_sections;
  std::vector<ZstdDictionary> dictionaries;  // The same, prepared.
  Metadata metadata;
  bool has_keys = false;
  std::vector<std::string> copied_columns;  // Such as can be copied again.
  // How many records there were at least, by commits and what is left of one at the end; and
  // whether there were no more: the file ends in a commit that is whole.
  std::uint64_t record_count_min = 0;
  bool record_count_is_known = false;
  // How many keys its runs list; known only if the file ends in that commit.
  std::optional<std::uint64_t> key_count;
  // For people: what is as it was; what is not, or not at all.
  std::vector<std::string> kept;
  std::vector<std::string> losses;
};

// Looks for header, commits and sections: where they ought to be, and if something is missing, in
// all of the file. `window` is over file 0 of `source`. None if the file has neither a header nor a
// tail of version 2. Fails with kInvalidArgument if the file needs a newer library, or as MapIndex.
Result<std::optional<SalvageScan>> ScanForSalvage(const RangeReader& source, FileWindow& window);

}  // namespace ffrecord
