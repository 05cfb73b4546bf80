// Goal: a cluster loses nothing that it has acknowledged, whatever fails, and heals by itself.
// Method: many seeds of the simulator; each draws clients, faults and their times.

#include "simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace ffrecord::test {
namespace {

std::uint64_t Number(const char* name, std::uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

TEST(SimulationTest, NothingThatWasAcknowledgedIsLostAndEverythingHeals) {
  const std::uint64_t first = Number("FFRECORD_SIM_SEED", 1);
  const std::uint64_t count = Number("FFRECORD_SIM_COUNT", 200);
  Simulation::Counts total;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation({.seed = seed, .is_traced = Number("FFRECORD_SIM_TRACE", 0) != 0});
    const auto violation = simulation.Run();
    ASSERT_FALSE(violation) << "FFRECORD_SIM_SEED=" << seed << ": " << *violation;
    const auto& counts = simulation.counts();
    total.events += counts.events;
    total.published += counts.published;
    total.removed += counts.removed;
    total.refused += counts.refused;
    total.unresolved += counts.unresolved;
    total.faults += counts.faults;
    total.pulls += counts.pulls;
    total.drops += counts.drops;
    total.map_changes += counts.map_changes;
    total.rebuilds += counts.rebuilds;
    total.lists += counts.lists;
    total.looks += counts.looks;
    total.looks_refused += counts.looks_refused;
    total.over_upload_quota += counts.over_upload_quota;
  }
  std::cout << count << " seeds: " << total.events << " events, " << total.published
            << " published, " << total.removed << " removed, " << total.refused << " refused, "
            << total.unresolved << " unresolved, " << total.faults << " faults, " << total.pulls
            << " pulls, " << total.rebuilds << " computed, " << total.lists
            << " lists written out, " << total.drops << " drops, " << total.map_changes
            << " slot maps, " << total.looks << " names told, " << total.looks_refused
            << " not told, " << total.over_upload_quota << " extents over a quota\n";
  EXPECT_GT(total.looks, count);
  EXPECT_GT(total.published, count);
}

TEST(SimulationTest, AStoreThatIsPutBackToAnOlderStateLosesNothing) {
  const std::uint64_t first = Number("FFRECORD_SIM_SEED", 1);
  const std::uint64_t count = std::max<std::uint64_t>(Number("FFRECORD_SIM_COUNT", 200) / 40, 2);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(
        {.seed = seed, .is_restored = true, .is_traced = Number("FFRECORD_SIM_TRACE", 0) != 0});
    const auto violation = simulation.Run();
    ASSERT_FALSE(violation) << "FFRECORD_SIM_SEED=" << seed << ": " << *violation;
  }
}

}  // namespace
}  // namespace ffrecord::test
