// Goal: ranks commit what all of them wrote, or nothing, and all learn the same reason.
// Method: saves of three ranks, which are threads, into a folder; ranks that fail, disagree or
// leave, or whose vote is changed.

#include <ffrecord/client/checkpoint.h>

#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "checkpoint_state.h"
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

TEST_F(FailingRanksTest, AGapOrAnOverlapFailsAll) {
  EXPECT_NE(SaveAndFail([](auto rank, auto&, auto& tensors, auto&, auto&) {
              if (rank == 1) tensors.clear();
            }).message.find("cover"),
            std::string::npos);
  EXPECT_NE(SaveAndFail([&](auto rank, auto&, auto& tensors, auto&, auto&) {
              if (rank == 1) tensors = state_.PartOf(0, 1);
            }).message.find("overlaps"),
            std::string::npos);
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

TEST_F(FailingRanksTest, ARankThatLeavesFailsAllAndNothingIsVisible) {
  for (const std::uint32_t leave_round : {0U, 1U}) {
    ThreadGroup group(3);
    const auto outcomes = group.Run(
        [&](CheckpointGroup& rank) {
          return SaveCheckpoint((folder_ / "run").string(), 7, state_.PartOf(rank.rank(), 3),
                                TreeOf({"matrix"}), &rank, {});
        },
        [&](std::uint32_t round, Bytes&) {
          if (round == leave_round) group.Leave();
        });
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(*outcome);
      EXPECT_EQ(outcome->error().code, ErrorCode::kUnavailable);
    }
    EXPECT_TRUE(ListCheckpoints((folder_ / "run").string(), {}).value().empty());
    fs::remove_all(folder_ / "run");
  }
}

// The harness must catch a planted bug, or it proves nothing: with a group that turns a rank's no
// into yes, which is what skipping the vote would do, the same check finds a broken step.
TEST_F(FailingRanksTest, SkippingTheVoteWouldBeCaught) {
  Bytes good_report;
  const auto save = [&](CheckpointGroup& rank) {
    std::string target = (folder_ / "run").string();
    return SaveCheckpoint(target, 7, state_.PartOf(rank.rank(), 3), TreeOf({"matrix"}), &rank, {});
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
        return SaveCheckpoint(target, 7, state_.PartOf(rank.rank(), 3), TreeOf({"matrix"}), &rank,
                              {});
      },
      [&](std::uint32_t round, Bytes& mine) {
        if (round == 1 && mine.at(0) == std::byte{0}) mine = good_report;
      });

  ASSERT_TRUE(*outcomes[0]);  // The bug: a commit without rank 2.
  EXPECT_NE(Compare(folder_ / "run", state_, 7), "");
  EXPECT_NE(CountEntries(folder_ / "run"), 0U);
}

}  // namespace
}  // namespace ffrecord::client
