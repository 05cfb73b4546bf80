// Goal: no index, however its pages, its directory and the counts that it follows from were forged,
// leads a reader out of its file.
// Method: edits to the index pages, the segment directory, the header and the footer of a golden
// file of several segments; then all checksums are made anew. The first byte chooses the options.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ffrecord::fuzz::EditedFile;
  static const std::string golden = EditedFile::Golden("segments");
  if (size == 0) return 0;
  EditedFile file(golden);
  std::vector<EditedFile::Range> ranges = file.Sections(EditedFile::kSegmentDirectory);
  if ((data[0] & 1) != 0) {
    const auto frame = file.Frame();
    ranges.insert(ranges.end(), frame.begin(), frame.end());
  }
  file.Apply({data + 1, size - 1}, ranges);
  file.ForgeChecksums();
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 2) == 0;
  ffrecord::fuzz::ReadEverything(std::move(file).Take(), options);
  return 0;
}
