// One arm of the benchmark `rdma` (benchmarks/network/rdma.py says what is compared and how):
//
//   reduce-arm TRANSPORT BYTES REPEATS RANK HOST FOLDER
//
// Rank RANK of two, listening on HOST, sums BYTES of float32 over "tcp" or "rdma" by a ring, again
// and again. The ranks tell each other their addresses by files in FOLDER, which they share and
// which is theirs alone. Prints the median seconds of one; joining and the first one are not timed.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ffrecord/client/collective.h>

namespace {

using ffrecord::client::CollectiveEngine;
using Clock = std::chrono::steady_clock;

// In emulation a program takes seconds to begin.
constexpr std::chrono::seconds kExchangeMax{120};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "reduce-arm: %s\n", message.c_str());
  std::exit(4);
}

CollectiveEngine MakeRank(std::uint32_t rank, std::string_view transport, const char* host) {
  CollectiveEngine::Options options;
  options.listen_host = host;
  options.algorithm = ffrecord::client::Algorithm::kRing;
  options.shares_memory = false;
  if (transport == "rdma") options.transport = ffrecord::client::GroupTransport::kRdma;
  auto engine = CollectiveEngine::Create(rank, 2, options);
  if (!engine) Fail(engine.error().message);
  return std::move(engine).value();
}

// The addresses of both ranks, once the other has told its own.
std::vector<std::string> Exchange(const std::filesystem::path& folder, std::uint32_t rank,
                                  const std::string& own) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path half = folder / ("half-" + std::to_string(rank));
  std::ofstream(half) << own;
  std::filesystem::rename(half, folder / std::to_string(rank));
  const auto end = Clock::now() + kExchangeMax;
  std::vector<std::string> addresses;
  for (std::uint32_t each = 0; each < 2; ++each) {
    const std::filesystem::path file = folder / std::to_string(each);
    while (!std::filesystem::exists(file)) {
      if (Clock::now() > end) Fail("the other rank has not come");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::ifstream stream(file);
    addresses.emplace_back(std::istreambuf_iterator<char>(stream),
                           std::istreambuf_iterator<char>());
  }
  return addresses;
}

double ReduceOnce(CollectiveEngine& engine, std::vector<float>& data) {
  std::ranges::fill(data, 1.0F);
  auto together = engine.Barrier();
  if (!together || !engine.Wait(together.value())) Fail("the ranks cannot meet");
  const auto before = Clock::now();
  const auto token = engine.AllReduce(data.data(), data.size(), ffrecord::client::ReduceType::kF32,
                                      ffrecord::client::ReduceOp::kSum);
  if (!token) Fail(token.error().message);
  if (const auto ended = engine.Wait(token.value()); !ended) Fail(ended.error().message);
  const std::chrono::duration<double> took = Clock::now() - before;
  if (std::ranges::any_of(data, [](float sum) { return sum != 2.0F; })) Fail("a sum is wrong");
  return took.count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) Fail("TRANSPORT BYTES REPEATS RANK HOST FOLDER");
  const int repeats = std::atoi(argv[3]);
  const auto rank = static_cast<std::uint32_t>(std::atoi(argv[4]));
  std::vector<float> data(std::strtoull(argv[2], nullptr, 10) / sizeof(float));

  CollectiveEngine engine = MakeRank(rank, argv[1], argv[5]);
  constexpr std::array<std::byte, 16> kSecret{std::byte{1}};
  const auto addresses = Exchange(argv[6], rank, engine.address());
  if (const auto joined = engine.Connect(addresses, kSecret); !joined) Fail(joined.error().message);
  ReduceOnce(engine, data);
  std::vector<double> seconds;
  for (int round = 0; round < repeats; ++round) seconds.push_back(ReduceOnce(engine, data));
  // Both leave together: who ends first would be gone for the other.
  auto together = engine.Barrier();
  if (!together || !engine.Wait(together.value())) Fail("the ranks cannot part");

  std::ranges::sort(seconds);
  std::printf("{\"seconds\": %.9f}\n", seconds[seconds.size() / 2]);
  return 0;
}
