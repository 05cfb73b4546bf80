// Goal: steps are those that the plan of an epoch means, on every rank, in every epoch after it.
// Method: compare with one long list that a walk over the epochs makes record by record.

#include "libffrecord/record/stream/step_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ffrecord {
namespace {

constexpr std::uint64_t kSeed = 3;

std::vector<std::uint64_t> EpochOf(const EpochPlan& plan, std::uint64_t epoch,
                                   std::uint64_t count) {
  std::vector<std::uint64_t> indices(count);
  if (plan.block != 0)
    BlockedPermutation::Make(plan.seed, epoch, count, plan.block, plan.window)
        .value()
        .Fill(0, indices);
  else
    Permutation::Make(plan.seed, epoch, 0, count).value().Fill(0, indices);
  return indices;
}

// What the ranks read together in steps [0, steps), each rank's share behind the one before it.
std::vector<std::uint64_t> Together(EpochPlan plan, std::uint64_t epoch_end, std::uint64_t count,
                                    std::uint64_t steps) {
  std::vector<std::vector<std::uint64_t>> shares(plan.world_size * steps);
  for (plan.rank = 0; plan.rank < plan.world_size; ++plan.rank) {
    const auto order = StepOrder::Make(plan, epoch_end, count);
    EXPECT_TRUE(order);
    StepOrder::Indices indices(order.value());
    // Backwards: a step does not depend on those before it.
    for (std::uint64_t step = steps; step-- > 0;)
      shares[step * plan.world_size + plan.rank] = indices.Of(order.value().At(step)).value();
  }
  std::vector<std::uint64_t> all;
  for (const auto& share : shares) all.insert(all.end(), share.begin(), share.end());
  return all;
}

TEST(StepOrderTest, RanksTogetherReadThePlanAndThenWholeEpochs) {
  constexpr std::uint64_t kCount = 103, kEpochEnd = 100;
  for (const std::uint32_t block : {0u, 8u})
    for (const std::uint32_t world_size : {1u, 2u, 3u, 5u}) {
      const EpochPlan plan{.seed = kSeed,
                           .epoch = 7,
                           .first = 20,
                           .end = 90,
                           .block = block,
                           .window = block / 2,
                           .step_size = 20,
                           .world_size = world_size};
      std::vector<std::uint64_t> expected;
      for (std::uint64_t epoch = 7; epoch < 10; ++epoch) {
        const auto whole = EpochOf(plan, epoch, kCount);
        expected.insert(expected.end(), whole.begin() + (epoch == 7 ? 20 : 0),
                        whole.begin() + (epoch == 7 ? 90 : kEpochEnd));
      }
      // 4 steps of the plan, of which the last is short, then 5 of each epoch.
      EXPECT_EQ(Together(plan, kEpochEnd, kCount, 4 + 2 * 5), expected);
    }
}

TEST(StepOrderTest, AStepThatPassesTheEndGoesOnAtTheEpochsStart) {
  const EpochPlan plan{.seed = kSeed, .end = 24, .step_size = 8};
  auto expected = EpochOf(plan, 0, 20);
  expected.insert(expected.end(), expected.begin(), expected.begin() + 4);

  EXPECT_EQ(Together(plan, 24, 20, 3), expected);
}

TEST(StepOrderTest, AStepMayGoSeveralTimesAroundASmallEpoch) {
  const EpochPlan plan{.seed = kSeed, .end = 11, .step_size = 11};
  auto expected = EpochOf(plan, 0, 4);
  for (const int again : {4, 3})
    expected.insert(expected.end(), expected.begin(), expected.begin() + again);

  EXPECT_EQ(Together(plan, 11, 4, 1), expected);
}

TEST(StepOrderTest, RecordsInTheirOrderAreThoseOfThePositions) {
  const EpochPlan plan{.epoch = 3, .first = 4, .end = 9, .step_size = 3, .in_file_order = true};
  const auto order = StepOrder::Make(plan, 12, 10);
  ASSERT_TRUE(order);
  StepOrder::Indices indices(order.value());
  std::vector<std::vector<std::uint64_t>> found;
  for (std::uint64_t number = 0; number < 6; ++number)
    found.push_back(indices.Of(order.value().At(number)).value());
  const std::vector<std::vector<std::uint64_t>> expected{{4, 5, 6}, {7, 8},    {0, 1, 2},
                                                         {3, 4, 5}, {6, 7, 8}, {9, 0, 1}};
  EXPECT_EQ(found, expected);
}

TEST(StepOrderTest, KnowsWhereEachShareBegins) {
  const EpochPlan plan{.seed = kSeed,
                       .epoch = 2,
                       .first = 10,
                       .end = 40,
                       .step_size = 10,
                       .world_size = 2,
                       .rank = 1};
  const auto order = StepOrder::Make(plan, 40, 40);
  ASSERT_TRUE(order);

  const Step first = order.value().At(0), later = order.value().At(3 + 4 * 1'000'000 + 1);

  EXPECT_EQ(first.epoch, 2u);
  EXPECT_EQ(first.position, 15u);
  EXPECT_EQ(first.count, 5u);
  EXPECT_EQ(later.epoch, 1'000'003u);
  EXPECT_EQ(later.position, 15u);
}

TEST(StepOrderTest, RefusesWhatIsNoPartOfAnEpoch) {
  const EpochPlan good{.end = 10, .step_size = 4};
  EXPECT_TRUE(StepOrder::Make(good, 10, 10));
  std::vector<EpochPlan> wrong(10, good);
  wrong[0].step_size = 0;
  wrong[1].rank = 1;
  wrong[2].world_size = 0;
  wrong[3].first = 10;
  wrong[4].end = 0;
  wrong[5].end = 15;  // Records 10 to 13 are the epoch's start again; no step is longer.
  wrong[6].end = ~std::uint64_t{0};
  wrong[7].block = 3;  // Without a window.
  wrong[8].first = ~std::uint64_t{0};
  wrong[9] = {.end = 10, .block = 2, .window = 2, .step_size = 4, .in_file_order = true};
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const auto order = StepOrder::Make(wrong[i], 10, 10);
    ASSERT_FALSE(order) << i;
    EXPECT_EQ(order.error().code, ErrorCode::kInvalidArgument) << i;
  }
  EXPECT_FALSE(StepOrder::Make(good, 15, 10));
  EXPECT_FALSE(StepOrder::Make(good, 0, 10));
  EXPECT_FALSE(StepOrder::Make(good, 10, 0));
}

}  // namespace
}  // namespace ffrecord
