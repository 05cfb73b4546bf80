#pragma once

#include <cstdint>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_header.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The facts about the bytes behind the newest whole commit of a file.
struct UncommittedEnd {
  // A message with the evidence that these bytes may be a damaged commit, which a writer reported
  // as durable. Empty if they are only what a killed append leaves.
  std::string sign_of_commit;
  // The least number of records that the file had, by the headers and index pages among these
  // bytes, or by the newest whole commit.
  std::uint64_t record_count_min = 0;
};

// The file up to these bytes; all zero if no commit is whole.
struct CommittedPart {
  std::uint64_t size_bytes = 0;
  std::uint64_t record_count = 0;
  std::uint64_t copied_bytes = 0;  // Bytes of each record in column copies.
};

// Reads the end of the file behind `committed`, at most the last kCommitSearchBytesMax of it.
//
// A killed append leaves the beginning of a commit, but never its footer or tail, which are written
// after all else is durable. So the bytes may be a whole commit, perhaps damaged, if they contain a
// footer or a tail, or if there are more of them than the records, keys and sections among them and
// the index of these records take. Damage hides structures, and so can only make a commit look
// longer than it should be. Fails as FileWindow::View.
Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Header& header, const CommittedPart& committed);
// The same behind the commit that was opened, of the first file of `source`. Fails also with
// kCorruption if the column copies of the commit are damaged. Requires a file of version 2.
Result<UncommittedEnd> ExamineEnd(const RangeReader& source, FileWindow& window,
                                  const FileIndex& index);

}  // namespace ffrecord
