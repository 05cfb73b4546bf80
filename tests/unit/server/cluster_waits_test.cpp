// Goal: a node answers once what its caller waits for has come and not before; it removes nothing
// while it does not know whether it may; and when it stops, nobody waits for its lease.
// Method: the service alone, over a store whose answers are held back, by a clock of the test.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "awaiting_store.h"
#include "bytes.h"
#include "cut_store.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "server/service/cluster/cluster_service.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using namespace std::chrono_literals;

std::shared_ptr<MetaStore> OpenShared(const std::filesystem::path& path) {
  return std::shared_ptr<MetaStore>(OpenSqliteStore(path).value());
}

class ClusterWaitsTest : public testing::Test {
 protected:
  void SetUp() override {
    ClusterService::Options options;
    options.node = options.domain = "n1";
    options.replicas = 1;
    options.lease = 10min;  // It ends by itself in no test.
    options.approves_members = true;
    service_ = ClusterService::Start(options, way_, *extents_, *home_).value();
    ASSERT_TRUE(Eventually([&] { return service_->is_leased(); }));
  }
  void TearDown() override {
    home_way_->ReleaseCommits();  // The service waits for them as it stops.
    service_.reset();
  }

  void Put(std::string_view key, std::vector<std::byte> value) {
    std::promise<bool> put;
    store_->TryCommit({{}, {{std::string(key), std::move(value)}}, {}}, Clock::now() + 1min,
                      [&](const auto& outcome) { put.set_value(bool(outcome)); });
    ASSERT_TRUE(put.get_future().get());
  }
  bool IsUp(std::string_view node) const {
    return std::ranges::any_of(service_->state()->nodes,
                               [&](const auto& known) { return known.id == node && known.is_up; });
  }
  // The store answers one after another: all that was asked before is answered too.
  std::optional<MetaStore::KeyValue> Get(std::string key) {
    std::promise<std::optional<MetaStore::KeyValue>> got;
    store_->Get(std::move(key), Clock::now() + 1min,
                [&](const auto& found) { got.set_value(found ? found.value() : std::nullopt); });
    return got.get_future().get();
  }
  bool Has(std::string_view key) { return Get(std::string(key)).has_value(); }
  template <class T>
  auto Done() {
    return [this](const Result<T>& result) {
      is_well_ = bool(result);
      code_ = result ? ErrorCode::kOk : result.error().code;
      why_ = result ? "" : result.error().message;
      answered_at_ = Clock::now();
      ++answered_;
    };
  }
  // As the daemon does now and then.
  void Collect() {
    for (const auto& disk : extents_->disks()) service_->extents().Collect(disk.get());
  }
  // The service has done what it was told before, and answered what it could.
  void LetItStep() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(service_->status().GetStatus());
  }

  test::VirtualClock clock_;
  const test::TempFolder folder_;
  const std::unique_ptr<ExtentStore> extents_ = ExtentStore::Open(folder_ / "extents").value();
  const std::shared_ptr<MetaStore> store_ = OpenShared(folder_ / "store.sqlite");
  const std::shared_ptr<test::CutStore> way_ = std::make_shared<test::CutStore>(store_);
  // Owned by the home, which the service outlives in no test.
  test::CutStore* const home_way_ = new test::CutStore(OpenShared(folder_ / "home.sqlite"));
  const std::unique_ptr<BlockingStore> home_ =
      std::make_unique<test::AwaitingStore>(std::unique_ptr<MetaStore>(home_way_));
  std::unique_ptr<ClusterService> service_;
  std::atomic<int> answered_ = 0;
  std::atomic<bool> is_well_ = false;
  std::atomic<Clock::time_point> answered_at_{};
  ErrorCode code_ = ErrorCode::kOk;  // Of the last answer.
  std::string why_;
};

// Else the others count it as up until its lease has ended.
TEST_F(ClusterWaitsTest, ANodeThatStopsGivesItsLeaseBack) {
  ASSERT_TRUE(Has("nodes/n1"));
  service_->Stop();
  EXPECT_TRUE(Eventually([&] { return !Has("nodes/n1"); }));
}

// The store has the change, and this node has not heard of it.
TEST_F(ClusterWaitsTest, WhoCatchesUpIsAnsweredOnceThisNodeKnowsTheLastPublication) {
  way_->HoldNews();
  Put(cluster::kGenerationKey, {});
  service_->clients().CatchUp("a", 10min, Done<void>());
  LetItStep();  // It asks the store,
  EXPECT_TRUE(Has(cluster::kGenerationKey));
  LetItStep();  // and has been answered.
  EXPECT_EQ(answered_, 0);

  way_->ReleaseNews();

  EXPECT_TRUE(Eventually([&] { return answered_ == 1; }));
  EXPECT_TRUE(is_well_) << why_;
}

// But not for ever: the publication has succeeded.
TEST_F(ClusterWaitsTest, WhoPublishesWaitsUntilThisNodesDiskHasTheName) {
  DatasetManifest manifest;
  manifest.files.push_back({"empty", 0, {}});
  cluster::Publication::Request request;
  request.name = "a";
  request.attempt = 5;
  request.replicas = 1;
  request.manifest = EncodeDatasetManifest(manifest).value();
  request.deadline = Clock::now() + 10min;
  ASSERT_TRUE(Eventually([&] { return service_->map_version() != 0 && IsUp("n1"); }));
  home_way_->HoldCommits();
  const auto begun = Clock::now();

  service_->clients().Publish(std::move(request), Done<std::uint64_t>());

  EXPECT_TRUE(Eventually([&] { return answered_ == 1; }));
  EXPECT_TRUE(is_well_) << why_;
  EXPECT_GE(answered_at_.load() - begun, 2s);
}

TEST_F(ClusterWaitsTest, NothingIsRemovedWhileTheMetadataIsNotTrusted) {
  const std::string text(1000, 'x');
  const ManifestExtent extent{MakeExtentId(7, 0, 0), text.size(), Xxh3(test::AsBytes(text))};
  ASSERT_TRUE(service_->extents().Write(extent, test::AsBytes(text)));
  way_->Cut();
  service_->WorkOnHistory({}, Done<std::string>());  // It doubts, and cannot look.
  LetItStep();

  service_->extents().Drop(extent.id);

  Collect();
  EXPECT_TRUE(service_->extents().has_dropped());
  way_->Mend();
  EXPECT_TRUE(Eventually([&] {
    Collect();
    return !service_->extents().has_dropped();
  }));
}

// What the one who is away knows would be missing from it.
TEST_F(ClusterWaitsTest, TheMetadataIsComparedOnceAllMembersAreThere) {
  Put("members/n2", cluster::MemberRecord{}.Encode());
  ASSERT_TRUE(Eventually([&] { return service_->state()->nodes.size() == 2; }));

  service_->WorkOnHistory({}, Done<std::string>());

  clock_.RunFor(9s);  // It waits no longer than 10 s.
  EXPECT_EQ(answered_, 0);
  cluster::MemberRecord out;
  out.state = cluster::MemberRecord::State::kOut;
  Put("members/n2", out.Encode());
  EXPECT_TRUE(Eventually([&] { return answered_ == 1; }));
}

// --- Commits of which that is known, or is not ---------------------------------------------------

class ClusterOutcomesTest : public ClusterWaitsTest {
 protected:
  // Put back to an older state; nobody has confirmed it.
  void PutBack(std::uint64_t incarnation) {
    ASSERT_TRUE(Eventually([&] { return service_->status().GetStatus().value().is_leading; }));
    const auto found = Get(std::string(cluster::kHistoryKey));
    ASSERT_TRUE(found);
    auto record = cluster::HistoryRecord::Decode(found->value).value();
    record.AddAncestors({&record.incarnation, 1});
    record.incarnation = incarnation;
    record.is_confirmed = false;
    Put(cluster::kHistoryKey, record.Encode());
    ASSERT_TRUE(Eventually([&] { return service_->status().GetStatus().value().is_frozen; }));
  }
  void Confirm(std::uint64_t incarnation) {
    service_->WorkOnHistory({net::MetadataHistory::Action::kConfirm, false, incarnation},
                            Done<std::string>());
  }
  void ExpectInDoubt() {
    ASSERT_TRUE(Eventually([&] { return answered_ == 1; }));
    EXPECT_EQ(code_, ErrorCode::kDeadlineExceeded) << why_;
    EXPECT_NE(why_.find("may still take effect"), std::string::npos) << why_;
  }
  void ExpectMadeAfterStop() {
    service_->Stop();
    EXPECT_EQ(answered_, 0);
    way_->ReleaseCommits();
    ASSERT_TRUE(Eventually([&] { return answered_ == 1; }));
    EXPECT_TRUE(is_well_) << why_;
  }
};

TEST_F(ClusterOutcomesTest, AChangeOfANodeThatIsMadeWhileTheDaemonStopsIsNotRefused) {
  Put("members/n2", cluster::MemberRecord{}.Encode());
  ASSERT_TRUE(Eventually([&] { return service_->state()->nodes.size() == 2; }));
  way_->HoldCommits();
  service_->SetMember({net::MemberState::kOut, "n2"}, Done<void>());
  ASSERT_TRUE(Eventually([&] { return way_->HoldsCommitOf("members/n2"); }));
  ExpectMadeAfterStop();
}

TEST_F(ClusterOutcomesTest, AConfirmationThatIsMadeWhileTheDaemonStopsIsNotRefused) {
  PutBack(77);
  way_->HoldCommits();
  Confirm(77);
  ASSERT_TRUE(Eventually([&] { return way_->HoldsCommitOf(cluster::kHistoryKey); }));
  ExpectMadeAfterStop();
}

TEST_F(ClusterOutcomesTest, AConfirmationWithoutAnAnswerIsNotCalledUndone) {
  PutBack(77);
  way_->LoseCommits(std::string(cluster::kHistoryKey), [] {});
  Confirm(77);
  ExpectInDoubt();
}

TEST_F(ClusterOutcomesTest, APartOfABackupWithoutAnAnswerIsNotCalledUndone) {
  way_->LeadTo(OpenShared(folder_ / "empty.sqlite"));
  way_->LoseCommits("restore", [] {});
  net::MetadataPut part;
  part.backup = 5;
  service_->PutMetadata(part, Done<void>());
  ExpectInDoubt();
}

}  // namespace
}  // namespace ffrecord::server
