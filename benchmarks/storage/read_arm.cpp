// One arm of one round of the benchmark `read` (read.py says what is compared and how).
//
//   read-arm make FILE COUNT MEAN_BYTES SIGMA SEED        sizes are log-normal
//   read-arm make-equal FILE COUNT SIZE ALIGNMENT SEED    sizes are equal
//   read-arm serve KIND FILE BATCH DEPTH                  answers each line of input, a TRACE
//   read-arm epoch KIND FILE ORDER RECORDS BATCH WARM_UPS SEED
//   read-arm files FOLDER RECORDS BATCH SEED              all files of the folder as one list
//
// KIND is auto, direct, direct-unchecked, direct-pair, direct-queue, buffered, pread,
// checked-pread, malloc-zlib, memcpy or, with `epoch`, lookup; ORDER is random, sequential or
// window.
//
// TRACE holds three u64 for each record: index, offset, size. `serve` stays until its input ends,
// so that what a process has to do once, such as touching mapped pages for the first time, is not
// in each round. `epoch` reads the first RECORDS of an order of all records, WARM_UPS times untimed
// and then once. Prints JSON. Only the reads are timed, not opening and not start-up; cpu_seconds
// are those of all threads.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
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

ffrecord::RecordReader OpenReader(const char* path, ffrecord::IoPolicy io, std::uint32_t depth,
                                  bool checks = true) {
  ffrecord::RecordReader::Options options;
  options.io = io;
  options.queue_depth = depth;
  options.verify_checksums = checks;
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

void PreadAll(int fd, char* to, const Read& read) {
  for (std::uint64_t done = 0; done < read.size_bytes;) {
    const auto got = ::pread(fd, to + done, read.size_bytes - done,
                             static_cast<off_t>(read.offset_bytes + done));
    if (got <= 0) Fail("pread failed or met the end of the file");
    done += static_cast<std::uint64_t>(got);
  }
}

// One way to read, opened once.
class Way {
 public:
  virtual ~Way() = default;
  virtual Measured Run(std::span<const Read> reads, std::size_t batch) = 0;
};

class Reader final : public Way {
 public:
  explicit Reader(ffrecord::RecordReader reader) : reader_(std::move(reader)) {}
  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    std::vector<std::uint64_t> indices(reads.size());
    std::ranges::transform(reads, indices.begin(), &Read::index);
    return ReadBatches(reader_, indices, batch);
  }

 private:
  ffrecord::RecordReader reader_;
};

// One thread, several batches in flight on one ring.
class Queue final : public Way {
 public:
  explicit Queue(ffrecord::RecordReader reader)
      : reader_(std::move(reader)), queue_(ValueOrFail(reader_.OpenQueue({.one_thread = true}))) {}
  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    std::vector<std::uint64_t> indices(reads.size());
    std::ranges::transform(reads, indices.begin(), &Read::index);
    const Stopwatch watch;
    std::uint64_t size = 0;
    std::size_t next = 0;
    while (next < indices.size() || queue_.size() > 0) {
      for (; next < indices.size() && queue_.size() < kBatchesInFlight; next += batch) {
        const auto wanted = std::span(indices).subspan(next, std::min(batch, reads.size() - next));
        if (!queue_.Submit(wanted, next)) Fail("a batch was refused");
      }
      const auto done = ValueOrFail(queue_.Poll(ffrecord::BatchQueue::kForever));
      const ffrecord::Batch& got = ValueOrFail(std::move(done->batch));
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (got.statuses()[i] != ffrecord::ErrorCode::kOk)
          Fail(reader_.Describe(indices[done->token + i], got.statuses()[i]));
        size += static_cast<std::uint64_t>(got.sizes_bytes()[i]);
      }
    }
    return Stop(watch, size);
  }

 private:
  static constexpr std::size_t kBatchesInFlight = 4;
  ffrecord::RecordReader reader_;
  ffrecord::BatchQueue queue_;
};

// Two threads of one processor take turns with the batches, each with half of the depth, as a
// loader with two of them does: while one batch ends, the other keeps the device busy.
class Pair final : public Way {
 public:
  Pair(const char* path, std::uint32_t depth)
      : readers_{OpenReader(path, ffrecord::IoPolicy::kDirect, depth / 2),
                 OpenReader(path, ffrecord::IoPolicy::kDirect, depth / 2)} {
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof all, &all);
    cpu_set_t first;
    CPU_ZERO(&first);
    for (unsigned cpu = 0; CPU_COUNT(&first) == 0; ++cpu)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &first);
    if (::sched_setaffinity(0, sizeof first, &first) != 0) Fail("cannot stay on one processor");
  }
  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    std::array<std::vector<std::uint64_t>, 2> indices;
    for (std::size_t i = 0; i < reads.size(); ++i) indices[i / batch % 2].push_back(reads[i].index);
    std::uint64_t other = 0;
    const Stopwatch watch;
    std::thread thread([&] { other = ReadBatches(readers_[1], indices[1], batch).size_bytes; });
    const std::uint64_t mine = ReadBatches(readers_[0], indices[0], batch).size_bytes;
    thread.join();
    return Stop(watch, mine + other);
  }

 private:
  std::array<ffrecord::RecordReader, 2> readers_;
};

// `checked`: hash each record as soon as it is there, the least that a check can cost.
class Pread final : public Way {
 public:
  Pread(const char* path, bool checked) : fd_(OpenFile(path)), checked_(checked) {}
  ~Pread() override { ::close(fd_); }
  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    std::uint64_t hashes = 0;
    auto memory = TouchedMemory(reads, batch);
    const Stopwatch watch;
    const auto size = ForEachBatch(reads, batch, memory, [&](const Read& read, char* to) {
      PreadAll(fd_, to, read);
      if (checked_) hashes += XXH3_64bits(to, read.size_bytes);
    });
    const Measured measured = Stop(watch, size);
    if (checked_ && hashes == 0) Fail("every hash was zero");  // Used, else it might not be made.
    return measured;
  }

 private:
  const int fd_;
  const bool checked_;
};

// As readers of version 1 did: fresh memory for each record, zlib's CRC-32 of each.
class MallocAndZlib final : public Way {
 public:
  explicit MallocAndZlib(const char* path) : fd_(OpenFile(path)) {}
  ~MallocAndZlib() override { ::close(fd_); }
  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    std::uint64_t size = 0;
    std::uint64_t sums = 0;
    const Stopwatch watch;
    for (std::size_t first = 0; first < reads.size(); first += batch) {
      std::vector<std::unique_ptr<char, decltype(&std::free)>> records;
      for (const Read& read : reads.subspan(first, std::min(batch, reads.size() - first))) {
        auto* memory = static_cast<char*>(std::malloc(read.size_bytes));
        if (memory == nullptr) Fail("no memory");
        records.emplace_back(memory, &std::free);
        PreadAll(fd_, memory, read);
        sums += ::crc32_z(0, reinterpret_cast<const Bytef*>(memory), read.size_bytes);
        size += read.size_bytes;
      }
    }
    const Measured measured = Stop(watch, size);
    if (sums == 0) Fail("every sum was zero");
    return measured;
  }

 private:
  const int fd_;
};

// Out of the mapped file. `looked_up`: each record is first found in a table of all of them, as
// large as an index and laid out like one, and then hashed: the least that a reader can do.
class Memcpy final : public Way {
 public:
  Memcpy(const char* path, std::vector<Read> table)
      : size_bytes_(std::filesystem::file_size(path)), table_(std::move(table)) {
    const int fd = OpenFile(path);
    mapped_ = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (mapped_ == MAP_FAILED) Fail("mmap failed");
    ::close(fd);
  }
  ~Memcpy() override { ::munmap(mapped_, size_bytes_); }

  Measured Run(std::span<const Read> reads, std::size_t batch) override {
    auto memory = TouchedMemory(reads, batch);
    const auto* bytes = static_cast<const char*>(mapped_);
    if (!table_.empty()) return LookUp(reads, batch, memory);
    const Stopwatch watch;
    const auto size = ForEachBatch(reads, batch, memory, [bytes](const Read& read, char* to) {
      std::memcpy(to, bytes + read.offset_bytes, read.size_bytes);
    });
    return Stop(watch, size);
  }

 private:
  // Every line of it: the last one too, as what lies anywhere may begin in the middle of a line.
  static void PrefetchAll(const void* first, std::size_t size_bytes) {
    const auto* const bytes = static_cast<const char*>(first);
    for (std::size_t at = 0; at < size_bytes; at += 64) __builtin_prefetch(bytes + at);
    __builtin_prefetch(bytes + size_bytes - 1);
  }

  Measured LookUp(std::span<const Read> reads, std::size_t batch, std::vector<char>& memory) {
    constexpr std::size_t kAhead = 16;
    const auto* bytes = static_cast<const char*>(mapped_);
    std::vector<std::uint64_t> indices(reads.size());
    std::ranges::transform(reads, indices.begin(), &Read::index);
    std::vector<Read> found(batch);
    std::uint64_t size = 0;
    std::uint64_t hashes = 0;
    const Stopwatch watch;
    for (std::size_t first = 0; first < indices.size(); first += batch) {
      const auto wanted =
          std::span(indices).subspan(first, std::min(batch, indices.size() - first));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (i + kAhead < wanted.size()) PrefetchAll(&table_[wanted[i + kAhead]], sizeof(Read));
        found[i] = table_[wanted[i]];
      }
      char* to = memory.data();
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (i + kAhead < wanted.size())
          PrefetchAll(bytes + found[i + kAhead].offset_bytes, found[i + kAhead].size_bytes);
        std::memcpy(to, bytes + found[i].offset_bytes, found[i].size_bytes);
        hashes += XXH3_64bits_withSeed(to, found[i].size_bytes, found[i].index);
        to += found[i].size_bytes;
        size += found[i].size_bytes;
      }
    }
    const Measured measured = Stop(watch, size);
    if (hashes == 0) Fail("every hash was zero");
    return measured;
  }

  const std::uint64_t size_bytes_;
  const std::vector<Read> table_;
  void* mapped_;
};

void Print(std::size_t record_count, const Measured& measured) {
  std::printf("{\"records\": %zu, \"bytes\": %llu, \"seconds\": %.9f, \"cpu_seconds\": %.6f}\n",
              record_count, static_cast<unsigned long long>(measured.size_bytes), measured.seconds,
              measured.cpu_seconds);
  std::fflush(stdout);
}

ffrecord::IoPolicy PolicyOf(std::string_view kind) {
  if (kind == "auto") return ffrecord::IoPolicy::kAuto;
  if (kind == "direct") return ffrecord::IoPolicy::kDirect;
  if (kind == "buffered") return ffrecord::IoPolicy::kBuffered;
  Fail("no such arm: " + std::string(kind));
}

std::unique_ptr<Way> MakeWay(std::string_view kind, const char* path, std::uint32_t depth) {
  if (kind == "pread") return std::make_unique<Pread>(path, false);
  if (kind == "checked-pread") return std::make_unique<Pread>(path, true);
  if (kind == "malloc-zlib") return std::make_unique<MallocAndZlib>(path);
  if (kind == "memcpy") return std::make_unique<Memcpy>(path, std::vector<Read>());
  if (kind == "direct-pair") return std::make_unique<Pair>(path, depth);
  if (kind == "direct-queue")
    return std::make_unique<Queue>(OpenReader(path, ffrecord::IoPolicy::kDirect, depth));
  if (kind == "direct-unchecked")
    return std::make_unique<Reader>(OpenReader(path, ffrecord::IoPolicy::kDirect, depth, false));
  return std::make_unique<Reader>(OpenReader(path, PolicyOf(kind), depth));
}

int Serve(char** words) {
  const std::size_t batch = std::stoull(words[2]);
  const auto depth = static_cast<std::uint32_t>(std::stoul(words[3]));
  const auto way = MakeWay(words[0], words[1], depth);
  for (std::string trace; std::getline(std::cin, trace);) {
    const auto reads = LoadTrace(trace.c_str());
    Print(reads.size(), way->Run(reads, batch));
  }
  return 0;
}

// Where equal records lie, but for the few pages of index between them.
std::vector<Read> EqualRecords(const ffrecord::RecordReader& reader,
                               std::span<const std::uint64_t> indices) {
  const std::uint64_t stride_bytes = reader.file(0).size_bytes / reader.record_count();
  std::vector<Read> reads;
  for (const std::uint64_t index : indices)
    reads.push_back({index, index * stride_bytes, stride_bytes - 56});
  return reads;
}

std::vector<std::uint64_t> UpTo(std::uint64_t count, std::uint64_t first = 0) {
  std::vector<std::uint64_t> indices(count);
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

// `wanted` of `count` records. "window": kWindow neighbours, shuffled again and again.
std::vector<std::uint64_t> OrderOf(std::string_view how, std::uint64_t count, std::uint64_t wanted,
                                   std::mt19937_64 random) {
  constexpr std::uint64_t kWindow = 10'000;
  if (how == "sequential") return UpTo(std::min(wanted, count));
  std::vector<std::uint64_t> order;
  if (how == "window") {
    auto window = UpTo(std::min(kWindow, count), random() % (count - std::min(kWindow, count) + 1));
    while (order.size() < wanted) {
      std::shuffle(window.begin(), window.end(), random);
      order.insert(order.end(), window.begin(), window.end());
    }
  } else if (how == "random" && wanted >= count) {
    order = UpTo(count);
    std::shuffle(order.begin(), order.end(), random);
  } else if (how == "random") {
    while (order.size() < wanted) order.push_back(random() % count);
  } else {
    Fail("no such order: " + std::string(how));
  }
  return order;
}

// Opens all files of a folder, and reads RECORDS at random twice.
int RunFiles(char** words) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(words[0]))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  const std::size_t batch = std::stoull(words[2]);
  const Stopwatch opening;
  const auto reader = ValueOrFail(ffrecord::RecordReader::Open(paths, {}));
  const double open_seconds = opening.seconds();
  const auto order = OrderOf("random", reader.record_count(), std::stoull(words[1]),
                             std::mt19937_64(std::stoull(words[3])));
  const auto first = ReadBatches(reader, order, batch);
  const auto second = ReadBatches(reader, order, batch);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"files\": %zu, \"records\": %zu, \"open_seconds\": %.6f, \"first_seconds\": %.6f, "
      "\"second_seconds\": %.6f, \"peak_bytes\": %ld}\n",
      paths.size(), order.size(), open_seconds, first.seconds, second.seconds,
      usage.ru_maxrss * 1024);
  return 0;
}

int RunEpoch(char** words) {
  const std::string_view kind = words[0];
  const char* path = words[1];
  const std::uint64_t wanted = std::stoull(words[3]);
  const std::size_t batch = std::stoull(words[4]);
  const int warm_ups = std::stoi(words[5]);
  const bool is_copy = kind == "memcpy" || kind == "lookup";
  constexpr std::uint32_t kDepth = 64;
  auto reader = OpenReader(path, is_copy ? ffrecord::IoPolicy::kAuto : PolicyOf(kind), kDepth);
  const auto order = EqualRecords(reader, OrderOf(words[2], reader.record_count(), wanted,
                                                  std::mt19937_64(std::stoull(words[6]))));
  std::vector<Read> table;
  if (kind == "lookup") table = EqualRecords(reader, UpTo(reader.record_count()));
  std::unique_ptr<Way> way;
  if (is_copy)
    way = std::make_unique<Memcpy>(path, std::move(table));
  else
    way = std::make_unique<Reader>(std::move(reader));
  Measured measured{};
  for (int pass = 0; pass <= warm_ups; ++pass) measured = way->Run(order, batch);
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
  if (what == "serve" && argument_count == 6) return Serve(arguments + 2);
  if (what == "epoch" && argument_count == 9) return RunEpoch(arguments + 2);
  if (what == "files" && argument_count == 6) return RunFiles(arguments + 2);
  std::fprintf(stderr, "usage: read-arm make|make-equal|serve|epoch|files ...; see read_arm.cpp\n");
  return 2;
}
