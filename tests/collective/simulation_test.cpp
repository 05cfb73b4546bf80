// Goal: each operation ends, with the bits that the schedule gives or with an error that names the
// rank that failed; no array is touched after that, whatever streams and ranks do.
// Method: many seeds of groups in one thread, over a virtual clock and network.

#include "simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

namespace ffrecord::test {
namespace {

std::uint64_t Number(const char* name, std::uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

TEST(CollectiveSimulationTest, EachOperationEndsRightOrNamesTheRankThatFailed) {
  const std::uint64_t first = Number("FFRECORD_SIM_SEED", 1);
  const std::uint64_t count = Number("FFRECORD_SIM_COUNT", 300);
  Simulation::Counts total;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation({.seed = seed, .is_traced = Number("FFRECORD_SIM_TRACE", 0) != 0});
    const auto violation = simulation.Run();
    ASSERT_FALSE(violation) << "FFRECORD_SIM_SEED=" << seed << ": " << *violation;
    const auto& counts = simulation.counts();
    total.events += counts.events;
    total.operations += counts.operations;
    total.failed += counts.failed;
    total.streams_lost += counts.streams_lost;
    total.faults += counts.faults;
    total.failures += counts.failures;
  }
  std::cout << count << " seeds: " << total.events << " events, " << total.operations
            << " results, " << total.failed << " operations failed, " << total.streams_lost
            << " streams lost, " << total.faults << " faults, " << total.failures
            << " ranks failed\n";
  EXPECT_GT(total.operations, count);
}

}  // namespace
}  // namespace ffrecord::test
