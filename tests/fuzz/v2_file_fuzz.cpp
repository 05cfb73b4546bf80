// Goal: no version 2 file, not even one whose checksums were forged, can hurt its reader.
// Method: edits to a golden file. The first byte of the input chooses the options, and whether the
// checksums are made anew; the second chooses the file; the rest are edits, anywhere in it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ffrecord::fuzz::EditedFile;
  static const std::vector<std::string> golden = EditedFile::AllGolden();
  if (size < 2) return 0;
  const std::string& chosen = golden[data[1] % golden.size()];
  EditedFile file(chosen);
  const EditedFile::Range everything[] = {{0, chosen.size()}};
  file.Apply({data + 2, size - 2}, everything);
  if ((data[0] & 1) == 0) file.ForgeChecksums();
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 2) == 0;
  // One of the golden file with keys, and one of no file.
  static const std::vector<std::string> keys{"key 1", "no key"};
  ffrecord::fuzz::ReadEverything(std::move(file).Take(), options, keys);
  return 0;
}
