// Goal: an idle group outlives a silence of its network, and so do pieces that wait for a rank that
// is late; the last stream to a peer has its time when an operation begins after a silence.
// Method: groups of two ranks over a virtual clock and network; all connections fall silent.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "simulation.h"

namespace ffrecord::test {
namespace {

using namespace client;
using namespace std::chrono_literals;

Operation Sum(std::uint64_t sequence, std::uint64_t count, std::uint64_t chunk) {
  return {sequence, nullptr, {.count = count}, ReduceType::kI64, ReduceOp::kSum, chunk};
}

Operation Broadcast(std::uint64_t sequence, std::uint64_t count, std::uint64_t chunk) {
  return {sequence,         nullptr,        {.collective = Collective::kBroadcast, .count = count},
          ReduceType::kI64, ReduceOp::kSum, chunk};
}

// Two ranks with two streams each way, and a time limit of eight seconds: two are granted to a
// stream that is silent.
Simulation::Options Pair(std::vector<Operation> operations) {
  SimConfig config(1);
  config.world_size = 2;
  config.streams = 2;
  config.is_rdma = false;
  config.machines = {};
  config.wire = WireType::kExact;
  config.chunk_size_bytes = 4096;
  config.part_bytes = 4096;
  config.window_bytes = 64 << 10;
  config.latency = 100us;
  config.operations = std::move(operations);
  return {.config = config, .is_scripted = true};
}

void SubmitOnAll(Simulation& simulation) {
  for (const std::uint32_t rank : {0U, 1U}) simulation.rank(rank).Submit();
}

void SilenceAll(Simulation& simulation, SimDuration time) {
  for (const std::uint16_t stream : {std::uint16_t{0}, std::uint16_t{1}})
    simulation.Silence(stream, time);
}

void ExpectRight(Simulation& simulation) {
  const auto violation = simulation.Check();
  EXPECT_FALSE(violation) << *violation;
}

void ExpectLost(Simulation& simulation, std::uint32_t streams) {
  for (const std::uint32_t rank : {0U, 1U})
    EXPECT_EQ(simulation.rank(rank).counters().streams_lost, streams) << "rank " << rank;
}

// Nothing is under way that could be lost.
TEST(CollectiveSilenceTest, AGroupThatIsIdleOutlivesASilenceOfItsNetwork) {
  Simulation simulation(Pair({Sum(0, 100, 4096), Sum(1, 20'000, 4096)}));
  SubmitOnAll(simulation);
  simulation.RunFor(3s);  // The last words about small pieces come after a tick.
  SilenceAll(simulation, 30s);
  simulation.RunFor(30s);
  SubmitOnAll(simulation);
  simulation.RunFor(1s);
  ExpectRight(simulation);
  ExpectLost(simulation, 0);
}

TEST(CollectiveSilenceTest, APieceThatNobodyHasComeToYetOutlivesASilenceToo) {
  Simulation simulation(Pair({Broadcast(0, 2'000, 4096), Sum(1, 20'000, 4096)}));
  simulation.rank(0).Submit();  // Its pieces wait for the other rank, on both streams.
  simulation.RunFor(1s);
  SilenceAll(simulation, 30s);
  simulation.RunFor(30s);
  simulation.rank(1).Submit();
  SubmitOnAll(simulation);
  simulation.RunFor(1s);
  ExpectRight(simulation);
}

// What was under way when the network fell silent comes when the kernel tries again, which is after
// the next operation has begun.
TEST(CollectiveSilenceTest, AnOperationAfterASilenceGrantsTheLastStreamItsTime) {
  Simulation simulation(Pair({Sum(0, 100, 4096), Broadcast(1, 2'000, 4096), Sum(2, 9'000, 4096)}));
  SubmitOnAll(simulation);
  simulation.RunFor(3s);
  // One of the two was lost before, and was not replaced.
  simulation.Lose(0);
  SilenceAll(simulation, 6'200ms);
  simulation.rank(0).Submit();
  simulation.RunFor(5'500ms);
  EXPECT_TRUE(simulation.rank(0).results()[1]);  // It sent what it had to.
  simulation.rank(1).Submit();
  SubmitOnAll(simulation);
  simulation.RunFor(4s);
  ExpectRight(simulation);
}

TEST(CollectiveSilenceTest, AStreamThatIsSilentWhileARankWaitsIsGivenUp) {
  Simulation simulation(Pair({Sum(0, 40'000, 4096)}));
  SubmitOnAll(simulation);
  simulation.Silence(1, 60s);
  simulation.RunFor(12s);
  ExpectRight(simulation);
  ExpectLost(simulation, 1);
}

}  // namespace
}  // namespace ffrecord::test
