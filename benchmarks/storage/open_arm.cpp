// One arm of one round of the benchmark `open` (open.py says what is compared and how).
//
//   open-arm make FILE COUNT
//   open-arm open FILE TIMES
//
// `open` opens the file once, then TIMES more, and prints as one JSON object: the time of the first
// and the anonymous memory that it added, the thread's engine included; the median of the others.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

#include "benchmarks/support/arm.h"

namespace {

using namespace ffrecord;
using namespace ffrecord::bench;

// The smallest records that hold something.
void Make(const char* path, std::uint64_t count) {
  auto writer = ValueOrFail(RecordWriter::Create(path, {}, {}));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint32_t>(i);
    Check(writer.Write(std::as_bytes(std::span(&number, 1))));
  }
  const auto summary = ValueOrFail(writer.Close());
  std::printf("{\"records\": %llu}\n", static_cast<unsigned long long>(summary.record_count));
}

// Memory of this process that belongs to no file.
std::uint64_t AnonymousBytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);)
    if (line.starts_with("Anonymous:")) return std::stoull(line.substr(10)) * 1024;
  Fail("/proc/self/smaps_rollup has no line Anonymous");
}

RecordReader Open(const char* path) {
  const std::filesystem::path paths[] = {path};
  return ValueOrFail(RecordReader::Open(paths, {}));
}

void MeasureOpen(const char* path, std::size_t times) {
  AnonymousBytes();  // Memory of its own is there from now on.
  const std::uint64_t before = AnonymousBytes();
  const auto first_start = Clock::now();
  const auto first = Open(path);
  const double first_seconds = SecondsSince(first_start);
  const std::uint64_t after = AnonymousBytes();

  std::vector<double> seconds;
  for (std::size_t i = 0; i < times; ++i) {
    const auto start = Clock::now();
    const auto reader = Open(path);
    seconds.push_back(SecondsSince(start));
  }
  if (seconds.empty()) seconds.push_back(first_seconds);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  std::printf("{\"records\": %llu, \"seconds\": %.9f, \"first_seconds\": %.9f, \"bytes\": %llu}\n",
              static_cast<unsigned long long>(first.record_count()), *middle, first_seconds,
              static_cast<unsigned long long>(after - before));
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string_view what = argument_count == 4 ? arguments[1] : "";
  if (what == "make") {
    Make(arguments[2], std::stoull(arguments[3]));
  } else if (what == "open") {
    MeasureOpen(arguments[2], std::stoull(arguments[3]));
  } else {
    std::fprintf(stderr, "usage: open-arm make|open FILE COUNT; see open_arm.cpp\n");
    return 2;
  }
  return 0;
}
