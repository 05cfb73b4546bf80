// Goal: of all steps of a run, those on its line are the ones that its newest save goes on from.
// Method: lines made in a folder by going back, over and over; records that are garbled.

#include "client/checkpoint/run_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/checkpoint/target.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

using test::TempFolder;

RunLine Line() { return {3, {{0, 10}, {7, 20}}, 9}; }

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
  for (const std::string name : {"line-", "line-1", "line-x-0000000000000009", "line-1-9",
                                 "line-0-0000000000000009", "line-1-000000000000000g"})
    ASSERT_TRUE(target->Decide(name, "anything"));
  EXPECT_EQ(LineOf(*target).value().number, 0U);
}

}  // namespace
}  // namespace ffrecord::client
