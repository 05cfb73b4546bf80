// One arm of one round of the benchmark `daemon` (daemon.py says what is compared and how).
//
//   daemon-arm read LOCATION BATCHES BATCH SEED [BATCHES_PER_S]
//   daemon-arm crowd LOCATION CLIENTS SECONDS BATCH SEED [IN_FLIGHT]
//   daemon-arm ranks LOCATION RANKS STEPS BATCH SEED HINT
//   daemon-arm publish FILE LOCATION [COPIES]
//   daemon-arm memcpy FILE BATCHES BATCH SIZE_BYTES SEED
//   daemon-arm exchange BATCHES BATCH SIZE_BYTES [BATCHES_PER_S]
//   daemon-arm exchange-crowd CLIENTS SECONDS BATCH SIZE_BYTES
//
// LOCATION is a file or an ffrecord:// address. With BATCHES_PER_S batches begin at that rate, and
// the time of each counts from when it was due. The clients of a crowd are processes, and what they
// read within the same SECONDS counts, of the last batch its part. With IN_FLIGHT each keeps so
// many batches under way, as a loader does; else it waits for each. Ranks are processes too: each
// reads its share of STEPS steps of an epoch in the order of SEED; HINT is 1 if it sends a prefetch
// hint first. Prints one JSON object; opening and a first batch are not timed.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/permutation.h>
#include <ffrecord/record_reader.h>

#include "../support/arm.h"
#include "bare_exchange.h"
#include "crowd.h"

namespace {

using namespace ffrecord::bench;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The bytes of a batch, all of whose records have come.
std::uint64_t SizeOf(const ffrecord::RecordReader& reader, const ffrecord::Batch& got,
                     std::span<const std::uint64_t> indices) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got.statuses()[i] != ffrecord::ErrorCode::kOk)
      Fail(reader.Describe(indices[i], got.statuses()[i]));
    size += static_cast<std::uint64_t>(got.sizes_bytes()[i]);
  }
  return size;
}

std::uint64_t ReadThese(const ffrecord::RecordReader& reader,
                        std::span<const std::uint64_t> indices) {
  return SizeOf(reader, ValueOrFail(reader.ReadBatch(indices)), indices);
}

std::vector<std::uint64_t> RandomIndices(const ffrecord::RecordReader& reader, std::size_t batch,
                                         std::mt19937_64& random) {
  std::vector<std::uint64_t> indices(batch);
  for (auto& index : indices) index = random() % reader.record_count();
  return indices;
}

std::uint64_t ReadOne(const ffrecord::RecordReader& reader, std::size_t batch,
                      std::mt19937_64& random) {
  return ReadThese(reader, RandomIndices(reader, batch, random));
}

// Random batches, several of them under way, taken in their order.
class QueuedBatches {
 public:
  QueuedBatches(const ffrecord::RecordReader& reader, std::size_t batch, std::uint32_t in_flight,
                std::mt19937_64& random)
      : reader_(reader),
        batch_(batch),
        in_flight_(in_flight),
        random_(random),
        queue_(ValueOrFail(reader.OpenQueue({.batches_in_flight = in_flight, .in_order = true}))) {}

  void TakeOne() {
    while (wanted_.size() < in_flight_) {
      wanted_.push_back(RandomIndices(reader_, batch_, random_));
      Check(queue_.Submit(wanted_.back(), 0));
    }
    const auto done = ValueOrFail(queue_.Poll(ffrecord::BatchQueue::kForever));
    (void)SizeOf(reader_, ValueOrFail(std::move(done->batch)), wanted_.front());
    wanted_.pop_front();
  }

 private:
  const ffrecord::RecordReader& reader_;
  const std::size_t batch_;
  const std::uint32_t in_flight_;
  std::mt19937_64& random_;
  std::deque<std::vector<std::uint64_t>> wanted_;
  ffrecord::BatchQueue queue_;
};

// Makes that many batches, each with its size for answer, one after the other or at a rate, and
// prints how long they took.
template <class MakeOne>
void PrintTimes(std::size_t batches, std::size_t batch, double batches_per_s,
                const MakeOne& make_one) {
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
    size += make_one();
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

void Read(const std::string& location, std::size_t batches, std::size_t batch, std::uint64_t seed,
          double batches_per_s) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  std::mt19937_64 random(seed);
  (void)ReadOne(reader, 1, random);
  PrintTimes(batches, batch, batches_per_s, [&] { return ReadOne(reader, batch, random); });
}

void Exchange(std::size_t batches, std::size_t batch, std::size_t size, double batches_per_s) {
  const BareServer server(1, batch, size);
  BareClient client(server, batch, size);
  for (int i = 0; i < 20; ++i) (void)client.MakeOne();  // Until the kernel's windows have grown.
  PrintTimes(batches, batch, batches_per_s, [&] { return client.MakeOne(); });
}

void ReadInCrowd(Crowd& crowd, const std::string& location, std::int64_t duration_ns,
                 std::size_t batch, std::uint64_t seed, std::uint32_t in_flight) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  std::mt19937_64 random(seed);
  if (in_flight == 0)
    return CountInCrowd(crowd, duration_ns, batch, [&] { (void)ReadOne(reader, batch, random); });
  QueuedBatches batches(reader, batch, in_flight, random);
  // Until the clients wait for one another, batches may complete that take no part of the time.
  CountInCrowd(
      crowd, duration_ns, batch, [&] { batches.TakeOne(); }, duration_ns);
}

void ReadAsRank(Crowd& crowd, const std::string& location, ffrecord::EpochPlan plan, bool hints) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  if (plan.end > reader.record_count()) Fail("more steps than an epoch has");
  const auto order =
      ValueOrFail(ffrecord::Permutation::Make(plan.seed, 0, 0, reader.record_count()));
  const std::size_t batch = plan.step_size / plan.world_size;
  WaitToBegin(crowd);
  std::unique_ptr<ffrecord::PrefetchHint> hint;
  if (hints) hint = ValueOrFail(reader.HintEpoch(plan));
  if (hints && !hint) Fail("the daemon takes no plans");
  std::vector<std::uint64_t> indices(batch);
  for (std::uint64_t first = 0; first < plan.end; first += plan.step_size) {
    order.Fill(first + plan.rank * batch, indices);
    crowd.bytes.fetch_add(ReadThese(reader, indices));
    crowd.records.fetch_add(batch);
  }
  const std::int64_t now_ns = NowNs();
  for (std::int64_t seen = crowd.end_ns.load(); seen < now_ns;)
    if (crowd.end_ns.compare_exchange_weak(seen, now_ns)) break;
}

void PrintRate(const Crowd& crowd, double seconds) {
  std::printf("{\"records\": %llu, \"seconds\": %.9f}\n",
              static_cast<unsigned long long>(crowd.records.load()), seconds);
}

void ReadAsCrowd(const std::string& location, std::size_t clients, double seconds,
                 std::size_t batch, std::uint64_t seed, std::uint32_t in_flight) {
  Crowd& crowd = RunCrowd(clients, [&](Crowd& shared, std::size_t i) {
    ReadInCrowd(shared, location, static_cast<std::int64_t>(seconds * 1e9), batch,
                seed * clients + i, in_flight);
  });
  PrintRate(crowd, seconds);
}

void ExchangeInCrowd(std::size_t clients, double seconds, std::size_t batch, std::size_t size) {
  const std::int64_t duration_ns = static_cast<std::int64_t>(seconds * 1e9);
  const BareServer server(clients, batch, size);
  PrintRate(RunCrowd(clients,
                     [&](Crowd& shared, std::size_t) {
                       BareClient client(server, batch, size);
                       CountInCrowd(shared, duration_ns, batch, [&] { (void)client.MakeOne(); });
                     }),
            seconds);
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

void ReadAsRanks(const std::string& location, std::size_t ranks, std::size_t steps,
                 std::size_t batch, std::uint64_t seed, bool hints) {
  Crowd& crowd = RunCrowd(ranks, [&](Crowd& shared, std::size_t i) {
    ffrecord::EpochPlan plan;
    plan.seed = seed;
    plan.end = steps * batch * ranks;
    plan.step_size = static_cast<std::uint32_t>(batch * ranks);
    plan.world_size = static_cast<std::uint32_t>(ranks);
    plan.rank = static_cast<std::uint32_t>(i);
    ReadAsRank(shared, location, plan, hints);
  });
  std::printf("{\"records\": %llu, \"bytes\": %llu, \"seconds\": %.9f}\n",
              static_cast<unsigned long long>(crowd.records.load()),
              static_cast<unsigned long long>(crowd.bytes.load()),
              static_cast<double>(crowd.end_ns.load() - crowd.begin_ns.load()) * 1e-9);
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
  } else if (verb == "crowd" && (argc == 7 || argc == 8)) {
    ReadAsCrowd(argv[2], number(3), std::strtod(argv[4], nullptr), number(5), number(6),
                argc == 8 ? static_cast<std::uint32_t>(number(7)) : 0);
  } else if (verb == "ranks" && argc == 8) {
    ReadAsRanks(argv[2], number(3), number(4), number(5), number(6), number(7) == 1);
  } else if (verb == "publish" && (argc == 4 || argc == 5)) {
    Publish(argv[2], argv[3], argc == 5 ? number(4) : 1);
  } else if (verb == "memcpy" && argc == 7) {
    Copy(argv[2], number(3), number(4), number(5), number(6));
  } else if (verb == "exchange" && (argc == 5 || argc == 6)) {
    Exchange(number(2), number(3), number(4), argc == 6 ? std::strtod(argv[5], nullptr) : 0);
  } else if (verb == "exchange-crowd" && argc == 6) {
    ExchangeInCrowd(number(2), std::strtod(argv[3], nullptr), number(4), number(5));
  } else {
    Fail("see the first lines of daemon_arm.cpp");
  }
  return 0;
}
