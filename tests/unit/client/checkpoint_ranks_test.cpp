// Goal: ranks commit what all of them wrote, or nothing, and all learn the same reason.
// Method: saves of three ranks, which are threads, into a folder; ranks that fail, disagree or
// leave, or whose vote is changed; shards that a coordinator collects and that do not fit together.

#include <ffrecord/client/checkpoint.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <mutex>

#include "checkpoint_state.h"
#include "client/checkpoint/tally.h"
#include "libffrecord/base/cursor.h"
#include "temp_folder.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::Compare;
using test::State;
using test::TempFolder;
using test::ThreadGroup;
using test::TreeOf;

std::size_t CountEntries(const fs::path& run) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(run), {}));
}

class FailingRanksTest : public testing::Test {
 protected:
  using Change =
      std::function<void(std::uint32_t rank, std::uint64_t& step, std::vector<TensorView>& tensors,
                         Bytes& tree, std::string& target)>;

  // Saves with three ranks after `change`; checks that all fail alike and nothing is left.
  Error SaveAndFail(const Change& change) {
    const auto outcomes = group_.Run([&](CheckpointGroup& rank) {
      std::uint64_t step = 7;
      auto tensors = state_.PartOf(rank.rank(), 3);
      Bytes tree = TreeOf({"matrix"});
      std::string target = (folder_ / "run").string();
      change(rank.rank(), step, tensors, tree, target);
      return SaveCheckpoint(target, step, tensors, tree, &rank, {});
    });
    for (const auto& outcome : outcomes) {
      EXPECT_FALSE(*outcome);
      EXPECT_EQ(outcome->error().code, outcomes[0]->error().code);
      EXPECT_EQ(outcome->error().message, outcomes[0]->error().message);
      EXPECT_EQ(outcome->error().system_errno, outcomes[0]->error().system_errno);
    }
    EXPECT_EQ(CountEntries(folder_ / "run"), 0U);
    return outcomes[0]->error();
  }

  const TempFolder folder_;
  const State state_{300, 1};
  ThreadGroup group_{3};
};

TEST_F(FailingRanksTest, ABadTensorOfOneRankFailsAll) {
  const Error error = SaveAndFail([](auto rank, auto&, auto& tensors, auto&, auto&) {
    if (rank == 2) tensors[0].dtype = "object";
  });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message.find("rank 2: checkpoint: tensor matrix"), std::string::npos);
}

TEST_F(FailingRanksTest, TheSystemsErrorOfOneRankIsThatOfAll) {
  const Error error = SaveAndFail([](auto rank, auto&, auto& tensors, auto&, auto&) {
    if (rank == 1)
      tensors[0].fetch = [](auto, auto) { return Error{ErrorCode::kIo, "no room", ENOSPC}; };
  });
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_EQ(error.system_errno, ENOSPC);
  EXPECT_EQ(error.message, "rank 1: no room");
}

TEST_F(FailingRanksTest, AGapOrAnOverlapFailsAll) {
  EXPECT_NE(SaveAndFail([](auto rank, auto&, auto& tensors, auto&, auto&) {
              if (rank == 1) tensors.clear();
            }).message.find("cover"),
            std::string::npos);
  EXPECT_NE(SaveAndFail([&](auto rank, auto&, auto& tensors, auto&, auto&) {
              if (rank == 1) tensors = state_.PartOf(0, 1);
            }).message.find("rank 0 at (0, 0) of extent (100, 8) overlaps the slice of rank 1 at"),
            std::string::npos);
  EXPECT_NE(SaveAndFail([&](auto rank, auto&, auto& tensors, auto&, auto&) {
              if (rank == 2) tensors[0].dtype = "int32";
            }).message.find("rank 0 has float32 (300, 8), rank 2 has int32 (300, 8)"),
            std::string::npos);
}

// What ranks tell each other does not grow with the state, unless it is wrong: then what is wrong.
TEST_F(FailingRanksTest, RanksTellEachOtherSumsAndOnlyBoxesThatDoNotAddUp) {
  constexpr std::size_t kTensors = 5000;
  constexpr std::size_t kWordMax = 200;
  const std::vector<std::byte> data(4);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kTensors; ++i) names.push_back("layer " + std::to_string(i));
  const auto tensors_of = [&](std::uint32_t rank) {
    std::vector<TensorView> tensors;
    for (const std::string& name : names)
      tensors.push_back({name, "uint8", {12}, {4 * rank}, {4}, data});
    return tensors;
  };
  test::ValueWriter writer;
  writer.List(kTensors);
  for (const std::string& name : names) writer.Tensor(TensorKind::kArray, name);
  const Bytes tree(writer.bytes().begin(), writer.bytes().end());

  for (const bool is_wrong : {false, true}) {
    std::mutex mutex;
    std::vector<std::size_t> largest;
    const auto outcomes = group_.Run(
        [&](CheckpointGroup& rank) {
          auto tensors = tensors_of(rank.rank());
          if (is_wrong && rank.rank() == 1) tensors[1234].offset = {5};
          return SaveCheckpoint((folder_ / "run").string(), is_wrong ? 8 : 7, tensors, tree, &rank,
                                {});
        },
        [&](std::uint32_t round, const Bytes& mine) {
          const std::lock_guard lock(mutex);
          if (round >= largest.size()) largest.resize(round + 1);
          largest[round] = std::max(largest[round], mine.size());
        });
    for (const auto& outcome : outcomes) {
      ASSERT_EQ(bool{*outcome}, !is_wrong);
      const std::string why = *outcome ? "" : outcome->error().message;
      const bool is_named = why.find("layer 1234: the slice of rank 1 at (5)") != std::string::npos;
      EXPECT_EQ(is_named, is_wrong) << why;
    }
    ASSERT_EQ(largest.size(), 3U);
    EXPECT_LT(largest[0], kWordMax);
    // The report of what was written; or the boxes of one bucket.
    EXPECT_LT(largest[2], is_wrong ? kTensors / kTallyBuckets * 3 * kWordMax : kWordMax);
  }
}

TEST_F(FailingRanksTest, DifferentStepsFailAll) {
  const Error error = SaveAndFail([](auto rank, auto& step, auto&, auto&, auto&) {
    if (rank == 1) step = 8;
  });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message.find("rank 1 saves step 8"), std::string::npos);
}

TEST_F(FailingRanksTest, AFolderThatOneRankDoesNotSeeFailsAll) {
  const Error error = SaveAndFail([&](auto rank, auto&, auto&, auto&, auto& target) {
    if (rank == 1) target = (folder_ / "elsewhere").string();
  });
  EXPECT_NE(error.message.find("share"), std::string::npos);
}

TEST_F(FailingRanksTest, ATreeThatIsMalformedOrRefersToNothingFailsAll) {
  EXPECT_NE(SaveAndFail([](auto rank, auto&, auto&, auto& tree, auto&) {
              if (rank == 0) tree.pop_back();
            }).message.find("malformed"),
            std::string::npos);
  EXPECT_NE(SaveAndFail([](auto rank, auto&, auto&, auto& tree, auto&) {
              if (rank == 0) tree = TreeOf({"ghost"});
            }).message.find("ghost"),
            std::string::npos);
}

// A rank whose save may yet turn out to be committed says so, and no other does.
bool SaysThatItIsUnsure(const Error& error) {
  return error.message.find("step 7 may or may not be committed: list ") != std::string::npos;
}

TEST_F(FailingRanksTest, ARankThatLeavesFailsAllAndNothingIsVisibleThatNotAllHaveWritten) {
  constexpr std::uint32_t kPublish = 2;
  for (const std::uint32_t leave_round : {0U, 1U, kPublish}) {
    ThreadGroup group(3);
    const auto outcomes = group.Run(
        [&](CheckpointGroup& rank) {
          return SaveCheckpoint((folder_ / "run").string(), 7, state_.PartOf(rank.rank(), 3),
                                TreeOf({"matrix", "vector"}), &rank, {});
        },
        [&](std::uint32_t round, Bytes&) {
          if (round == leave_round) group.Leave();
        });
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(*outcome);
      EXPECT_EQ(outcome->error().code, ErrorCode::kUnavailable);
      EXPECT_EQ(SaysThatItIsUnsure(outcome->error()), leave_round == kPublish);
    }
    EXPECT_EQ(ListCheckpoints((folder_ / "run").string(), {}).value().size(),
              leave_round == kPublish ? 1U : 0U);
    fs::remove_all(folder_ / "run");
  }
}

// A vote that says no: see AllGatherResults().
Bytes Refusal(ErrorCode code) {
  ByteWriter writer;
  writer.Put(std::uint8_t{0});
  writer.Put(static_cast<std::uint8_t>(code));
  for (int field = 0; field < 3; ++field) writer.Put(std::uint32_t{0});  // errno, kind, message.
  return std::move(writer).Take();
}

TEST_F(FailingRanksTest, OnlyAPublicationWithoutAnAnswerIsUnsure) {
  for (const auto code : {ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded,
                          ErrorCode::kConflict, ErrorCode::kIo}) {
    const auto outcomes = group_.Run(
        [&](CheckpointGroup& rank) {
          return SaveCheckpoint((folder_ / "run").string(), 7, state_.PartOf(rank.rank(), 3),
                                TreeOf({"matrix", "vector"}), &rank, {});
        },
        [&](std::uint32_t round, Bytes& mine) {
          if (round == 2) mine = Refusal(code);
        });
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(*outcome);
      EXPECT_EQ(outcome->error().code, code);
      EXPECT_EQ(SaysThatItIsUnsure(outcome->error()),
                code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded);
    }
    fs::remove_all(folder_ / "run");
  }
}

// The harness must catch a planted bug, or it proves nothing: with a group that turns a rank's no
// into yes, which is what skipping the vote would do, the same check finds a broken step.
TEST_F(FailingRanksTest, SkippingTheVoteWouldBeCaught) {
  Bytes good_report;
  const auto save = [&](CheckpointGroup& rank) {
    std::string target = (folder_ / "run").string();
    return SaveCheckpoint(target, 7, state_.PartOf(rank.rank(), 3), TreeOf({"matrix", "vector"}),
                          &rank, {});
  };
  std::mutex mutex;
  group_.Run(save, [&](std::uint32_t round, Bytes& mine) {
    const std::lock_guard lock(mutex);
    if (round == 1 && mine.size() > good_report.size()) good_report = mine;
  });
  fs::remove_all(folder_ / "run");

  // Rank 2 loses its target after round 1, and its no of round 2 is replaced by a yes.
  const auto outcomes = group_.Run(
      [&](CheckpointGroup& rank) {
        std::string target = (folder_ / "run").string();
        if (rank.rank() == 2) target = (folder_ / "elsewhere").string();
        auto saved = SaveCheckpoint(target, 7, state_.PartOf(rank.rank(), 3),
                                    TreeOf({"matrix", "vector"}), &rank, {});
        // It has noticed that its message was changed, and the others wait for it.
        const std::byte yes[] = {std::byte{1}};
        if (rank.rank() == 2) static_cast<void>(rank.AllGather(yes));
        return saved;
      },
      [&](std::uint32_t round, Bytes& mine) {
        if (round == 1 && mine.at(0) == std::byte{0}) mine = good_report;
      });

  ASSERT_TRUE(*outcomes[0]);  // The bug: a commit without rank 2.
  EXPECT_NE(Compare(folder_ / "run", state_, 7), "");
  EXPECT_NE(CountEntries(folder_ / "run"), 0U);
}

// --- Shards that a coordinator collects ----------------------------------------------------------

class CheckpointShardsTest : public testing::Test {
 protected:
  CheckpointShards Begin() const { return CheckpointShards::Begin(run_, 7, {}).value(); }

  // The shard of rank 1 of 2 in the save that `coordinator` began.
  Bytes WriteSecond(const CheckpointShards& coordinator,
                    const std::vector<TensorView>& tensors) const {
    return CheckpointShards::Join(run_, 7, coordinator.attempt(), {})
        .value()
        .Write(1, tensors)
        .value();
  }

  // Fails to commit; returns why. Nothing becomes visible.
  std::string Refused(CheckpointShards& coordinator, const std::vector<Bytes>& shards,
                      const Bytes& tree) const {
    const auto commit = coordinator.Commit(shards, tree);
    EXPECT_TRUE(ListCheckpoints(run_, {}).value().empty());
    if (commit) return "";
    EXPECT_EQ(commit.error().code, ErrorCode::kInvalidArgument);
    return commit.error().message;
  }

  const TempFolder folder_;
  const std::string run_ = (folder_ / "run").string();
  const State state_{300, 1};
  const Bytes tree_ = TreeOf({"matrix", "vector"});
};

TEST_F(CheckpointShardsTest, WhatTwoRanksWroteIsCommitted) {
  CheckpointShards coordinator = Begin();
  const Bytes first = coordinator.Write(0, state_.PartOf(0, 2)).value();
  const Bytes second = WriteSecond(coordinator, state_.PartOf(1, 2));

  const auto commit = coordinator.Commit({{first, second}}, tree_);

  ASSERT_TRUE(commit) << commit.error().message;
  EXPECT_EQ(commit.value().attempt, coordinator.attempt());
  EXPECT_EQ(commit.value().size_bytes, state_.matrix.size() + state_.vector.size());
  EXPECT_EQ(Compare(run_, state_, 7), "");
}

TEST_F(CheckpointShardsTest, ShardsThatAreNoWholeCheckpointAreRefusedByName) {
  CheckpointShards coordinator = Begin();
  const Bytes first = coordinator.Write(0, state_.PartOf(0, 2)).value();
  const Bytes second = WriteSecond(coordinator, state_.PartOf(1, 2));

  EXPECT_EQ(Refused(coordinator, {}, tree_),
            "checkpoint: a checkpoint has at least one rank shard");
  EXPECT_NE(Refused(coordinator, {first}, tree_).find("cover 1200 of 2400"), std::string::npos);
  EXPECT_NE(Refused(coordinator, {first, second}, TreeOf({"matrix", "ghost"}))
                .find("refers to tensor ghost, which no rank saves"),
            std::string::npos);
  EXPECT_NE(
      Refused(coordinator, {first, second}, {tree_.begin(), tree_.end() - 1}).find("malformed"),
      std::string::npos);
}

TEST_F(CheckpointShardsTest, SlicesThatOverlapAreNamedByTheirRanks) {
  CheckpointShards coordinator = Begin();
  const Bytes first = coordinator.Write(0, state_.PartOf(0, 2)).value();
  const Bytes whole = WriteSecond(coordinator, {state_.PartOf(0, 1)[0]});

  EXPECT_NE(Refused(coordinator, {first, whole}, tree_)
                .find("the slice of rank 0 at (0, 0) of extent (150, 8) overlaps the slice of "
                      "rank 1 at (0, 0) of extent (300, 8)"),
            std::string::npos);
}

TEST_F(CheckpointShardsTest, AShardOfAnotherSaveIsRefused) {
  CheckpointShards coordinator = Begin();
  const Bytes first = coordinator.Write(0, state_.PartOf(0, 2)).value();
  const Bytes second = WriteSecond(coordinator, state_.PartOf(1, 2));
  const CheckpointShards other = Begin();
  const Bytes of_other = WriteSecond(other, state_.PartOf(1, 2));
  Bytes of_other_step = second;  // The intent follows its size, and begins with the step.
  of_other_step.at(8) ^= std::byte{1};

  EXPECT_EQ(Refused(coordinator, {first, of_other}, tree_),
            "checkpoint: rank 1 wrote for another save");
  EXPECT_EQ(Refused(coordinator, {first, of_other_step}, tree_),
            "checkpoint: rank 1 wrote for another save");
  EXPECT_TRUE(coordinator.Commit({{first, second}}, tree_));
}

}  // namespace
}  // namespace ffrecord::client
