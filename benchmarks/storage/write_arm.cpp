// One arm of one round of the benchmark `write` (write.py says what is compared and how).
//
//   write-arm FILE COUNT MEAN_BYTES SIGMA
//
// Writes COUNT records of random content, log-normal in size (SIGMA 0: all of one size), closes the
// file, which syncs it, and removes it. Prints one JSON object: seconds from Create to the end of
// Close, processor seconds of all threads, and the peak of memory.

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include <ffrecord/record_writer.h>

#include "benchmarks/support/arm.h"

namespace {

using namespace ffrecord;
using namespace ffrecord::bench;

constexpr std::size_t kSourceBytes = 16 << 20;
constexpr std::size_t kSizesCount = 4096;

// Random bytes that records are cut from, so that making them costs nothing while the clock runs.
std::vector<std::uint64_t> RandomSource() {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> source(kSourceBytes / 8);
  std::ranges::generate(source, random);
  return source;
}

std::vector<std::size_t> RecordSizes(double mean_bytes, double sigma) {
  std::mt19937_64 random(2);
  std::lognormal_distribution<double> size_of(std::log(mean_bytes) - sigma * sigma / 2, sigma);
  std::vector<std::size_t> sizes(kSizesCount, static_cast<std::size_t>(mean_bytes));
  const double size_max = std::min(mean_bytes * 16, static_cast<double>(kSourceBytes / 2));
  if (sigma > 0)
    for (std::size_t& size : sizes)
      size = static_cast<std::size_t>(std::clamp(size_of(random), 1.0, size_max));
  return sizes;
}

double ProcessorSeconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

rusage Usage() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) Fail("getrusage failed");
  return usage;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 5) {
    std::fprintf(stderr, "usage: write-arm FILE COUNT MEAN_BYTES SIGMA; see write_arm.cpp\n");
    return 2;
  }
  const std::filesystem::path path = arguments[1];
  const std::uint64_t count = std::stoull(arguments[2]);
  const auto source = RandomSource();
  const auto bytes = std::as_bytes(std::span(source));
  const auto sizes = RecordSizes(std::stod(arguments[3]), std::stod(arguments[4]));
  RecordWriter::Options options;
  options.replace = true;

  const rusage before = Usage();
  const auto start = Clock::now();
  auto writer = ValueOrFail(RecordWriter::Create(path, {}, options));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t size = sizes[i % kSizesCount];
    const std::size_t at = static_cast<std::size_t>(i * 64) % (kSourceBytes - size + 1);
    Check(writer.Write(bytes.subspan(at, size)));
  }
  const WriteSummary summary = ValueOrFail(writer.Close());
  const double seconds = SecondsSince(start);
  const rusage after = Usage();

  std::filesystem::remove(path);
  std::printf("{\"bytes\": %llu, \"seconds\": %.9f, \"cpu_seconds\": %.6f, \"peak_bytes\": %llu}\n",
              static_cast<unsigned long long>(summary.file_size_bytes), seconds,
              ProcessorSeconds(after) - ProcessorSeconds(before),
              static_cast<unsigned long long>(after.ru_maxrss) * 1024);
  return 0;
}
