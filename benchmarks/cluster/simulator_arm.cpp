// Seeds of the simulated cluster (tests/cluster), for the benchmark `cluster`.
//
//   simulator-arm FIRST COUNT
//
// Runs the seeds one after the other in one thread. Prints one JSON object.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "../support/arm.h"
#include "tests/cluster/simulation.h"

int main(int argc, char** argv) {
  using namespace ffrecord::bench;
  if (argc != 3) Fail("see the first lines of simulator_arm.cpp");
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const std::uint64_t count = std::strtoull(argv[2], nullptr, 10);
  std::uint64_t events = 0;
  const auto start = Clock::now();
  const std::clock_t cpu = std::clock();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    ffrecord::test::Simulation simulation({.seed = seed});
    if (const auto violation = simulation.Run())
      Fail("seed " + std::to_string(seed) + ": " + *violation);
    events += simulation.counts().events;
  }
  std::printf("{\"seeds\": %llu, \"events\": %llu, \"seconds\": %.9f, \"cpu_seconds\": %.6f}\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(events),
              SecondsSince(start), static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
  return 0;
}
