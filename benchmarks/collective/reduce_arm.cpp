// One arm of the benchmark `rdma` (benchmarks/network/rdma.py says what is compared and how):
//
//   reduce-arm TRANSPORT BYTES REPEATS
//
// Two ranks of this process, which share no memory, sum BYTES of float32 over "tcp" or "rdma" by a
// ring, again and again. Prints the median seconds of one, by the slower rank; joining and the
// first one are not timed.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ffrecord/client/collective.h>

namespace {

using ffrecord::client::CollectiveEngine;
using Clock = std::chrono::steady_clock;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "reduce-arm: %s\n", message.c_str());
  std::exit(4);
}

CollectiveEngine MakeRank(std::uint32_t rank, std::string_view transport) {
  CollectiveEngine::Options options;
  options.algorithm = ffrecord::client::Algorithm::kRing;
  options.shares_memory = false;
  if (transport == "rdma") options.transport = ffrecord::client::GroupTransport::kRdma;
  auto engine = CollectiveEngine::Create(rank, 2, options);
  if (!engine) Fail(engine.error().message);
  return std::move(engine).value();
}

// Seconds of each round.
std::vector<double> Reduce(CollectiveEngine& engine, const std::vector<std::string>& addresses,
                           std::uint64_t count, int repeats) {
  constexpr std::array<std::byte, 16> kSecret{std::byte{1}};
  if (const auto joined = engine.Connect(addresses, kSecret); !joined) Fail(joined.error().message);
  std::vector<float> data(count);
  std::vector<double> seconds;
  for (int round = -1; round < repeats; ++round) {
    std::ranges::fill(data, 1.0F);
    auto together = engine.Barrier();
    if (!together || !engine.Wait(together.value())) Fail("the ranks cannot meet");
    const auto before = Clock::now();
    const auto token = engine.AllReduce(data.data(), count, ffrecord::client::ReduceType::kF32,
                                        ffrecord::client::ReduceOp::kSum);
    if (!token) Fail(token.error().message);
    if (const auto ended = engine.Wait(token.value()); !ended) Fail(ended.error().message);
    const std::chrono::duration<double> took = Clock::now() - before;
    if (std::ranges::any_of(data, [](float sum) { return sum != 2.0F; })) Fail("a sum is wrong");
    if (round >= 0) seconds.push_back(took.count());
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) Fail("TRANSPORT BYTES REPEATS");
  const std::uint64_t count = std::strtoull(argv[2], nullptr, 10) / sizeof(float);
  const int repeats = std::atoi(argv[3]);
  std::vector<CollectiveEngine> engines;
  std::vector<std::string> addresses;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    engines.push_back(MakeRank(rank, argv[1]));
    addresses.push_back(engines.back().address());
  }
  std::array<std::vector<double>, 2> seconds;
  std::thread other([&] { seconds[1] = Reduce(engines[1], addresses, count, repeats); });
  seconds[0] = Reduce(engines[0], addresses, count, repeats);
  other.join();
  std::vector<double>& slower = seconds[0];
  for (std::size_t i = 0; i < slower.size(); ++i) slower[i] = std::max(slower[i], seconds[1][i]);
  std::ranges::sort(slower);
  std::printf("{\"seconds\": %.9f}\n", slower[slower.size() / 2]);
  return 0;
}
