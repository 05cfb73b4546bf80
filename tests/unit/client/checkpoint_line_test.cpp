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

TEST(CheckpointLineTest, AGenerationIsOnTheLineUpToItsLastStep) {
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

TEST(CheckpointLineTest, WithoutARecordEverythingIsOnTheLine) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  const RunLine line = LineOf(*target).value();
  EXPECT_EQ(line.number, 0U);
  EXPECT_TRUE(line.Has(0, 5));
  EXPECT_TRUE(line.Has(77, 5));
}

TEST(CheckpointLineTest, TheNewestRecordIsTheLine) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  RunLine line = Line();
  for (std::uint64_t number = 1; number <= 12; ++number) {  // More than one digit.
    line.number = number;
    line.generation = 100 + number;
    line.parts.back().last_step = 20 + number;
    ASSERT_TRUE(TakeLine(*target, {line, true, number - 1}));
    const RunLine found = LineOf(*target).value();
    EXPECT_EQ(found.number, number);
    EXPECT_EQ(found.generation, line.generation);
    EXPECT_EQ(found.parts, line.parts);
  }
}

TEST(CheckpointLineTest, ASaveThatWasOvertakenMakesNoLine) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target, {line, true, 0}));
  line.generation = 10;
  for (const bool is_new : {true, false}) {
    const auto taken = TakeLine(*target, {line, is_new, 0});
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
  }
  EXPECT_EQ(LineOf(*target).value().generation, 9U);
}

// Two processes go back at once: both have seen that number 1 is free.
TEST(CheckpointLineTest, OneOfTwoThatGoBackAtOnceGetsTheLine) {
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
TEST(CheckpointLineTest, AClaimCountsFromTheMomentItIsMade) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target, {line, true, 0}));
  target->Forget("line-1-0000000000000009");
  EXPECT_EQ(LineOf(*target).value().generation, 9U);
  EXPECT_EQ(LineOf(*target).value().parts, line.parts);
  RunLine next = line;
  next.generation = 10;
  ASSERT_FALSE(TakeLine(*target, {next, true, 0}));
  ASSERT_FALSE(TakeLine(*target, {RunLine(), false, 0})) << "what goes on is on the line no more";
  next.number = 2;
  EXPECT_TRUE(TakeLine(*target, {next, true, 1}));
  EXPECT_EQ(LineOf(*target).value().generation, 10U);
}

TEST(CheckpointLineTest, ASaveOnALineThatWasOnlyClaimedWritesItsRecord) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target, {line, true, 0}));
  target->Forget("line-1-0000000000000009");
  ASSERT_TRUE(TakeLine(*target, {LineOf(*target).value(), false, 1}));
  target->Forget("line-1");
  EXPECT_EQ(LineOf(*target).value().parts, line.parts);
}

TEST(CheckpointLineTest, ADamagedRecordIsReadFromItsClaim) {
  const std::string name = "line-1-0000000000000009";
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target, {line, true, 0}));
  target->Forget(name);
  ASSERT_TRUE(target->Decide(name, "0:1;0000000000000000"));
  EXPECT_EQ(LineOf(*target).value().parts, line.parts);
  target->Forget("line-1");
  ASSERT_TRUE(target->Decide("line-1", "damaged"));
  EXPECT_EQ(LineOf(*target).error().code, ErrorCode::kCorruption);
}

TEST(CheckpointLineTest, AGarbledClaimIsNamed) {
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
TEST(CheckpointLineTest, AStepThatIsGivenUpAsItBecomesVisibleIsNoSuccess) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  EXPECT_TRUE(CheckOnLine(*target, 0, 30));
  RunLine line = Line();
  line.number = 1;
  ASSERT_TRUE(TakeLine(*target, {line, true, 0}));
  EXPECT_EQ(CheckOnLine(*target, 0, 30).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(CheckOnLine(*target, 9, 30));
  EXPECT_TRUE(CheckOnLine(*target, 0, 10));
}

TEST(CheckpointLineTest, AGarbledRecordIsNamed) {
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

TEST(CheckpointLineTest, OtherFilesAreNoRecords) {
  const TempFolder folder;
  const auto target = OpenFolderTarget(folder.path().string(), false);
  for (const std::string name : {"line-", "line-0", "line-1x", "line-x-0000000000000009",
                                 "line-1-9", "line-0-0000000000000009", "line-1-000000000000000g"})
    ASSERT_TRUE(target->Decide(name, "anything"));
  EXPECT_EQ(LineOf(*target).value().number, 0U);
}

}  // namespace
}  // namespace ffrecord::client
