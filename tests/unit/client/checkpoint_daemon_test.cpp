// Goal: a checkpoint at a daemon is what one in a folder is: saved by all ranks or by none, loaded
// as it was saved, never replaced, and verified.
// Method: daemons in this process over TCP; ranks are threads; the daemon killed and started again,
// full, damaged on its disk.

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <thread>

#include <ffrecord/client/checkpoint.h>

#include "checkpoint_state.h"
#include "client/checkpoint/target.h"
#include "daemon.h"
#include "seed.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

using test::Bytes;
using test::Compare;
using test::Daemon;
using test::SaveAlone;
using test::State;
using test::ThreadGroup;
using test::TreeOf;
using namespace std::chrono_literals;

std::vector<std::uint64_t> StepsAt(const std::string& target) {
  const auto commits = ListCheckpoints(target, {}).value();
  std::vector<std::uint64_t> steps;
  for (const Commit& commit : commits) steps.push_back(commit.step);
  return steps;
}

TEST(CheckpointDaemonTest, RanksSaveTogetherAndAnyBoxIsLoaded) {
  Daemon daemon;
  const std::string target = daemon.Uri("runs/x");
  for (const std::uint32_t world : {1U, 2U, 3U}) {
    // Above one extent of 64 MiB for each of three ranks would be slow here; one rank passes it.
    const State state(world == 1 ? 2'200'000 : 10'001, test::Seed() + world);
    ThreadGroup group(world);
    const auto outcomes = group.Run([&](CheckpointGroup& rank) {
      return SaveCheckpoint(target, world, state.PartOf(rank.rank(), world),
                            TreeOf({"matrix", "vector"}), &rank, {});
    });
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(*outcome) << outcome->error().message;
      EXPECT_EQ(outcome->value().attempt, outcomes[0]->value().attempt);
    }
    EXPECT_EQ(Compare(target, state), "");
    const auto reader = CheckpointReader::Open(target, world, {});
    EXPECT_EQ(reader.value().world_size(), world);
    Bytes column(state.rows * 4);
    ASSERT_TRUE(reader.value().Read({{{"matrix", {0, 5}, {state.rows, 1}, column}}}));
    for (std::uint64_t row = 0; row < state.rows; row += 997)
      EXPECT_EQ(column[row * 4], state.matrix[row * 32 + 20]);
  }
  EXPECT_EQ(StepsAt(target), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST(CheckpointDaemonTest, ShardsOfTwoRanksArePublishedTogether) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State state(1'001, test::Seed());
  auto coordinator = CheckpointShards::Begin(target, 7, {}).value();
  auto other = CheckpointShards::Join(target, 7, coordinator.attempt(), {}).value();
  const Bytes first = coordinator.Write(0, state.PartOf(0, 2)).value();
  const Bytes second = other.Write(1, state.PartOf(1, 2)).value();
  EXPECT_TRUE(StepsAt(target).empty());

  ASSERT_TRUE(coordinator.Commit({{first, second}}, TreeOf({"matrix", "vector"})));

  EXPECT_EQ(Compare(target, state, 7), "");
}

TEST(CheckpointDaemonTest, RunsAtOneDaemonDoNotSeeEachOther) {
  Daemon daemon;
  const State state(100, 1);
  ASSERT_TRUE(SaveAlone(daemon.Uri("a"), 1, state));
  ASSERT_TRUE(SaveAlone(daemon.Uri("ab"), 2, state));
  ASSERT_TRUE(SaveAlone(daemon.Uri("a/b"), 3, state));
  EXPECT_EQ(StepsAt(daemon.Uri("a")), std::vector<std::uint64_t>{1});
  EXPECT_EQ(StepsAt(daemon.Uri("ab")), std::vector<std::uint64_t>{2});
  EXPECT_TRUE(StepsAt(daemon.Uri("b")).empty());
}

TEST(CheckpointDaemonTest, ACommittedStepIsNeverReplacedAndOfTwoSaversOneWins) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  for (std::uint64_t step = 0; step < 10; ++step) {
    const std::vector<State> states{State(2'000, 1), State(2'000, 2)};
    std::vector<ErrorCode> codes(2, ErrorCode::kOk);
    std::vector<std::thread> savers;
    for (std::size_t i = 0; i < 2; ++i)
      savers.emplace_back([&, i] {
        const auto saved = SaveAlone(target, step, states[i]);
        if (!saved) codes[i] = saved.error().code;
      });
    for (auto& saver : savers) saver.join();
    ASSERT_NE(codes[0] == ErrorCode::kOk, codes[1] == ErrorCode::kOk);
    const std::size_t winner = codes[0] == ErrorCode::kOk ? 0 : 1;
    EXPECT_EQ(codes[1 - winner], ErrorCode::kConflict);
    EXPECT_EQ(Compare(target, states[winner], step), "");
    EXPECT_EQ(SaveAlone(target, step, states[0]).error().code, ErrorCode::kConflict);
  }
}

TEST(CheckpointDaemonTest, ASaveThatTakesTheStepsPlaceDuringTheLookStays) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State late(1'000, 2);
  ASSERT_TRUE(SaveAlone(target, 1, State(1'000, 1)));

  const auto opened = OpenDaemonTarget(target, {}).value();
  const auto attempt = opened->BeginInPlace(1, AttemptId{}, [&]() -> Result<bool> {
    EXPECT_TRUE(RemoveCheckpoint(target, 1, {}));
    EXPECT_TRUE(SaveAlone(target, 1, late));
    return true;
  });
  ASSERT_TRUE(attempt) << attempt.error().message;
  const Bytes byte(1);
  const auto written = attempt.value()->Put(
      "file", 1, [&](std::uint64_t, std::uint64_t) { return std::span<const std::byte>(byte); });
  ASSERT_TRUE(written) << written.error().message;

  const auto committed = attempt.value()->Commit({{written.value()}});
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code, ErrorCode::kConflict);
  EXPECT_EQ(Compare(target, late, 1), "");
}

// A user who removed the step that is there would have neither that one nor the new one.
TEST(CheckpointDaemonTest, ARefusedReplacementSaysWhyAndLeavesTheStep) {
  server::Server::Options common;
  common.quotas = {{"run", 500'000}};
  const Daemon daemon(common);
  const std::string target = daemon.Uri("run");
  const State small(10'000, test::Seed());
  const State large(20'000, test::Seed());
  ASSERT_TRUE(SaveAlone(target, 1, small));

  SaveOptions options;
  options.replaces = true;
  const auto saved = SaveAlone(target, 1, large, options);

  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kIo) << saved.error().message;
  EXPECT_EQ(saved.error().system_errno, EDQUOT);
  EXPECT_EQ(Compare(target, small, 1), "");
}

TEST(CheckpointDaemonTest, ARankThatFailsFailsAllAndNothingIsVisible) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State state(300, 1);
  ThreadGroup group(3);
  const auto outcomes = group.Run([&](CheckpointGroup& rank) {
    auto tensors = state.PartOf(rank.rank(), 3);
    if (rank.rank() == 2) tensors[0].dtype = "object";
    return SaveCheckpoint(target, 7, tensors, TreeOf({"matrix"}), &rank, {});
  });
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(*outcome);
    EXPECT_EQ(outcome->error().message, outcomes[0]->error().message);
  }
  EXPECT_TRUE(StepsAt(target).empty());
}

TEST(CheckpointDaemonTest, WhatIsCommittedOutlivesTheDaemon) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State state(10'000, test::Seed());
  ASSERT_TRUE(SaveAlone(target, 1, state));
  const auto reader = CheckpointReader::Open(target, 1, {});

  daemon.Kill();
  daemon.Start();

  EXPECT_EQ(Compare(target, state), "");
  Bytes row(32);
  EXPECT_TRUE(reader.value().Read({{{"matrix", {3, 0}, {1, 8}, row}}}));
}

TEST(CheckpointDaemonTest, NoDaemonAndNoStepAreTheirOwnErrors) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  EXPECT_EQ(CheckpointReader::Open(target, CheckpointReader::kLatest, {}).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(CheckpointReader::Open(target, 5, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RemoveCheckpoint(target, 5, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(CheckpointReader::Open("ffrecord://localhost", 5, {}).error().code,
            ErrorCode::kInvalidArgument);
  daemon.Kill();
  SaveOptions options;
  options.session.timeout = 500ms;
  const State state(10, 1);
  const auto saved = SaveCheckpoint(target, 1, state.PartOf(0, 1), TreeOf({}), nullptr, options);
  ASSERT_FALSE(saved);
  EXPECT_TRUE(saved.error().code == ErrorCode::kUnavailable ||
              saved.error().code == ErrorCode::kDeadlineExceeded);
}

TEST(CheckpointDaemonTest, DamageOnTheDaemonsDiskIsFoundAndNamed) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State before(3'000, 1);
  ASSERT_TRUE(SaveAlone(target, 1, before));
  const auto old_extents = daemon.Extents();
  const State state(3'000, 2);
  ASSERT_TRUE(SaveAlone(target, 2, state));

  int damaged = 0;
  for (const auto& extent : daemon.Extents()) {
    if (std::find(old_extents.begin(), old_extents.end(), extent) != old_extents.end()) continue;
    const auto size = std::filesystem::file_size(extent);
    std::fstream file(extent, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(size / 4));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(size / 4));
    file.put(byte).flush();

    EXPECT_NE(Compare(target, state, 2).find("step-000000002"), std::string::npos) << extent;
    EXPECT_EQ(Compare(target, before, 1), "");

    file.seekp(static_cast<std::streamoff>(size / 4));
    file.put(static_cast<char>(byte ^ 1)).flush();
    ++damaged;
  }
  EXPECT_EQ(damaged, 3);  // Segment, part manifest, root manifest.
  EXPECT_EQ(Compare(target, state), "");
}

TEST(CheckpointDaemonTest, RemovedStepsAreGone) {
  Daemon daemon;
  const std::string target = daemon.Uri("run");
  const State state(100, 1);
  ASSERT_TRUE(SaveAlone(target, 1, state));
  ASSERT_TRUE(SaveAlone(target, 2, state));
  ASSERT_TRUE(RemoveCheckpoint(target, 2, {}));
  EXPECT_EQ(StepsAt(target), std::vector<std::uint64_t>{1});
  EXPECT_EQ(CheckpointReader::Open(target, CheckpointReader::kLatest, {}).value().commit().step,
            1U);
}

}  // namespace
}  // namespace ffrecord::client
