// Goal: when a node stops, everybody who waits for it is answered before it is gone.
// Method: the service alone, over a store that does not answer.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>

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
  const std::unique_ptr<BlockingStore> home_ =
      MakeBlockingStore(OpenSqliteStore(folder_ / "home.sqlite").value());
  std::weak_ptr<test::CutStore> store_;
  std::unique_ptr<ClusterService> service_;
  std::atomic<int> answered_ = 0;
  std::optional<Error> error_;
};

TEST_F(ClusterStopTest, WhoWaitsForTheStoreIsAnsweredBeforeTheServiceHasStopped) {
  Start(cluster::kGenerationKey);
  service_->CatchUp("a", 10min, Done<void>());
  ASSERT_TRUE(Eventually([&] { return HeldCount() == 1; }));
  ExpectAnsweredByStop();
}

TEST_F(ClusterStopTest, WhoPublishesIsAnswered) {
  Start("datasets/a");
  cluster::Publication::Request request;
  request.name = "a";
  request.attempt = 5;
  request.deadline = cluster::TimePoint::clock::now() + 10min;
  service_->Publish(std::move(request), Done<std::uint64_t>());
  ASSERT_TRUE(Eventually([&] { return HeldCount() == 1; }));
  ExpectAnsweredByStop();
}

}  // namespace
}  // namespace ffrecord::server
