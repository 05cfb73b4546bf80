// One arm of one round of the benchmark `daemon` (daemon.py says what is compared and how).
//
//   daemon-arm read LOCATION BATCHES BATCH SEED [BATCHES_PER_S]
//   daemon-arm crowd LOCATION CLIENTS SECONDS BATCH SEED
//   daemon-arm publish FILE LOCATION [COPIES]
//   daemon-arm memcpy FILE BATCHES BATCH SIZE_BYTES SEED
//
// LOCATION is a file or an ffrecord:// address. With BATCHES_PER_S batches begin at that rate, and
// the time of each counts from when it was due. The clients of a crowd are processes, and what they
// read within the same SECONDS counts. Prints one JSON object; opening and a first batch are not
// timed.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
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

// What the processes of a crowd share. Times are nanoseconds of the steady clock.
struct Crowd {
  std::atomic<std::size_t> ready{0};
  std::atomic<std::int64_t> begin_ns{0};  // 0: not yet.
  std::atomic<std::uint64_t> records{0};
};

std::int64_t NowNs() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

void ReadInCrowd(Crowd& crowd, const std::string& location, std::int64_t duration_ns,
                 std::size_t batch, std::uint64_t seed) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  std::mt19937_64 random(seed);
  (void)ReadOne(reader, 1, random);
  crowd.ready.fetch_add(1);
  while (crowd.begin_ns.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::int64_t end_ns = crowd.begin_ns.load() + duration_ns;
  std::uint64_t records = 0;
  for (;; records += batch) {
    (void)ReadOne(reader, batch, random);
    if (NowNs() > end_ns) break;  // Too late to count.
  }
  crowd.records.fetch_add(records);
}

void ReadAsCrowd(const std::string& location, std::size_t clients, double seconds,
                 std::size_t batch, std::uint64_t seed) {
  void* const memory =
      ::mmap(nullptr, sizeof(Crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  auto& crowd = *new (memory) Crowd;
  for (std::size_t i = 0; i < clients; ++i) {
    const pid_t child = ::fork();
    if (child < 0) Fail("cannot fork");
    if (child > 0) continue;
    ReadInCrowd(crowd, location, static_cast<std::int64_t>(seconds * 1e9), batch,
                seed * clients + i);
    std::_Exit(0);
  }
  while (crowd.ready.load() < clients) {
    // A client that has failed has said why.
    if (::waitpid(-1, nullptr, WNOHANG) > 0) Fail("a client has ended early");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  crowd.begin_ns.store(NowNs());
  for (int status = 0; ::wait(&status) > 0;)
    if (status != 0) Fail("a client has failed");
  std::printf("{\"records\": %llu, \"seconds\": %.9f}\n",
              static_cast<unsigned long long>(crowd.records.load()), seconds);
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

void Publish(const char* file, const char* address, std::size_t copies) {
  const std::vector<std::filesystem::path> files(copies, file);
  const auto published = ffrecord::client::PublishDataset(files, address, false, {}, {});
  if (!published) Fail(published.error().message);
  std::puts("{}");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (verb == "read" && (argc == 6 || argc == 7)) {
    Read(argv[2], number(3), number(4), number(5), argc == 7 ? std::strtod(argv[6], nullptr) : 0);
  } else if (verb == "crowd" && argc == 7) {
    ReadAsCrowd(argv[2], number(3), std::strtod(argv[4], nullptr), number(5), number(6));
  } else if (verb == "publish" && (argc == 4 || argc == 5)) {
    Publish(argv[2], argv[3], argc == 5 ? number(4) : 1);
  } else if (verb == "memcpy" && argc == 7) {
    Copy(argv[2], number(3), number(4), number(5), number(6));
  } else {
    Fail("see the first lines of daemon_arm.cpp");
  }
  return 0;
}
