// Goal: when a node stops, everybody who waits for it is answered before it is gone.
// Method: the service alone, over a store that does not answer.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cut_store.h"
#include "daemon.h"
#include "server/service/cluster/cluster_service.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using namespace std::chrono_literals;

class ClusterStopTest : public testing::Test {
 protected:
  // Nobody answers who gets `held`.
  void Start(std::string_view held) {
    auto owned = std::make_shared<test::CutStore>(
        std::shared_ptr<MetaStore>(OpenSqliteStore(folder_ / "store.sqlite").value()));
    owned->HoldGets(std::string(held));
    store_ = owned;
    ClusterService::Options options;
    options.node = "n1";
    service_ = ClusterService::Start(options, std::move(owned), *extents_, *home_).value();
    ASSERT_TRUE(Eventually([&] { return service_->is_leased(); }));
  }
  std::size_t HeldCount() const { return store_.lock()->held_count(); }
  // Who is told the answer.
  template <class T>
  auto Done() {
    return [this](const Result<T>& result) {
      if (!result) error_ = result.error();
      ++answered_;
    };
  }
  void ExpectAnsweredByStop() {
    EXPECT_EQ(answered_, 0);
    service_->Stop();
    EXPECT_EQ(answered_, 1);
    ASSERT_TRUE(error_);
    EXPECT_EQ(error_->code, ErrorCode::kUnavailable) << error_->message;
    service_.reset();
    EXPECT_EQ(answered_, 1);
  }

  const test::TempFolder folder_;
  const std::unique_ptr<ExtentStore> extents_ = ExtentStore::Open(folder_ / "extents").value();
  const std::unique_ptr<BlockingStore> home_ = OpenBlockingStore(folder_ / "home.sqlite").value();
  std::weak_ptr<test::CutStore> store_;
  std::unique_ptr<ClusterService> service_;
  std::atomic<int> answered_ = 0;
  std::optional<Error> error_;
};

TEST_F(ClusterStopTest, WhoWaitsForTheStoreIsAnsweredBeforeTheServiceHasStopped) {
  Start(cluster::kGenerationKey);
  service_->clients().CatchUp("a", 10min, Done<void>());
  ASSERT_TRUE(Eventually([&] { return HeldCount() == 1; }));
  ExpectAnsweredByStop();
}

TEST_F(ClusterStopTest, WhoPublishesIsAnswered) {
  Start("datasets/a");
  cluster::Publication::Request request;
  request.name = "a";
  request.attempt = 5;
  request.deadline = cluster::TimePoint::clock::now() + 10min;
  service_->clients().Publish(std::move(request), Done<std::uint64_t>());
  ASSERT_TRUE(Eventually([&] { return HeldCount() == 1; }));
  ExpectAnsweredByStop();
}

// A comparison waits for all members; the wait ends with the service, and so does what it began.
TEST_F(ClusterStopTest, AnOperatorWhoComparesTheMetadataIsAnswered) {
  Start("nothing");
  const auto put = [&](std::string key, std::vector<std::byte> value) {
    std::promise<bool> made;
    store_.lock()->TryCommit({{}, {{std::move(key), std::move(value)}}, {}}, Clock::now() + 1min,
                             [&](const auto& outcome) { made.set_value(bool(outcome)); });
    return made.get_future().get();
  };
  ASSERT_TRUE(put("members/n2", cluster::MemberRecord{}.Encode()));
  ASSERT_TRUE(Eventually([&] { return service_->state()->nodes.size() == 2; }));
  service_->metadata().WorkOnHistory({}, Done<std::string>());
  ASSERT_TRUE(service_->status().GetStatus());  // Its thread has begun with it.
  ExpectAnsweredByStop();
}

}  // namespace
}  // namespace ffrecord::server
