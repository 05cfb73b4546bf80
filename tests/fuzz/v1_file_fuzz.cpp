// Goal: no version 1 file, however made, can hurt its reader.
// Method: the first byte chooses the options, the rest is the file.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 1) == 0;
  options.salvage = (data[0] & 2) != 0;
  ffrecord::fuzz::ReadEverything(std::string(reinterpret_cast<const char*>(data) + 1, size - 1),
                                 options);
  return 0;
}
