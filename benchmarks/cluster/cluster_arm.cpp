// Clients of the benchmark `cluster` (cluster.py says what is measured).
//
//   cluster-arm read LOCATION BATCH SEED BATCHES_PER_S
//   cluster-arm open LOCATION COUNT
//   cluster-arm epoch LOCATION RANKS STEPS BATCH SEED
//   cluster-arm publish FILE LOCATION TIMEOUT_S [COPIES DURABILITY]
//   cluster-arm publish-origin ADDRESS LOCATION TIMEOUT_S
//
// `read` reads random batches until its standard input is closed, and prints a line for each: when
// it ended, how long it took, both in nanoseconds of the monotonic clock, and 1 if it failed. With
// BATCHES_PER_S of 0 each begins when the last one has ended. The others print one JSON object:
// `open` opens a dataset so many times and reads one record each time; the ranks of `epoch` are
// processes that begin at one time, and each opens it and reads its share of so many steps;
// `publish-origin` publishes the object at ADDRESS where it is.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/permutation.h>
#include <ffrecord/record_reader.h>

#include "../network/crowd.h"
#include "../support/arm.h"

namespace {

using namespace ffrecord::bench;

bool IsWanted() {
  pollfd closed{STDIN_FILENO, 0, 0};
  return ::poll(&closed, 1, 0) == 0;
}

// False, with a word why on standard error: not all records have come.
bool ReadThese(const ffrecord::RecordReader& reader, const std::vector<std::uint64_t>& indices) {
  const auto got = reader.ReadBatch(indices);
  if (!got) {
    std::fprintf(stderr, "batch: %s\n", got.error().message.c_str());
    return false;
  }
  const auto statuses = got.value().statuses();
  const auto bad = std::ranges::find_if(
      statuses, [](ffrecord::ErrorCode status) { return status != ffrecord::ErrorCode::kOk; });
  if (bad == statuses.end()) return true;
  const auto at = static_cast<std::size_t>(bad - statuses.begin());
  std::fprintf(stderr, "record: %s\n", reader.Describe(indices[at], *bad).c_str());
  return false;
}

bool ReadOne(const ffrecord::RecordReader& reader, std::size_t batch, std::mt19937_64& random) {
  std::vector<std::uint64_t> indices(batch);
  for (auto& index : indices) index = random() % reader.record_count();
  return ReadThese(reader, indices);
}

void Read(const std::string& location, std::size_t batch, std::uint64_t seed,
          double batches_per_s) {
  const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
  std::mt19937_64 random(seed);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto due = Clock::now();
  while (IsWanted()) {
    if (batches_per_s > 0) {
      std::this_thread::sleep_until(due);
      // A late batch puts the next ones off: there is no burst after a fault.
      due = std::max(due, Clock::now()) + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(1 / batches_per_s));
    }
    const long long begin_ns = NowNs();
    const bool is_good = ReadOne(reader, batch, random);
    const long long end_ns = NowNs();
    std::printf("%lld %lld %d\n", end_ns, end_ns - begin_ns, is_good ? 0 : 1);
  }
}

void Open(const std::string& location, std::size_t count) {
  std::mt19937_64 random(1);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
    if (!ReadOne(reader, 1, random)) Fail("a dataset that was opened cannot be read");
  }
  std::printf("{\"seconds\": %.9f}\n", SecondsSince(start));
}

void ReadEpoch(const std::string& location, std::size_t ranks, std::size_t steps, std::size_t batch,
               std::uint64_t seed) {
  const Crowd& crowd = RunCrowd(ranks, [&](Crowd& shared, std::size_t rank) {
    WaitToBegin(shared);
    const auto reader = ValueOrFail(ffrecord::client::OpenDataset({{location}}, {}, {}));
    const auto order = ValueOrFail(ffrecord::Permutation::Make(seed, 0, 0, reader.record_count()));
    if (steps * ranks * batch > reader.record_count()) Fail("more steps than an epoch has");
    std::vector<std::uint64_t> indices(batch);
    for (std::size_t step = 0; step < steps; ++step) {
      order.Fill((step * ranks + rank) * batch, indices);
      if (!ReadThese(reader, indices)) Fail("an epoch cannot be read");
      shared.records.fetch_add(batch);
    }
    const std::int64_t now_ns = NowNs();
    for (std::int64_t seen = shared.end_ns.load(); seen < now_ns;)
      if (shared.end_ns.compare_exchange_weak(seen, now_ns)) break;
  });
  std::printf("{\"records\": %llu, \"seconds\": %.9f}\n",
              static_cast<unsigned long long>(crowd.records.load()),
              static_cast<double>(crowd.end_ns.load() - crowd.begin_ns.load()) * 1e-9);
}

void Publish(const char* file, const char* address, std::uint64_t timeout_s, std::size_t copies,
             std::string_view durability) {
  const std::vector<std::filesystem::path> files(copies, file);
  ffrecord::SessionOptions options;
  options.timeout = std::chrono::seconds(timeout_s);
  const long long begin_ns = NowNs();
  const auto published =
      ffrecord::client::PublishDataset(files, address, true, options, {}, durability);
  if (!published) Fail(published.error().message);
  const long long end_ns = NowNs();
  std::printf("{\"begin_ns\": %lld, \"end_ns\": %lld}\n", begin_ns, end_ns);
}

void PublishOrigin(const char* object, const char* address, std::uint64_t timeout_s) {
  const std::vector<std::string> files{object};
  ffrecord::SessionOptions options;
  options.timeout = std::chrono::seconds(timeout_s);
  Check(ffrecord::client::PublishFromOrigin(files, address, true, options, {}));
  std::puts("{}");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (verb == "read" && argc == 6) {
    Read(argv[2], number(3), number(4), std::strtod(argv[5], nullptr));
  } else if (verb == "open" && argc == 4) {
    Open(argv[2], number(3));
  } else if (verb == "epoch" && argc == 7) {
    ReadEpoch(argv[2], number(3), number(4), number(5), number(6));
  } else if (verb == "publish" && argc == 5) {
    Publish(argv[2], argv[3], number(4), 1, "");
  } else if (verb == "publish" && argc == 7) {
    Publish(argv[2], argv[3], number(4), number(5), argv[6]);
  } else if (verb == "publish-origin" && argc == 5) {
    PublishOrigin(argv[2], argv[3], number(4));
  } else {
    Fail("see the first lines of cluster_arm.cpp");
  }
  return 0;
}
