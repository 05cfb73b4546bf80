#pragma once

#include <cstdint>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_header.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/source/file_window.h"

namespace ffrecord {

// What the bytes behind the newest whole commit of a file are.
struct UncommittedEnd {
  // What says that they may be a damaged commit, which somebody was told is durable, in words;
  // empty if they are no more than what a killed append leaves.
  std::string sign_of_commit;
  // How many records the file had at least: by the headers and index pages among these bytes, or
  // of the newest whole commit.
  std::uint64_t record_count_min = 0;
};

// Where they begin and what the file was until there; all zero where no commit is whole.
struct CommittedPart {
  std::uint64_t size_bytes = 0;
  std::uint64_t record_count = 0;
  bool copies_columns = false;
};

// Reads the end of the file behind `committed`, at most the last kCommitSearchBytesMax of it.
//
// A killed append leaves the first bytes of a commit and never its footer or tail, which are
// written when all else is durable. So the end is that of a commit if a footer or a tail is there,
// even a damaged one; or if records are followed by their index, and that by more than a segment
// directory takes. Fails as FileWindow::View.
Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Header& header, const CommittedPart& committed);
Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Layout& layout);

}  // namespace ffrecord
