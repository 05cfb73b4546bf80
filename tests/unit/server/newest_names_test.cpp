// Goal: what a node of a cluster tells of names is the newest that any node has acknowledged, or an
// error; what it knew last it tells only to those who accept that.
// Method: daemons of one cluster in this process, one of which is cut off from the store that they
// share, in each way that leaves it with older names; the others publish meanwhile.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon_cluster.h"
#include "one_node.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

class NewestNamesTest : public test::DaemonCluster {
 protected:
  static constexpr bool kAcceptsOld = true;

  DatasetManifest Uploaded(std::size_t size_bytes) const {
    auto manifest = Client().Upload(SomeExtents(1, size_bytes), 3);
    EXPECT_TRUE(manifest) << manifest.error().message;
    return std::move(manifest).value();
  }
  void Publish(const std::string& name, const DatasetManifest& manifest) const {
    const auto published = Client().Publish(AddressOf(nodes_[1]), name, manifest);
    ASSERT_TRUE(published) << published.error().message;
  }
  // `part` has the first node lose its way to the store, wholly or in part.
  void ExpectNothingOlder(const std::function<void(Node&)>& part) {
    StartNodes(3);
    Node& node = nodes_[0];
    const auto older = Uploaded(10'000);
    Publish("run/1", older);
    ASSERT_EQ(Client().Resolve(AddressOf(node), "run/1").value(), older);

    const auto newer = Uploaded(20'000);
    part(node);
    Publish("run/1", newer);
    Publish("run/2", newer);

    const auto resolved = Client().Resolve(AddressOf(node), "run/1");
    ASSERT_FALSE(resolved);
    EXPECT_EQ(resolved.error().code, ErrorCode::kUnavailable) << resolved.error().message;
    const auto listed = Client().List(AddressOf(node), "run/");
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, ErrorCode::kUnavailable) << listed.error().message;
    EXPECT_EQ(Client().Resolve(AddressOf(nodes_[2]), "run/1").value(), newer);
    EXPECT_EQ(Client().List(AddressOf(nodes_[2]), "run/").value(), (Names{"run/1", "run/2"}));
    EXPECT_EQ(Client().Resolve(AddressOf(node), "run/1", kAcceptsOld).value(), older);
    EXPECT_EQ(Client().List(AddressOf(node), "run/", kAcceptsOld).value(), Names{"run/1"});

    node.store->Mend();
    node.store->ReleaseNews();
    Result<DatasetManifest> again = Error{};
    EXPECT_TRUE(Eventually([&] {
      again = Client().Resolve(AddressOf(node), "run/1");
      return bool(again);
    }));
    EXPECT_EQ(again.value(), newer);
    EXPECT_EQ(Client().List(AddressOf(node), "run/").value(), (Names{"run/1", "run/2"}));
  }
  void AwaitNoLease(const Node& node) const {
    EXPECT_TRUE(Eventually([&] { return Metric(node, "ffrecord_cluster_leased") == 0; }));
  }
};

TEST_F(NewestNamesTest, ANodeThatHasLostItsLeaseDoesNotSpeakForNames) {
  ExpectNothingOlder([this](Node& node) {
    node.store->Cut();
    AwaitNoLease(node);
  });
}

TEST_F(NewestNamesTest, ANodeThatIsCutOffDoesNotSpeakForNamesEvenBeforeItsLeaseEnds) {
  ExpectNothingOlder([](Node& node) { node.store->Cut(); });
}

TEST_F(NewestNamesTest, ANodeThatHasJustStartedDoesNotSpeakForNames) {
  ExpectNothingOlder([this](Node& node) {
    EXPECT_TRUE(node.daemon->Stop(20s));
    node.daemon->Kill();
    node.store->Cut();
    node.daemon->Start();
    AwaitNoLease(node);
  });
}

// Its lease is renewed, and what it follows is silent.
TEST_F(NewestNamesTest, ANodeThatHearsNothingNewDoesNotSpeakForNames) {
  ExpectNothingOlder([](Node& node) { node.store->HoldNews(); });
}

// An answer of the store says nothing to who asks after the question.
TEST(NewestLookTest, WhoAsksWhileTheStoreIsAskedIsAnsweredByTheNextQuestion) {
  test::OneNode one;
  const auto finished = [&] { return one.node->TakeFinished().size(); };
  one.is_store_silent = true;
  one.node->BeginLook("a", one.now + 10s);
  one.Run(0ms);
  ASSERT_EQ(one.Asked<cluster::GetKey>().size(), 1U);
  one.node->BeginLook("a", one.now + 10s);
  one.Run(0ms);
  EXPECT_EQ(one.Asked<cluster::GetKey>().size(), 1U);

  using Found = Result<std::optional<MetaStore::KeyValue>>;
  const auto answer = [](const cluster::GetKey&) { return Found(std::nullopt); };
  one.Answer<cluster::GetKey>(answer);
  EXPECT_EQ(finished(), 1U);
  one.Run(0ms);
  ASSERT_EQ(one.Asked<cluster::GetKey>().size(), 1U);
  one.Answer<cluster::GetKey>(answer);
  EXPECT_EQ(finished(), 1U);
}

TEST(NewestLookTest, ANodeWithoutALeaseRefusesAtOnceAndAFailureOfTheStoreIsTold) {
  test::OneNode one;
  one.is_store_silent = true;
  one.node->BeginLook("a", one.now + 10s);
  one.Run(0ms);
  one.Answer<cluster::GetKey>([](const cluster::GetKey&) {
    return Result<std::optional<MetaStore::KeyValue>>(Error{ErrorCode::kUnavailable, "away"});
  });
  auto finished = one.node->TakeFinished();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_FALSE(finished.front().result);
  one.Run(60s);  // Its lease is over.
  one.node->BeginLook("a", one.now + 10s);
  one.Run(0ms);
  finished = one.node->TakeFinished();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_NE(finished.front().result.error().message.find("lease"), std::string::npos);
}

}  // namespace
}  // namespace ffrecord::server
