// Goal: no key directory, page or block, however it was forged, leads a search out of its file or
// to a record that there is not. Method: edits to the directory and the pages of a golden file, and
// as the first byte of the input chooses, to its blocks of keys, and to what opens it; then all
// checksums are made anew.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/read_everything.h"

namespace {

// Those of the golden file, some of which no record has, and the empty one, which none can have.
std::vector<std::string> Keys() {
  std::vector<std::string> keys{""};
  for (int i = 0; i < 200; ++i) keys.push_back("key " + std::to_string(i));
  return keys;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ffrecord::fuzz::EditedFile;
  static const std::string golden = EditedFile::Golden("keys");
  static const std::vector<std::string> keys = Keys();
  if (size == 0) return 0;
  EditedFile file(golden);
  std::vector<EditedFile::Range> ranges = file.Sections(EditedFile::kKeyDirectory);
  const auto add = [&](const std::vector<EditedFile::Range>& more) {
    ranges.insert(ranges.end(), more.begin(), more.end());
  };
  if ((data[0] & 1) != 0) add(file.KeyBlocks());
  if ((data[0] & 2) != 0) add(file.Frame());
  file.Apply({data + 1, size - 1}, ranges);
  file.ForgeChecksums();
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 4) == 0;
  ffrecord::fuzz::ReadEverything(std::move(file).Take(), options, keys);
  return 0;
}
