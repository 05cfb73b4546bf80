// One arm of one round of the benchmark `read` (read.py says what is compared and how).
//
//   read-arm make FILE COUNT MEAN_BYTES SIGMA SEED        sizes are log-normal
//   read-arm make-equal FILE COUNT SIZE ALIGNMENT SEED    sizes are equal
//   read-arm read auto|direct|buffered|pread|checked-pread|malloc-zlib|memcpy FILE TRACE BATCH
//   DEPTH read-arm epoch auto|direct|memcpy FILE random|sequential RECORDS BATCH WARM_UPS SEED
//
// TRACE holds three u64 for each record: index, offset, size. `epoch` reads the first RECORDS of an
// order of all records, WARM_UPS times untimed and then once. Prints one JSON object. Only the
// reads are timed, not opening and not start-up; cpu_seconds are those of all threads.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <xxhash.h>
#include <zlib.h>

#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

namespace {

struct Read {
  std::uint64_t index;
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "read-arm: %s\n", message.c_str());
  std::exit(4);
}

template <class T>
T ValueOrFail(ffrecord::Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

void Check(const ffrecord::Result<void>& result) {
  if (!result) Fail(result.error().message);
}

std::vector<Read> LoadTrace(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) Fail(std::string("cannot open ") + path);
  std::vector<Read> reads(static_cast<std::size_t>(file.tellg()) / sizeof(Read));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(reads.data()),
            static_cast<std::streamsize>(reads.size() * sizeof(Read)));
  if (!file || reads.empty()) Fail(std::string("no reads in ") + path);
  return reads;
}

// Every byte is random: neither a disk nor a file system can make them fewer.
void Make(const char* path, std::uint64_t count, double mean_bytes, double sigma,
          std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> size_of(std::log(mean_bytes) - sigma * sigma / 2, sigma);
  constexpr double kSizeMin = 1000;
  const double size_max = mean_bytes * 16;
  std::vector<std::uint64_t> record(static_cast<std::size_t>(size_max) / 8 + 1);
  auto schema = ffrecord::Schema();
  auto writer = ValueOrFail(ffrecord::RecordWriter::Create(path, std::move(schema), {}));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto size = static_cast<std::size_t>(std::clamp(size_of(random), kSizeMin, size_max));
    for (std::size_t word = 0; word <= size / 8; ++word) record[word] = random();
    Check(writer.Write(std::as_bytes(std::span(record)).first(size)));
  }
  const auto summary = ValueOrFail(writer.Close());
  std::printf("{\"records\": %llu}\n", static_cast<unsigned long long>(summary.record_count));
}

void MakeEqual(const char* path, std::uint64_t count, std::size_t size_bytes,
               std::uint32_t alignment_bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> record(size_bytes / 8 + 1);
  ffrecord::RecordWriter::Options options;
  options.alignment_bytes = alignment_bytes;
  auto writer = ValueOrFail(ffrecord::RecordWriter::Create(path, ffrecord::Schema(), options));
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint64_t& word : record) word = random();
    Check(writer.Write(std::as_bytes(std::span(record)).first(size_bytes)));
  }
  const auto summary = ValueOrFail(writer.Close());
  std::printf("{\"records\": %llu}\n", static_cast<unsigned long long>(summary.record_count));
}

// The bytes of the largest batch of the trace.
std::uint64_t BatchSizeMax(std::span<const Read> reads, std::size_t batch) {
  std::uint64_t size_max = 0;
  for (std::size_t first = 0; first < reads.size(); first += batch) {
    std::uint64_t size = 0;
    for (const Read& read : reads.subspan(first, std::min(batch, reads.size() - first)))
      size += read.size_bytes;
    size_max = std::max(size_max, size);
  }
  return size_max;
}

// One batch's memory, written once so that no arm pays for first touch while it is timed.
std::vector<char> TouchedMemory(std::span<const Read> reads, std::size_t batch) {
  return std::vector<char>(BatchSizeMax(reads, batch), '\1');
}

int OpenFile(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) Fail(std::string("cannot open ") + path);
  return fd;
}

template <class ReadOne>
std::uint64_t ForEachBatch(std::span<const Read> reads, std::size_t batch, std::span<char> memory,
                           const ReadOne& read_one) {
  std::uint64_t size = 0;
  for (std::size_t i = 0, at = 0; i < reads.size(); ++i) {
    if (i % batch == 0) at = 0;
    read_one(reads[i], memory.data() + at);
    at += reads[i].size_bytes;
    size += reads[i].size_bytes;
  }
  return size;
}

// User and system, of all threads of the process: those of the kernel that work for a ring too.
double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

using Clock = std::chrono::steady_clock;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double cpu_seconds() const { return CpuSeconds() - cpu_start_; }

 private:
  double cpu_start_ = CpuSeconds();
  Clock::time_point start_ = Clock::now();
};

struct Measured {
  std::uint64_t size_bytes;
  double seconds;
  double cpu_seconds;
};

Measured Stop(const Stopwatch& watch, std::uint64_t size_bytes) {
  return {size_bytes, watch.seconds(), watch.cpu_seconds()};
}

ffrecord::RecordReader OpenReader(const char* path, ffrecord::IoPolicy io, std::uint32_t depth) {
  ffrecord::RecordReader::Options options;
  options.io = io;
  options.queue_depth = depth;
  const std::filesystem::path paths[] = {path};
  return ValueOrFail(ffrecord::RecordReader::Open(paths, options));
}

Measured ReadBatches(const ffrecord::RecordReader& reader, std::span<const std::uint64_t> indices,
                     std::size_t batch) {
  const Stopwatch watch;
  std::uint64_t size = 0;
  for (std::size_t first = 0; first < indices.size(); first += batch) {
    const auto wanted = indices.subspan(first, std::min(batch, indices.size() - first));
    const auto got = ValueOrFail(reader.ReadBatch(wanted));
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got.statuses()[i] != ffrecord::ErrorCode::kOk)
        Fail(reader.Describe(wanted[i], got.statuses()[i]));
      size += static_cast<std::uint64_t>(got.sizes_bytes()[i]);
    }
  }
  return Stop(watch, size);
}

Measured WithReader(const char* path, std::span<const Read> reads, std::size_t batch,
                    ffrecord::IoPolicy io, std::uint32_t depth) {
  const auto reader = OpenReader(path, io, depth);
  std::vector<std::uint64_t> indices(reads.size());
  std::ranges::transform(reads, indices.begin(), &Read::index);
  return ReadBatches(reader, indices, batch);
}

void PreadAll(int fd, char* to, const Read& read) {
  for (std::uint64_t done = 0; done < read.size_bytes;) {
    const auto got = ::pread(fd, to + done, read.size_bytes - done,
                             static_cast<off_t>(read.offset_bytes + done));
    if (got <= 0) Fail("pread failed or met the end of the file");
    done += static_cast<std::uint64_t>(got);
  }
}

// `checked`: hash each record as soon as it is there, the least that a check can cost.
Measured WithPread(const char* path, std::span<const Read> reads, std::size_t batch, bool checked) {
  std::uint64_t hashes = 0;
  auto memory = TouchedMemory(reads, batch);
  const int fd = OpenFile(path);
  const Stopwatch watch;
  const auto size = ForEachBatch(reads, batch, memory, [&](const Read& read, char* to) {
    PreadAll(fd, to, read);
    if (checked) hashes += XXH3_64bits(to, read.size_bytes);
  });
  const Measured measured = Stop(watch, size);
  ::close(fd);
  if (checked && hashes == 0) Fail("every hash was zero");  // Uses them, or they would not be made.
  return measured;
}

// As readers of version 1 did: fresh memory for each record, zlib's CRC-32 of each.
Measured WithMallocAndZlib(const char* path, std::span<const Read> reads, std::size_t batch) {
  const int fd = OpenFile(path);
  std::uint64_t size = 0;
  std::uint64_t sums = 0;
  const Stopwatch watch;
  for (std::size_t first = 0; first < reads.size(); first += batch) {
    std::vector<std::unique_ptr<char, decltype(&std::free)>> records;
    for (const Read& read : reads.subspan(first, std::min(batch, reads.size() - first))) {
      auto* memory = static_cast<char*>(std::malloc(read.size_bytes));
      if (memory == nullptr) Fail("no memory");
      records.emplace_back(memory, &std::free);
      PreadAll(fd, memory, read);
      sums += ::crc32_z(0, reinterpret_cast<const Bytef*>(memory), read.size_bytes);
      size += read.size_bytes;
    }
  }
  const Measured measured = Stop(watch, size);
  ::close(fd);
  if (sums == 0) Fail("every sum was zero");
  return measured;
}

Measured WithMemcpy(const char* path, std::span<const Read> reads, std::size_t batch) {
  auto memory = TouchedMemory(reads, batch);
  const int fd = OpenFile(path);
  const auto file_size = static_cast<std::size_t>(std::filesystem::file_size(path));
  void* mapped = ::mmap(nullptr, file_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (mapped == MAP_FAILED) Fail("mmap failed");
  const auto* bytes = static_cast<const char*>(mapped);
  const Stopwatch watch;
  const auto size = ForEachBatch(reads, batch, memory, [bytes](const Read& read, char* to) {
    std::memcpy(to, bytes + read.offset_bytes, read.size_bytes);
  });
  const Measured measured = Stop(watch, size);
  ::munmap(mapped, file_size);
  ::close(fd);
  return measured;
}

void Print(std::size_t record_count, const Measured& measured) {
  std::printf("{\"records\": %zu, \"bytes\": %llu, \"seconds\": %.9f, \"cpu_seconds\": %.6f}\n",
              record_count, static_cast<unsigned long long>(measured.size_bytes), measured.seconds,
              measured.cpu_seconds);
}

ffrecord::IoPolicy PolicyOf(std::string_view kind) {
  if (kind == "auto") return ffrecord::IoPolicy::kAuto;
  if (kind == "direct") return ffrecord::IoPolicy::kDirect;
  if (kind == "buffered") return ffrecord::IoPolicy::kBuffered;
  Fail("no such arm: " + std::string(kind));
}

int RunRead(char** words) {
  const std::string_view kind = words[0];
  const char* path = words[1];
  const auto reads = LoadTrace(words[2]);
  const std::size_t batch = std::stoull(words[3]);
  const auto depth = static_cast<std::uint32_t>(std::stoul(words[4]));
  Measured measured{};
  if (kind == "pread")
    measured = WithPread(path, reads, batch, false);
  else if (kind == "checked-pread")
    measured = WithPread(path, reads, batch, true);
  else if (kind == "malloc-zlib")
    measured = WithMallocAndZlib(path, reads, batch);
  else if (kind == "memcpy")
    measured = WithMemcpy(path, reads, batch);
  else
    measured = WithReader(path, reads, batch, PolicyOf(kind), depth);
  Print(reads.size(), measured);
  return 0;
}

int RunEpoch(char** words) {
  const std::string_view kind = words[0];
  const char* path = words[1];
  const bool is_random = std::string_view(words[2]) == "random";
  const std::size_t wanted = std::stoull(words[3]);
  const std::size_t batch = std::stoull(words[4]);
  const int warm_ups = std::stoi(words[5]);
  const bool is_copy = kind == "memcpy";
  const auto reader =
      OpenReader(path, is_copy ? ffrecord::IoPolicy::kAuto : PolicyOf(kind), /*depth=*/64);
  std::vector<std::uint64_t> order(reader.record_count());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  if (is_random) std::shuffle(order.begin(), order.end(), std::mt19937_64(std::stoull(words[6])));
  order.resize(std::min(order.size(), wanted));
  // Where equal records lie, but for the few pages of index between them.
  const std::uint64_t stride_bytes = reader.file(0).size_bytes / reader.record_count();
  std::vector<Read> reads;
  if (is_copy)
    for (const std::uint64_t index : order)
      reads.push_back({index, index * stride_bytes, stride_bytes - 56});
  Measured measured{};
  for (int pass = 0; pass <= warm_ups; ++pass)
    measured = is_copy ? WithMemcpy(path, reads, batch) : ReadBatches(reader, order, batch);
  Print(order.size(), measured);
  return 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string_view what = argument_count > 1 ? arguments[1] : "";
  if (what == "make" && argument_count == 7) {
    Make(arguments[2], std::stoull(arguments[3]), std::stod(arguments[4]), std::stod(arguments[5]),
         std::stoull(arguments[6]));
    return 0;
  }
  if (what == "make-equal" && argument_count == 7) {
    MakeEqual(arguments[2], std::stoull(arguments[3]), std::stoull(arguments[4]),
              static_cast<std::uint32_t>(std::stoul(arguments[5])), std::stoull(arguments[6]));
    return 0;
  }
  if (what == "read" && argument_count == 7) return RunRead(arguments + 2);
  if (what == "epoch" && argument_count == 9) return RunEpoch(arguments + 2);
  std::fprintf(stderr, "usage: read-arm make|make-equal|read|epoch ...; see read_arm.cpp\n");
  return 2;
}
