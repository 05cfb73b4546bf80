// Goal: each operation of a group over the network is a phase of its process, from its submission
// to its end, also if the group breaks; barriers, and operations within one machine, are none.
// Method: groups of two ranks in this process, and its counters.

#include <ffrecord/runtime.h>

#include "collective_group.h"

namespace ffrecord::client {
namespace {

using namespace ranks;

class CollectivePhasesTest : public testing::Test {
 protected:
  void SetUp() override {
    // A chunk that is held would show.
    ASSERT_TRUE(StartPacing({.checkpoint = {0, 60'000ms}}));
  }
  ~CollectivePhasesTest() override { StopPacing(); }

  static void ExpectNoOpenPhase() {
    AwaitTurn(TrafficClass::kCheckpoint, 1);
    const auto counters = GetPacingCounters();
    EXPECT_EQ(counters.classes[static_cast<std::size_t>(TrafficClass::kCheckpoint)].held_chunks,
              0U);
    EXPECT_EQ(counters.unmatched_ends, 0U);
  }
};

TEST_F(CollectivePhasesTest, AnOperationIsAPhaseOfItsBytesAndABarrierIsNone) {
  Group group(2, {}, Where::kApart);
  group.Connect();
  const auto before = GetPacingCounters();
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    std::vector<float> data(1000, 1);
    EXPECT_TRUE(AllReduce(engine, data));
    EXPECT_TRUE(engine.Wait(engine.Barrier().value()));
  });
  const auto counters = GetPacingCounters();
  EXPECT_EQ(counters.phases - before.phases, 2U);
  EXPECT_EQ(counters.phase_size_bytes - before.phase_size_bytes, 8000U);
  ExpectNoOpenPhase();
}

TEST_F(CollectivePhasesTest, WithinOneMachineNothingIsAPhase) {
  Group group(2, {}, Where::kTogether);
  group.Connect();
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    std::vector<float> data(1000, 1);
    EXPECT_TRUE(AllReduce(engine, data));
  });
  EXPECT_EQ(GetPacingCounters().phases, 0U);
}

TEST_F(CollectivePhasesTest, AGroupThatBreaksLeavesNoPhaseOpen) {
  Group group(2, {}, Where::kApart);
  group.Connect();
  std::vector<float> data(1000, 1);
  const auto token =
      group.engines[0].AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum);
  ASSERT_TRUE(token);
  group.engines[1].Shutdown();
  EXPECT_FALSE(group.engines[0].Wait(token.value()));
  ExpectNoOpenPhase();
}

}  // namespace
}  // namespace ffrecord::client
