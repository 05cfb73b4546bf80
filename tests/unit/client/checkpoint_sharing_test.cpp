// Goal: an incremental save sends only what has changed, at a daemon, in a cluster and at a store;
// it shares nothing that is damaged, gone or not to be had, and then sends all of it.
// Method: a state of which a little changes from save to save; bytes are counted where they are
// kept or taken; daemons and a store in this process.

#include <ffrecord/client/checkpoint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint_state.h"
#include "daemon.h"
#include "daemon_cluster.h"
#include "fake_bucket.h"
#include "seed.h"
#include "temp_folder.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

using test::Compare;
using test::Daemon;
using test::SaveAlone;
using test::State;

constexpr std::uint64_t kRows = 100'000;
constexpr std::uint64_t kStateSize = kRows * 32;
constexpr std::uint64_t kRestMax = kStateSize / 10;  // Of what has changed, and manifests.

SaveOptions Incremental() {
  SaveOptions options;
  options.incremental = true;
  return options;
}

// Only the small tensor.
void Change(State& state) { state.vector[0] ^= std::byte{1}; }

// Those that a daemon has removed meanwhile have none.
std::uint64_t SizeOf(std::span<const fs::path> files) {
  std::uint64_t size = 0;
  for (const fs::path& file : files) {
    std::error_code gone;
    const std::uint64_t bytes = fs::file_size(file, gone);
    if (!gone) size += bytes;
  }
  return size;
}

void Rot(const fs::path& path) {
  std::string bytes = test::ReadFile(path);
  bytes[bytes.size() / 2] ^= 1;
  test::WriteFile(path, bytes);
}

// --- At a daemon ---------------------------------------------------------------------------------

class SharingAtADaemonTest : public testing::Test {
 protected:
  std::uint64_t StoredBytes() const { return SizeOf(daemon_.Extents()); }
  void Save(std::uint64_t step, const SaveOptions& options = Incremental()) const {
    const auto saved = SaveAlone(target_, step, state_, options);
    ASSERT_TRUE(saved) << saved.error().message;
  }

  Daemon daemon_;
  const std::string target_ = daemon_.Uri("run");
  State state_{kRows, test::Seed()};
};

TEST_F(SharingAtADaemonTest, OnlyWhatHasChangedIsStoredAgain) {
  Save(1);
  for (std::uint64_t step = 2; step < 5; ++step) {
    const std::uint64_t before = StoredBytes();
    Change(state_);
    Save(step);
    EXPECT_LT(StoredBytes() - before, kRestMax);
    EXPECT_EQ(Compare(target_, state_, step), "");
  }
}

TEST_F(SharingAtADaemonTest, SharedBytesStayAsLongAsAStepHasThem) {
  Save(1);
  Change(state_);
  Save(2);
  ASSERT_TRUE(RemoveCheckpoint(target_, 1, {}));
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(Compare(target_, state_, 2), "");
  ASSERT_TRUE(RemoveCheckpoint(target_, 2, {}));
  EXPECT_TRUE(test::Eventually([&] { return StoredBytes() == 0; }));
}

TEST_F(SharingAtADaemonTest, AStepIsReplacedByOneThatSharesItsBytes) {
  Save(1);
  const std::uint64_t before = StoredBytes();
  Change(state_);
  SaveOptions options = Incremental();
  options.replaces = true;
  Save(1, options);
  EXPECT_EQ(Compare(target_, state_, 1), "");
  EXPECT_LT(StoredBytes(), before + kRestMax);
}

TEST_F(SharingAtADaemonTest, DamagedBytesAreSentAgain) {
  Save(1);
  const auto extents = daemon_.Extents();
  Rot(*std::ranges::max_element(extents, {}, [](const auto& path) { return fs::file_size(path); }));
  Change(state_);
  Save(2);
  EXPECT_EQ(Compare(target_, state_, 2), "");
}

// What this process has verified is read again once it was seen to be damaged.
TEST_F(SharingAtADaemonTest, BytesWhoseDamageWasSeenAreNotShared) {
  Save(1);
  Change(state_);
  Save(2);
  const auto extents = daemon_.Extents();
  Rot(*std::ranges::max_element(extents, {}, [](const auto& path) { return fs::file_size(path); }));
  EXPECT_NE(Compare(target_, state_, 2), "");
  for (std::uint64_t step = 3; step < 5; ++step) {
    Change(state_);
    Save(step);
    EXPECT_EQ(Compare(target_, state_, step), "");
  }
}

// The hash of the state is taken before segments are kept, its bytes are sent afterwards.
class SharingWithoutABaseTest : public SharingAtADaemonTest {
 protected:
  // Saves step 2, and removes its base on the way. `is_stable`: nobody changes the tensors.
  Result<Commit> SaveWithLoss(const SaveOptions& options, bool is_stable = false,
                              CheckpointGroup* group = nullptr) {
    const std::uint32_t rank = group == nullptr ? 0 : group->rank();
    auto tensors = state_.PartOf(rank, group == nullptr ? 1 : group->size());
    for (TensorView& tensor : tensors) tensor.is_stable = is_stable;
    int fetched = 0;
    if (rank == 0) {
      TensorView& late = tensors.back();
      late.data = {static_cast<const std::byte*>(nullptr), state_.vector.size()};
      late.fetch = [&](std::uint64_t offset, std::span<std::byte> into) -> Result<void> {
        if (++fetched == 2) {
          EXPECT_TRUE(RemoveCheckpoint(target_, 1, {}));
        }
        std::copy_n(state_.vector.begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                    into.begin());
        return {};
      };
    }
    auto saved =
        SaveCheckpoint(target_, 2, tensors, test::TreeOf({"matrix", "vector"}), group, options);
    EXPECT_TRUE(rank != 0 || fetched >= 2);
    return saved;
  }
  void Begin() {
    Save(1);
    Change(state_);
  }
};

TEST_F(SharingWithoutABaseTest, AllIsSentWhereWhatWasSharedIsGone) {
  Begin();
  const auto saved = SaveWithLoss(Incremental());
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(Compare(target_, state_, 2), "");
  Change(state_);
  Save(3);  // Shares with that one.
  EXPECT_TRUE(test::Eventually([&] { return StoredBytes() < kStateSize + 2 * kRestMax; }));
}

TEST_F(SharingWithoutABaseTest, ASaveThatHasGivenItsTensorsBackFailsAndSaysWhatHelps) {
  Begin();
  SaveOptions options = Incremental();
  options.released = [] {};
  const auto saved = SaveWithLoss(options);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kConflict);
  EXPECT_NE(saved.error().message.find("the next save"), std::string::npos)
      << saved.error().message;
  EXPECT_TRUE(ListCheckpoints(target_, {}).value().empty());
  Save(2);
  EXPECT_EQ(Compare(target_, state_, 2), "");
}

// As async_save has them, where there is room for all copies.
TEST_F(SharingWithoutABaseTest, ASaveWhoseTensorsNobodyChangesIsSentAllOfIt) {
  Begin();
  SaveOptions options = Incremental();
  int released = 0;
  options.released = [&] { ++released; };
  const auto saved = SaveWithLoss(options, true);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(Compare(target_, state_, 2), "");
  EXPECT_EQ(released, 1);
}

// Some ranks may have had room for all copies, and others not.
TEST_F(SharingWithoutABaseTest, RanksOfWhichOneHasGivenItsTensorsBackFailTogether) {
  test::ThreadGroup ranks{3};
  const auto run = [&](const auto& save) {
    for (const auto& outcome : ranks.Run(save)) {
      EXPECT_FALSE(!*outcome && (*outcome).error().code != ErrorCode::kConflict)
          << outcome->error().message;
    }
    return static_cast<bool>(ListCheckpoints(target_, {}).value().size());
  };
  for (const bool is_stable : {false, true}) {
    ASSERT_TRUE(run([&](CheckpointGroup& rank) {
      return SaveCheckpoint(target_, 1, state_.PartOf(rank.rank(), 3),
                            test::TreeOf({"matrix", "vector"}), &rank, Incremental());
    }));
    Change(state_);
    const bool is_saved = run([&](CheckpointGroup& rank) {
      SaveOptions options = Incremental();
      if (rank.rank() != 2) options.released = [] {};
      return SaveWithLoss(options, is_stable || rank.rank() == 0, &rank);
    });
    EXPECT_EQ(is_saved, is_stable);
  }
  EXPECT_EQ(Compare(target_, state_, 2), "");
}

// A coordinator that collects shards, as DCP has it, and another rank.
Result<Commit> SaveShardsOf(const State& state, const std::string& target, std::uint64_t step) {
  auto first = FFR_TRY(CheckpointShards::Begin(target, step, Incremental()));
  auto second = FFR_TRY(CheckpointShards::Join(target, step, first.attempt(), Incremental()));
  std::vector<std::vector<std::byte>> written;
  written.push_back(FFR_TRY(first.Write(0, state.PartOf(0, 2))));
  written.push_back(FFR_TRY(second.Write(1, state.PartOf(1, 2))));
  return first.Commit(written, test::TreeOf({"matrix", "vector"}));
}

class SharedShardsTest : public SharingAtADaemonTest {
 protected:
  Result<Commit> SaveShards(std::uint64_t step) const {
    return SaveShardsOf(state_, target_, step);
  }
};

// This process has verified what it would share.
TEST_F(SharedShardsTest, WhatIsGoneIsNotShared) {
  ASSERT_TRUE(SaveShards(1));
  for (std::uint64_t step = 2; step < 4; ++step) {
    Change(state_);
    ASSERT_TRUE(SaveShards(step));
  }
  auto extents = daemon_.Extents();
  std::ranges::sort(extents, {}, [](const auto& path) { return fs::file_size(path); });
  daemon_.Kill();
  for (const fs::path& path : std::span(extents).last(2)) fs::remove(path);
  daemon_.Start();

  Change(state_);
  const auto saved = SaveShards(4);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(Compare(target_, state_, 4), "");
}

// --- In a cluster --------------------------------------------------------------------------------

class SharingInAClusterTest : public test::DaemonCluster {
 protected:
  std::uint64_t StoredBytes() const {
    std::uint64_t size = 0;
    for (const Node& node : nodes_) size += SizeOf(node.daemon->Extents());
    return size;
  }
};

TEST_F(SharingInAClusterTest, OnlyWhatHasChangedIsStoredAgainAndOutlivesItsFirstStep) {
  StartNodes(3);
  const std::string target = "ffrecord://" + AddressOf(nodes_[0]) + "/run";
  State state(kRows, test::Seed());
  ASSERT_TRUE(SaveAlone(target, 1, state, Incremental()));
  const std::uint64_t before = StoredBytes();
  Change(state);
  const auto saved = SaveAlone(target, 2, state, Incremental());
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_LT(StoredBytes() - before, 2 * kRestMax);

  ASSERT_TRUE(RemoveCheckpoint(target, 1, {}));
  EXPECT_EQ(Compare(target, state, 2), "");
}

// What a daemon of a cluster refuses, it refuses as long as a node is down.
class SharingWithANodeDownTest : public SharingInAClusterTest {
 protected:
  using Save = std::function<Result<Commit>(std::uint64_t step)>;

  void SetUp() override {
    StartNodes(3);
    for (const Node& node : nodes_)
      target_ += (target_.empty() ? "ffrecord://" : ",") + AddressOf(node);
    target_ += "/run";
  }
  // One that holds a large extent, and so one that is shared.
  void StopANode() {
    const auto largest = [](const Node& node) {
      std::uint64_t size = 0;
      for (const fs::path& file : ExtentsOf(node)) size = std::max(size, SizeOf({&file, 1}));
      return size;
    };
    const auto stopped = std::ranges::max_element(nodes_, {}, largest);
    stopped->daemon.reset();
    nodes_.erase(stopped);
    ASSERT_TRUE(test::Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const Node& node) {
        const auto map = Client().GetMap(AddressOf(node));
        return map && std::ranges::count_if(map.value().reply.nodes,
                                            [](const auto& one) { return one.is_up; }) == 2;
      });
    }));
  }
  void ExpectThatNoSaveFails(const Save& save) {
    for (std::uint64_t step = 1; step < 3; ++step) {
      const auto saved = save(step);
      ASSERT_TRUE(saved) << saved.error().message;
      Change(state_);
    }
    StopANode();
    for (std::uint64_t step = 3; step < 6; ++step) {
      const std::uint64_t before = StoredBytes();
      const auto saved = save(step);
      ASSERT_TRUE(saved) << saved.error().message;
      EXPECT_EQ(Compare(target_, state_, step), "");
      // With what it has sent again, the next one shares.
      if (step > 3) {
        EXPECT_LT(StoredBytes(), before + 2 * kRestMax);
      }
      Change(state_);
    }
  }

  std::string target_;
  State state_{kRows, test::Seed()};
};

TEST_F(SharingWithANodeDownTest, ShardsOfAllRanksAreSentWholeAndThenShare) {
  ExpectThatNoSaveFails([&](std::uint64_t step) { return SaveShardsOf(state_, target_, step); });
}

// As async_save has them, where there is no room for copies.
TEST_F(SharingWithANodeDownTest, RanksWithoutCopiesSendAllOfTheStateAndThenShare) {
  ExpectThatNoSaveFails([&](std::uint64_t step) {
    test::ThreadGroup ranks{2};
    const auto outcomes = ranks.Run([&](CheckpointGroup& rank) {
      SaveOptions options = Incremental();
      options.released = [] {};
      return SaveCheckpoint(target_, step, state_.PartOf(rank.rank(), 2),
                            test::TreeOf({"matrix", "vector"}), &rank, options);
    });
    return *outcomes.front();
  });
}

TEST_F(SharingWithANodeDownTest, ACopyIsSentWholeAndTheNextOneShares) {
  const test::TempFolder folder;
  const std::string near = (folder.path() / "run").string();
  ExpectThatNoSaveFails([&](std::uint64_t step) -> Result<Commit> {
    FFR_TRY(SaveAlone(near, step, state_, Incremental()));
    return CopyCheckpoint(near, step, target_, {});
  });
}

// --- At a store ----------------------------------------------------------------------------------

class SharingAtAStoreTest : public testing::Test {
 protected:
  SharingAtAStoreTest() {
    ::setenv("AWS_ENDPOINT_URL", bucket_.settings().endpoint.c_str(), 1);
    ::setenv("AWS_ACCESS_KEY_ID", "key", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    ::setenv("AWS_REGION", "us-east-1", 1);
  }
  // Bytes that the save sends.
  std::uint64_t Save(std::uint64_t step) {
    const std::uint64_t before = bucket_.sent_bytes();
    const auto saved = SaveAlone(target_, step, state_, Incremental());
    EXPECT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(Compare(target_, state_, step), "");
    return bucket_.sent_bytes() - before;
  }

  test::FakeBucket bucket_{std::map<std::string, std::string>()};
  const std::string target_ = "s3://bucket/run";
  State state_{kRows, test::Seed()};
};

TEST_F(SharingAtAStoreTest, OnlyWhatHasChangedIsSent) {
  EXPECT_GE(Save(1), kStateSize);
  for (std::uint64_t step = 2; step < 5; ++step) {
    Change(state_);
    EXPECT_LT(Save(step), kRestMax);
    ASSERT_TRUE(RemoveCheckpoint(target_, step - 1, {}));
    EXPECT_EQ(Compare(target_, state_, step), "");
  }
}

TEST_F(SharingAtAStoreTest, AStoreThatCopiesNothingIsSentAllOfIt) {
  EXPECT_GE(Save(1), kStateSize);
  bucket_.RefuseCopies();
  Change(state_);
  EXPECT_GE(Save(2), kStateSize);
}

TEST_F(SharingAtAStoreTest, AStoreThatTakesACopyForAnEmptyObjectIsSentAllOfIt) {
  EXPECT_GE(Save(1), kStateSize);
  bucket_.EmptyCopies();
  Change(state_);
  EXPECT_GE(Save(2), kStateSize);
}

// It may come in the place of other bytes that were sent under its name.
TEST_F(SharingAtAStoreTest, ACopyThatMayComeLateFailsTheSave) {
  EXPECT_GE(Save(1), kStateSize);
  bucket_.LoseCopyAnswers();
  Change(state_);
  SaveOptions options = Incremental();
  options.session.timeout = std::chrono::milliseconds(500);
  const auto saved = SaveAlone(target_, 2, state_, options);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kUnavailable) << saved.error().message;
  EXPECT_EQ(ListCheckpoints(target_, {}).value().size(), 1U);
}

TEST_F(SharingAtAStoreTest, ACopyThatWasRefusedAfterATryWithoutAnAnswerMayComeLate) {
  EXPECT_GE(Save(1), kStateSize);
  bucket_.LoseFirstCopyAnswer();
  Change(state_);
  const auto saved = SaveAlone(target_, 2, state_, Incremental());
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kUnavailable) << saved.error().message;
}

// As after a credential that had to be renewed.
TEST_F(SharingAtAStoreTest, ACopyThatWasRefusedTwiceComesNeverAndIsSent) {
  EXPECT_GE(Save(1), kStateSize);
  bucket_.RefuseFirstCopy();
  Change(state_);
  EXPECT_GE(Save(2), kStateSize);
}

// As with retention that keeps two steps.
TEST_F(SharingAtAStoreTest, WhatWasReadOfTwoStepsIsNotReadAgain) {
  EXPECT_GE(Save(1), kStateSize);
  for (std::uint64_t step = 2; step < 5; ++step) {
    Change(state_);
    const auto saved = SaveAlone(target_, step, state_, Incremental());
    ASSERT_TRUE(saved) << saved.error().message;
    const std::uint64_t before = bucket_.read_bytes();
    Retention two;
    two.keep_last = 2;
    ASSERT_TRUE(PruneCheckpoints(target_, two, {}));
    if (step > 2) {
      EXPECT_LT(bucket_.read_bytes() - before, kRestMax);
    }
  }
}

TEST_F(SharingAtAStoreTest, BytesWhoseDamageWasSeenAreNotShared) {
  EXPECT_GE(Save(1), kStateSize);
  Change(state_);
  EXPECT_LT(Save(2), kRestMax);
  const std::string attempt = ListCheckpoints(target_, {}).value().back().attempt;
  const std::string key = "run/step-000000002-" + attempt + "/part-00000/seg-0000";
  std::string bytes = bucket_.Get(key);
  ASSERT_GE(bytes.size(), kStateSize);
  bytes[bytes.size() / 2] ^= 1;
  bucket_.Put(key, bytes);
  EXPECT_NE(Compare(target_, state_, 2), "");
  Change(state_);
  EXPECT_GE(Save(3), kStateSize);
}

TEST_F(SharingAtAStoreTest, DamagedBytesAreSentAgain) {
  EXPECT_GE(Save(1), kStateSize);
  const std::string attempt = ListCheckpoints(target_, {}).value().front().attempt;
  const std::string key = "run/step-000000001-" + attempt + "/part-00000/seg-0000";
  std::string bytes = bucket_.Get(key);
  ASSERT_GE(bytes.size(), kStateSize);
  bytes[bytes.size() / 2] ^= 1;
  bucket_.Put(key, bytes);
  Change(state_);
  EXPECT_GE(Save(2), kStateSize);
}

}  // namespace
}  // namespace ffrecord::client
