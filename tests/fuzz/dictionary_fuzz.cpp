// Goal: no dictionary, and no frame that names one, hurts a reader, whatever they were forged to
// be. Method: edits to the dictionary of a golden file, and as the first byte of the input chooses,
// to its records and their index, and to what opens it; then all checksums are made anew.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ffrecord::fuzz::EditedFile;
  static const std::string golden = EditedFile::Golden("dictionary");
  if (size == 0) return 0;
  EditedFile file(golden);
  std::vector<EditedFile::Range> ranges = file.Sections(EditedFile::kDictionary);
  const auto add = [&](const std::vector<EditedFile::Range>& more) {
    ranges.insert(ranges.end(), more.begin(), more.end());
  };
  if ((data[0] & 1) != 0) {
    add(file.Payloads());
    add(file.Sections(EditedFile::kSegmentDirectory));
  }
  if ((data[0] & 2) != 0) add(file.Frame());
  file.Apply({data + 1, size - 1}, ranges);
  file.ForgeChecksums();
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 4) == 0;
  ffrecord::fuzz::ReadEverything(std::move(file).Take(), options);
  return 0;
}
