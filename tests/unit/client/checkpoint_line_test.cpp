// Goal: of all steps of a run, those on its line are the ones that its newest save goes on from.
// Method: lines made in a folder by going back, over and over; records that are garbled.

#include "client/checkpoint/run_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/checkpoint/forwarding_target.h"
#include "client/checkpoint/positions.h"
#include "client/checkpoint/target.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

using test::TempFolder;

RunLine Line() { return {3, {{0, 10}, {7, 20}}, 9}; }

// A target at which another process does something just after its records were listed.
class Overtaken final : public ForwardingTarget {
 public:
  Overtaken(CheckpointTarget& target, std::function<void()> other)
      : ForwardingTarget(target), other_(std::move(other)) {}

  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    auto listed = ForwardingTarget::Decisions(prefix);
    if (const auto other = std::exchange(other_, nullptr)) other();
    return listed;
  }

 private:
  mutable std::function<void()> other_;
};

class CheckpointLineTest : public testing::Test {
 protected:
  const TempFolder folder_;
  const std::unique_ptr<CheckpointTarget> target_ =
      OpenFolderTarget(folder_.path().string(), false);
};

TEST_F(CheckpointLineTest, AGenerationIsOnTheLineUpToItsLastStep) {
  const RunLine line = Line();
  EXPECT_TRUE(line.Has(0, 10));
  EXPECT_FALSE(line.Has(0, 11));
  EXPECT_TRUE(line.Has(7, 20));
  EXPECT_FALSE(line.Has(7, 21));
  EXPECT_TRUE(line.Has(9, 21));
  EXPECT_FALSE(line.Has(9, 20));
  EXPECT_FALSE(line.Has(8, 5));
  for (const std::uint64_t step : {0U, 10U, 11U, 20U, 21U, 1000U})
    EXPECT_TRUE(line.Has(line.GenerationAt(step), step)) << step;
}

TEST_F(CheckpointLineTest, WithoutARecordEverythingIsOnTheLine) {
  const RunLine line = LineOf(*target_).value();
  EXPECT_EQ(line.number, 0U);
  EXPECT_TRUE(line.Has(0, 5));
  EXPECT_TRUE(line.Has(77, 5));
}

TEST_F(CheckpointLineTest, TheNewestRecordIsTheLine) {
  RunLine line = Line();
  for (std::uint64_t number = 1; number <= 12; ++number) {  // More than one digit.
    line.number = number;
    line.generation = 100 + number;
    line.parts.back().last_step = 20 + number;
    ASSERT_TRUE(TakeLine(*target_, {line, true, number - 1}));
    const RunLine found = LineOf(*target_).value();
    EXPECT_EQ(found.number, number);
    EXPECT_EQ(found.generation, line.generation);
    EXPECT_EQ(found.parts, line.parts);
  }
}

TEST_F(CheckpointLineTest, ASaveThatWasOvertakenMakesNoLine) {
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target_, {line, true, 0}));
  line.generation = 10;
  for (const bool is_new : {true, false}) {
    const auto taken = TakeLine(*target_, {line, is_new, 0});
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
  }
  EXPECT_EQ(LineOf(*target_).value().generation, 9U);
}

// Two processes go back at once: both have seen that number 1 is free.
TEST_F(CheckpointLineTest, OneOfTwoThatGoBackAtOnceGetsTheLine) {
  for (const std::uint64_t generation : {8U, 10U}) {
    const TempFolder folder;
    const auto target = OpenFolderTarget(folder.path().string(), false);
    RunLine first = Line();
    first.number = 1;
    RunLine second = first;
    second.generation = generation;
    const auto other = OpenFolderTarget(folder.path().string(), false);
    Overtaken overtaken(*target, [&] { ASSERT_TRUE(TakeLine(*other, {first, true, 0})); });
    const auto taken = TakeLine(overtaken, {second, true, 0});

    ASSERT_FALSE(taken) << "both have the line, and one loses it when the records are compared";
    EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
    EXPECT_EQ(LineOf(*target).value().generation, first.generation);
  }
}

// A process claimed its number, and was killed before it wrote its record. If that began to count
// later, with the record that the next process writes, it would give up what was saved since.
TEST_F(CheckpointLineTest, AClaimCountsFromTheMomentItIsMade) {
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target_, {line, true, 0}));
  target_->Forget("line-1-0000000000000009");
  EXPECT_EQ(LineOf(*target_).value().generation, 9U);
  EXPECT_EQ(LineOf(*target_).value().parts, line.parts);
  RunLine next = line;
  next.generation = 10;
  ASSERT_FALSE(TakeLine(*target_, {next, true, 0}));
  ASSERT_FALSE(TakeLine(*target_, {RunLine(), false, 0})) << "what goes on is on the line no more";
  next.number = 2;
  EXPECT_TRUE(TakeLine(*target_, {next, true, 1}));
  EXPECT_EQ(LineOf(*target_).value().generation, 10U);
}

TEST_F(CheckpointLineTest, ASaveOnALineThatWasOnlyClaimedWritesItsRecord) {
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target_, {line, true, 0}));
  target_->Forget("line-1-0000000000000009");
  ASSERT_TRUE(TakeLine(*target_, {LineOf(*target_).value(), false, 1}));
  target_->Forget("line-1");
  EXPECT_EQ(LineOf(*target_).value().parts, line.parts);
}

TEST_F(CheckpointLineTest, ADamagedRecordIsReadFromItsClaim) {
  const std::string name = "line-1-0000000000000009";
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target_, {line, true, 0}));
  target_->Forget(name);
  ASSERT_TRUE(target_->Decide(name, "0:1;0000000000000000"));
  EXPECT_EQ(LineOf(*target_).value().parts, line.parts);
  target_->Forget("line-1");
  ASSERT_TRUE(target_->Decide("line-1", "damaged"));
  EXPECT_EQ(LineOf(*target_).error().code, ErrorCode::kCorruption);
}

TEST_F(CheckpointLineTest, AGarbledClaimIsNamed) {
  for (const std::string text : {"", "-", "9;", "0000000000000009;-;0000000000000000"}) {
    const TempFolder folder;
    const auto target = OpenFolderTarget(folder.path().string(), false);
    ASSERT_TRUE(target->Decide("line-1", text));
    const auto line = LineOf(*target);
    ASSERT_FALSE(line) << text;
    EXPECT_EQ(line.error().code, ErrorCode::kCorruption);
    EXPECT_NE(line.error().message.find("line-1 of"), std::string::npos);
  }
}

// A save that goes on looks for records, then becomes visible: another process may go back between
// the two.
TEST_F(CheckpointLineTest, AStepThatIsGivenUpAsItBecomesVisibleIsNoSuccess) {
  EXPECT_TRUE(CheckOnLine(*target_, 0, 30));
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target_, {line, true, 0}));
  EXPECT_EQ(CheckOnLine(*target_, 0, 30).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(CheckOnLine(*target_, 9, 30));
  EXPECT_TRUE(CheckOnLine(*target_, 0, 10));
}

TEST_F(CheckpointLineTest, AGarbledRecordIsNamed) {
  const std::string name = "line-1-0000000000000009";
  for (const std::string text : {"", "-", "0:1", "0:1;0000000000000000", ";", "x;y"}) {
    const TempFolder folder;
    const auto target = OpenFolderTarget(folder.path().string(), false);
    ASSERT_TRUE(target->Decide(name, text));
    const auto line = LineOf(*target);
    ASSERT_FALSE(line) << text;
    EXPECT_EQ(line.error().code, ErrorCode::kCorruption);
    EXPECT_NE(line.error().message.find(name), std::string::npos);
  }
}

TEST_F(CheckpointLineTest, OtherFilesAreNoRecords) {
  for (const std::string name : {"line-", "line-0", "line-1x", "line-x-0000000000000009",
                                 "line-1-9", "line-0-0000000000000009", "line-1-000000000000000g"})
    ASSERT_TRUE(target_->Decide(name, "anything"));
  EXPECT_EQ(LineOf(*target_).value().number, 0U);
}

TEST(PositionsTest, OtherTargetsPushNoReturnOut) {
  Positions positions;
  Position back;
  back.step = 1;
  back.is_load = true;
  back.is_newest = false;
  positions.Load("/run", back);
  for (int i = 0; i < 5000; ++i) {
    Position saved;
    saved.turn = positions.Turn();
    positions.Save("/other/" + std::to_string(i), saved);
  }
  const auto at = positions.At("/run", positions.Turn());
  ASSERT_EQ(at.size(), 1U);
  EXPECT_EQ(at.front().step, 1U);
  EXPECT_TRUE(positions.At("/other/0", positions.Turn()).empty());
  EXPECT_EQ(positions.At("/other/4999", positions.Turn()).size(), 1U);
}

}  // namespace
}  // namespace ffrecord::client
