// Goal: daemons of two versions run in one cluster; what only the later one understands begins when
// an operator says so; and afterwards no daemon of the earlier version takes part.
// Method: daemons of one cluster in this process, told which feature level they know.

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>

#include "daemon_cluster.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class ClusterLevelTest : public test::DaemonCluster {
 protected:
  void Adjust(const std::string& node, Server::Options& options) override {
    options.cluster->service.feature_level = levels_.at(node);
  }
  void Install(std::size_t i, std::uint32_t level) {
    levels_[nodes_[i].id] = level;
    RestartNode(nodes_[i]);
  }
  Error WhyNotRaised(std::uint32_t level) {
    const auto raised = Client().RaiseLevel(AddressOf(nodes_[1]), level);
    return raised ? Error{} : raised.error();
  }
  static bool Shows(const Node& node, const std::string& text) {
    return Page(node, "/cluster").find(text) != std::string::npos;
  }
  bool CanPublish(const std::string& name) {
    return Eventually([&] {
      const auto manifest = Client().Upload(SomeExtents(1, 1'000));
      return manifest && Client().Publish(AddressOf(nodes_[1]), name, manifest.value());
    });
  }

  std::map<std::string, std::uint32_t> levels_{{"n1", 1}, {"n2", 1}, {"n3", 1}};
};

TEST_F(ClusterLevelTest, NodesAreUpgradedOneByOneAndTheLevelIsRaisedAtTheEnd) {
  StartNodes(3);
  for (const std::size_t i : {1U, 2U}) {
    Install(i, 2);
    ASSERT_TRUE(WaitForNodes(3));
    EXPECT_TRUE(CanPublish("while/" + std::to_string(i)));
  }
  EXPECT_TRUE(Eventually([&] { return Shows(nodes_[1], "\"level\": 1, \"nodes\""); }));

  const Error behind = WhyNotRaised(2);
  EXPECT_EQ(behind.code, ErrorCode::kConflict);
  EXPECT_NE(behind.message.find("not all know 2"), std::string::npos) << behind.message;
  EXPECT_EQ(Client().RaiseLevel(AddressOf(nodes_[1]), 0).value(), 1U);  // What all know.

  Install(2, 1);  // The way back.
  ASSERT_TRUE(WaitForNodes(3));
  Install(2, 2);
  Install(0, 2);
  ASSERT_TRUE(WaitForNodes(3));
  EXPECT_EQ(Client().RaiseLevel(AddressOf(nodes_[1]), 0).value(), 2U);
  EXPECT_EQ(Client().RaiseLevel(AddressOf(nodes_[0]), 2).value(), 2U);  // Is done already.
  EXPECT_EQ(WhyNotRaised(1).code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(CanPublish("after"));

  Install(0, 1);
  EXPECT_TRUE(Eventually([&] {
    return Shows(nodes_[0], "the cluster is at feature level 2, and this daemon knows 1");
  }));
  EXPECT_EQ(Metric(nodes_[0], "ffrecord_cluster_leased"), 0U);
  EXPECT_TRUE(Client().Resolve(AddressOf(nodes_[1]), "while/1"));  // Reads go on.
  EXPECT_TRUE(Client().Resolve(AddressOf(nodes_[0]), "while/1", /*accepts_old=*/true));
  Install(0, 2);
  ASSERT_TRUE(WaitForNodes(3));
}

TEST_F(ClusterLevelTest, ANodeThatIsDownMayBeOfAnEarlierVersion) {
  for (auto& [id, level] : levels_) level = 2;
  StartNodes(3);
  // A new cluster has its founder's level.
  EXPECT_EQ(Client().RaiseLevel(AddressOf(nodes_[1]), 0).value(), 2U);
  for (std::size_t i = 0; i < 3; ++i) Install(i, 3);
  ASSERT_TRUE(WaitForNodes(3));
  nodes_[2].daemon->Kill();
  ASSERT_TRUE(Eventually([&] { return WhyNotRaised(3).code == ErrorCode::kConflict; }));
  EXPECT_NE(WhyNotRaised(3).message.find("n3 down"), std::string::npos) << WhyNotRaised(3).message;
  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[1]), "n3", net::MemberState::kOut));
  EXPECT_EQ(Client().RaiseLevel(AddressOf(nodes_[1]), 3).value(), 3U);
}

TEST_F(ClusterLevelTest, ANodeThatRunsLetsItsLeaseEndWhenTheLevelPassesIt) {
  StartNodes(2);
  Install(1, 2);
  ASSERT_TRUE(WaitForNodes(2));
  using cluster::LevelRecord;
  std::promise<bool> put;
  store_->TryCommit({{}, {{std::string(cluster::kLevelKey), LevelRecord{2}.Encode()}}, {}},
                    test::Within(20s), [&](const auto& done) { put.set_value(bool(done)); });
  ASSERT_TRUE(put.get_future().get());

  EXPECT_TRUE(Eventually([&] { return Metric(nodes_[0], "ffrecord_cluster_leased") == 0; }));
  EXPECT_TRUE(Shows(nodes_[0], "this daemon knows 1"));
  EXPECT_EQ(Metric(nodes_[1], "ffrecord_cluster_leased"), 1U);
}

}  // namespace
}  // namespace ffrecord::server
