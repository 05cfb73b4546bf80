// Goal: what is removed is the save that was meant, and a folder that left its step's name for a
// moment is the step all the same.
// Method: removals of one save while another takes its place, over and over; folders set aside, as
// a kill leaves them.

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "checkpoint_state.h"
#include "client/checkpoint/step_folder.h"
#include "client/checkpoint/target.h"
#include "daemon.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::Compare;
using test::Daemon;
using test::SaveAlone;
using test::State;
using test::TempFolder;
using test::TreeOf;

// Takes the place of the step, whatever it is.
Result<Commit> Replace(const std::string& target, std::uint64_t step, const State& state) {
  SaveOptions options;
  options.replaces = true;
  return SaveCheckpoint(target, step, state.PartOf(0, 1), TreeOf({"matrix", "vector"}), nullptr,
                        options);
}

std::vector<std::uint64_t> StepsAt(const std::string& target) {
  const auto commits = ListCheckpoints(target, {}).value();
  std::vector<std::uint64_t> steps;
  for (const Commit& commit : commits) steps.push_back(commit.step);
  return steps;
}

std::vector<std::string> NamesIn(const fs::path& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class RemovalTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Target() {
    const std::string kind = GetParam();
    if (kind == "folder") return (folder_ / "run").string();
    if (kind == "daemon") return daemon_.Uri("run");
    return "buddies:" + (folder_ / "a").string() + "|" + (folder_ / "b").string();
  }

 private:
  TempFolder folder_;
  Daemon daemon_;
};

TEST_P(RemovalTest, OnlyTheSaveThatIsMeantIsRemoved) {
  const std::string target = Target();
  const auto old = SaveAlone(target, 1, State(10, 1)).value();
  const State late(10, 2);
  const auto anew = Replace(target, 1, late).value();

  EXPECT_EQ(RemoveCheckpoint(target, 1, {}, old.attempt).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RemoveCheckpoint(target, 1, {}, "x").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Compare(target, late, 1), "");
  EXPECT_TRUE(RemoveCheckpoint(target, 1, {}, anew.attempt));
  EXPECT_EQ(RemoveCheckpoint(target, 1, {}, anew.attempt).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(StepsAt(target).empty());
}

TEST_P(RemovalTest, ASaveThatTakesTheStepsPlaceMeanwhileStays) {
  const std::string target = Target();
  if (target.starts_with("buddies:")) GTEST_SKIP() << "removed at one place after the other";
  const State late(10, 2);
  SaveOptions replacing;
  replacing.replaces = true;
  std::mt19937 random(test::Seed());
  std::chrono::steady_clock::duration commit_takes{};
  for (int i = 0; i < 300; ++i) {
    const auto old = SaveAlone(target, 1, State(10, 1));
    ASSERT_TRUE(old) << old.error().message;
    auto shards = CheckpointShards::Begin(target, 1, replacing).value();
    const Bytes part = shards.Write(0, late.PartOf(0, 1)).value();
    Result<void> removed;
    std::barrier both(2);
    const auto pause = commit_takes * std::uniform_int_distribution(0, 100)(random) / 100;
    std::thread remover([&] {
      both.arrive_and_wait();
      std::this_thread::sleep_for(pause);
      removed = RemoveCheckpoint(target, 1, {}, old.value().attempt);
    });
    both.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    const auto saved = shards.Commit({{part}}, TreeOf({"matrix", "vector"}));
    commit_takes = std::chrono::steady_clock::now() - begin;
    remover.join();

    if (saved) {
      ASSERT_EQ(Compare(target, late, 1), "") << i << ", removed: " << static_cast<bool>(removed);
      ASSERT_TRUE(RemoveCheckpoint(target, 1, {}));
    } else {
      // The step went while this save was on its way: it may fail, if it says so.
      ASSERT_TRUE(removed);
    }
    ASSERT_TRUE(StepsAt(target).empty()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RemovalTest, ::testing::Values("folder", "daemon", "buddies"),
                         [](const auto& kind) { return std::string(kind.param); });

class SetAsideTest : public ::testing::Test {
 protected:
  SetAsideTest() { EXPECT_TRUE(SaveAlone(run(), 1, old_)); }
  std::string run() const { return folder_.path().string(); }
  fs::path SetAsideNow() { return SetAside(run(), 1).value(); }

  TempFolder folder_;
  const State old_{10, 1};
  const State late_{10, 2};
};

TEST_F(SetAsideTest, ItIsTheStepForEveryQuestion) {
  const auto before = ListCheckpoints(run(), {}).value();
  SetAsideNow();

  EXPECT_EQ(Compare(run(), old_), "");
  EXPECT_EQ(Compare(run(), old_, 1), "");
  EXPECT_EQ(StepsAt(run()), std::vector<std::uint64_t>{1});
  EXPECT_EQ(ListCheckpoints(run(), {}).value().front().attempt, before.front().attempt);
  EXPECT_EQ(SaveAlone(run(), 1, late_).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(PruneCheckpoints(run(), {.keep_last = 1}, {}).value().empty());
}

TEST_F(SetAsideTest, TheNextSaveGivesItItsName) {
  SetAsideNow();
  ASSERT_TRUE(SaveAlone(run(), 2, late_));
  EXPECT_EQ(Compare(run(), old_, 1), "");
  EXPECT_EQ(NamesIn(run()),
            (std::vector<std::string>{"LATEST", "step-000000001", "step-000000002"}));
}

TEST_F(SetAsideTest, ItIsALeftoverOnlyBesideItsStep) {
  SetAsideNow();
  SettleAside(run(), 1);  // A saver cleans up while a removal looks at the new save.
  EXPECT_EQ(Compare(run(), old_, 1), "");
  EXPECT_EQ(FindAside(run(), 1), std::nullopt);

  const fs::path aside = SetAsideNow();
  fs::create_directory(fs::path(run()) / StepName(1));
  std::ofstream(fs::path(run()) / StepName(1) / "part") << "x";
  SettleAside(run(), 1);
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_TRUE(fs::exists(fs::path(run()) / StepName(1) / "part"));
}

TEST_F(SetAsideTest, ItIsReplacedAndGone) {
  SetAsideNow();
  ASSERT_TRUE(Replace(run(), 1, late_));
  EXPECT_EQ(Compare(run(), late_, 1), "");
  EXPECT_EQ(NamesIn(run()), (std::vector<std::string>{"LATEST", "step-000000001"}));
}

// A removal has set the step aside to look whose it is. Another save of the step finds its name
// free, and would win over the one that was first.
TEST_F(SetAsideTest, AnotherSaveThatFindsTheNameFreeDoesNotGetIt) {
  for (const bool replaces : {false, true}) {
    SaveOptions options;
    options.replaces = replaces;
    ASSERT_TRUE(RemoveCheckpoint(run(), 1, {}));
    if (replaces) {
      ASSERT_TRUE(SaveAlone(run(), 1, State(10, 3)));
    }
    auto shards = CheckpointShards::Begin(run(), 1, options).value();
    const Bytes part = shards.Write(0, late_.PartOf(0, 1)).value();
    ASSERT_TRUE(replaces ? Replace(run(), 1, old_) : SaveAlone(run(), 1, old_));
    SetAsideNow();

    const auto saved = shards.Commit({{part}}, TreeOf({"matrix", "vector"}));
    ASSERT_FALSE(saved) << "the save that was first is lost";
    EXPECT_EQ(saved.error().code, ErrorCode::kConflict);
    EXPECT_EQ(Compare(run(), old_, 1), "");
    EXPECT_EQ(FindAside(run(), 1), std::nullopt);
  }
}

TEST_F(SetAsideTest, ItGoesWithItsStep) {
  for (const bool is_replaced : {false, true}) {
    SetAsideNow();
    if (is_replaced) {
      // By a save that was killed before it collected: what it replaced is not the step again.
      const fs::path aside = *FindAside(run(), 1);
      fs::copy(aside, folder_ / "copy", fs::copy_options::recursive);
      ASSERT_EQ(PutBack(aside, 1), 0);
      fs::rename(folder_ / "copy", aside);
    }
    ASSERT_TRUE(RemoveCheckpoint(run(), 1, {}));
    EXPECT_TRUE(StepsAt(run()).empty());
    EXPECT_EQ(RemoveCheckpoint(run(), 1, {}).error().code, ErrorCode::kNotFound);
    ASSERT_TRUE(SaveAlone(run(), 1, old_));
  }
  const auto old = ListCheckpoints(run(), {}).value().front();
  SetAsideNow();
  EXPECT_TRUE(RemoveCheckpoint(run(), 1, {}, old.attempt));
  EXPECT_TRUE(StepsAt(run()).empty());
}

// It may then be the only whole one.
TEST_F(SetAsideTest, ItStaysWhileWhatTookItsPlaceIsDamaged) {
  const fs::path aside = SetAsideNow();
  fs::copy(aside, folder_ / "step-000000001", fs::copy_options::recursive);
  const fs::path segment = folder_ / "step-000000001" / "part-00000" / "seg-0000";
  std::string bytes = test::ReadFile(segment);
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  test::WriteFile(segment, bytes);
  ASSERT_TRUE(SaveAlone(run(), 2, late_));
  EXPECT_TRUE(fs::exists(aside));

  ASSERT_TRUE(SaveAlone(run(), 1, late_));  // Damaged steps are saved again.
  EXPECT_FALSE(fs::exists(aside));
}

}  // namespace
}  // namespace ffrecord::client
