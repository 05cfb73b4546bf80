// Goal: this node's disk gets the newest state, no mark beyond the names that it has, and in the
// end what failed at first. Method: the keeper alone, over a store whose commits are held, lost or
// refused; it has written what it can once all threads wait, by a clock of the test.

#include "server/service/cluster/state_keeper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "awaiting_store.h"
#include "cut_store.h"
#include "server/metadata/meta_store.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace ffrecord::server {
namespace {

class StateKeeperTest : public testing::Test {
 protected:
  ~StateKeeperTest() override { disk_->ReleaseCommits(); }  // The keeper waits for them.

  static ClusterStatePtr StateWith(const std::string& name) {
    ClusterState::Name of;
    of.record.attempt = 7;
    of.revision = 3;
    auto state = std::make_shared<ClusterState>();
    state->names =
        std::make_shared<const ClusterState::NameMap>(ClusterState::NameMap::Changes{{name, of}});
    return state;
  }
  void Save(const std::string& name, std::uint64_t revision) {
    keeper_.Save(StateWith(name), {1, revision, {}});
  }
  // As the next start of the daemon does.
  bool Has(const std::string& name) {
    const auto loaded = ClusterCache(*home_).Load();
    EXPECT_TRUE(loaded) << loaded.error().message;
    return loaded && loaded.value().Find(name) != nullptr;
  }
  std::uint64_t Mark() { return ClusterCache(*home_).ReadMark().value().revision; }

  test::VirtualClock clock_;
  const test::TempFolder folder_;
  // Owned by the home.
  test::CutStore* const disk_ = new test::CutStore(
      std::shared_ptr<MetaStore>(OpenSqliteStore(folder_ / "home.sqlite").value()));
  const std::unique_ptr<BlockingStore> home_ =
      std::make_unique<test::AwaitingStore>(std::unique_ptr<MetaStore>(disk_));
  std::atomic<int> saved_count_ = 0;
  StateKeeper keeper_{ClusterCache(*home_), "n1", [this] { ++saved_count_; }};
};

TEST_F(StateKeeperTest, AStateIsSavedWithItsMark) {
  EXPECT_EQ(keeper_.saved_revision(), 0U);
  Save("a", 5);
  clock_.RunUntilIdle();
  EXPECT_TRUE(Has("a"));
  EXPECT_EQ(Mark(), 5U);
  EXPECT_EQ(keeper_.saved_revision(), 5U);
  EXPECT_EQ(saved_count_, 1);
}

TEST_F(StateKeeperTest, TheIdIsSavedWithTheNode) {
  net::ClusterId id{};
  id[3] = std::byte{7};
  keeper_.SaveId(id);
  clock_.RunUntilIdle();
  EXPECT_EQ(ClusterCache(*home_).ReadId().value(), id);
  EXPECT_EQ(ClusterCache(*home_).ReadNode().value(), "n1");
  EXPECT_EQ(saved_count_, 0);  // It is no state.
}

// While the disk is slow, the newest alone is worth its time.
TEST_F(StateKeeperTest, AStateThatWasOvertakenIsNotWritten) {
  disk_->HoldCommits();
  Save("a", 5);
  clock_.RunUntilIdle();
  Save("b", 6);
  Save("c", 7);
  EXPECT_EQ(keeper_.saved_revision(), 0U);

  disk_->ReleaseCommits();

  clock_.RunUntilIdle();
  EXPECT_TRUE(Has("c"));
  EXPECT_FALSE(Has("b"));
  EXPECT_EQ(Mark(), 7U);
  EXPECT_EQ(saved_count_, 2);  // Of "a", which was begun, and of "c".
}

TEST_F(StateKeeperTest, AFailedSaveIsRepeatedWhenItIsTriedAgainAndNotBefore) {
  disk_->Cut();
  Save("a", 5);
  clock_.RunUntilIdle();
  disk_->Mend();
  clock_.RunUntilIdle();
  EXPECT_FALSE(Has("a"));
  EXPECT_EQ(keeper_.saved_revision(), 0U);

  keeper_.Retry();

  clock_.RunUntilIdle();
  EXPECT_TRUE(Has("a"));
  EXPECT_EQ(keeper_.saved_revision(), 5U);
  keeper_.Retry();  // There is nothing left.
  clock_.RunUntilIdle();
  EXPECT_EQ(saved_count_, 1);
}

// A mark says that the names up to it are there.
TEST_F(StateKeeperTest, WithoutItsNamesNoMarkIsSaved) {
  Save("a", 5);
  clock_.RunUntilIdle();
  disk_->LoseCommits("cluster/names/b", [] {});
  Save("b", 6);
  clock_.RunUntilIdle();
  EXPECT_EQ(Mark(), 5U);
  EXPECT_EQ(keeper_.saved_revision(), 5U);

  disk_->LoseCommits("none", [] {});
  keeper_.Retry();

  clock_.RunUntilIdle();
  EXPECT_TRUE(Has("b"));
  EXPECT_EQ(Mark(), 6U);
}

TEST_F(StateKeeperTest, OtherWritesComeInTheOrderOfTheCalls) {
  disk_->HoldCommits();
  std::uint64_t mark = 0;
  Save("a", 5);
  keeper_.Post([&] { mark = Mark(); });
  disk_->ReleaseCommits();
  clock_.RunUntilIdle();
  EXPECT_EQ(mark, 5U);
}

}  // namespace
}  // namespace ffrecord::server
