// One arm of one round of the benchmark `daemon` (daemon.py says what is compared and how).
//
//   daemon-arm read LOCATION BATCHES BATCH SEED [BATCHES_PER_S]
//   daemon-arm publish FILE LOCATION
//   daemon-arm memcpy FILE BATCHES BATCH SIZE_BYTES SEED
//
// LOCATION is a file or an ffrecord:// address. With BATCHES_PER_S batches begin at that rate, and
// the time of each counts from when it was due. Prints one JSON object; opening and a first batch
// are not timed.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/record_reader.h>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "daemon-arm: %s\n", message.c_str());
  std::exit(4);
}

template <class T>
T ValueOrFail(ffrecord::Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t ReadOne(const ffrecord::RecordReader& reader, std::size_t batch,
                      std::mt19937_64& random) {
  std::vector<std::uint64_t> indices(batch);
  for (auto& index : indices) index = random() % reader.record_count();
  const auto got = ValueOrFail(reader.ReadBatch(indices));
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got.statuses()[i] != ffrecord::ErrorCode::kOk)
      Fail(reader.Describe(indices[i], got.statuses()[i]));
    size += static_cast<std::uint64_t>(got.sizes_bytes()[i]);
  }
  return size;
}

void Read(const std::string& location, std::size_t batches, std::size_t batch, std::uint64_t seed,
          double batches_per_s) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  std::mt19937_64 random(seed);
  (void)ReadOne(reader, 1, random);
  std::vector<double> times;
  std::uint64_t size = 0;
  const double cpu = CpuSeconds();
  const auto start = Clock::now();
  for (std::size_t i = 0; i < batches; ++i) {
    auto due = Clock::now();
    if (batches_per_s > 0) {
      due = start + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(static_cast<double>(i) / batches_per_s));
      std::this_thread::sleep_until(due);
    }
    size += ReadOne(reader, batch, random);
    times.push_back(Seconds(Clock::now() - due));
  }
  const double seconds = Seconds(Clock::now() - start);
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf(
      "{\"records\": %zu, \"bytes\": %llu, \"seconds\": %.9f, \"cpu_seconds\": %.6f, "
      "\"p50_s\": %.9f, \"p99_s\": %.9f}\n",
      batches * batch, static_cast<unsigned long long>(size), seconds, CpuSeconds() - cpu, at(0.5),
      at(0.99));
}

// Copies pieces from anywhere in a mapped file: what no warm reader can pass.
void Copy(const char* path, std::size_t batches, std::size_t batch, std::size_t size,
          std::uint64_t seed) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) Fail(std::string("cannot open ") + path);
  const auto file_size = static_cast<std::size_t>(status.st_size);
  const void* const file = ::mmap(nullptr, file_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (file == MAP_FAILED || file_size <= size) Fail(std::string("cannot map ") + path);
  std::vector<char> memory(batch * size, '\1');
  std::mt19937_64 random(seed);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < batches * batch; ++i)
    std::memcpy(memory.data() + i % batch * size,
                static_cast<const char*>(file) + random() % (file_size - size), size);
  std::printf("{\"records\": %zu, \"bytes\": %zu, \"seconds\": %.9f}\n", batches * batch,
              batches * batch * size, Seconds(Clock::now() - start));
}

void Publish(const char* file, const char* address) {
  const auto published = ffrecord::client::PublishDataset({{file}}, address, false, {}, {});
  if (!published) Fail(published.error().message);
  std::puts("{}");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (verb == "read" && (argc == 6 || argc == 7)) {
    Read(argv[2], number(3), number(4), number(5), argc == 7 ? std::strtod(argv[6], nullptr) : 0);
  } else if (verb == "publish" && argc == 4) {
    Publish(argv[2], argv[3]);
  } else if (verb == "memcpy" && argc == 7) {
    Copy(argv[2], number(3), number(4), number(5), number(6));
  } else {
    Fail("see the first lines of daemon_arm.cpp");
  }
  return 0;
}
