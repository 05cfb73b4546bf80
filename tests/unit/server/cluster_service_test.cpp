// Goal: daemons of one cluster act as one: what is published at one is served by all, in as many
// replicas as promised; a node that is lost or wiped is made good; nothing but writing needs the
// coordinator.
// Method: three daemons in this process, over TCP, with a store that they share and from which each
// can be cut off; a client by hand.

#include "server/service/cluster/cluster_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "cluster_clients.h"
#include "cut_store.h"
#include "daemon.h"
#include "daemon_metrics.h"
#include "temp_folder.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using test::ClusterClient;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class ClusterServiceTest : public testing::Test {
 protected:
  struct Node {
    std::string id;
    std::shared_ptr<test::CutStore> store;
    std::unique_ptr<test::Daemon> daemon;
  };

  ClusterServiceTest() {
    auto opened = OpenSqliteStore(folder_ / "store.sqlite");
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
  }

  void StartNodes(std::size_t count, const Server::Options& common = {}) {
    for (std::size_t i = 0; i < count; ++i) {
      Node& node = nodes_.emplace_back();
      node.id = "n" + std::to_string(i + 1);
      node.store = std::make_shared<test::CutStore>(store_);
      Server::Options options = common;
      options.core_count = 1;
      options.admin = net::Address{"127.0.0.1", 0};
      options.cluster.emplace();
      options.cluster->connect = [store = node.store]() -> Result<std::shared_ptr<MetaStore>> {
        return std::shared_ptr<MetaStore>(store);
      };
      options.cluster->service.node = node.id;
      options.cluster->service.lease = 4s;
      options.cluster->service.down_grace = down_grace_;
      options.cluster->service.delete_grace = 0ms;
      options.data = {folder_ / node.id};
      node.daemon = std::make_unique<test::Daemon>(options);
    }
    ASSERT_TRUE(WaitForNodes(count));
  }

  // Until a map places slots on so many nodes, and all of them have seen it and are up.
  bool WaitForNodes(std::size_t count) {
    return Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const Node& node) {
        const auto map = Client().GetMap(AddressOf(node));
        return map && map.value().slots.nodes.size() == count &&
               std::ranges::count_if(map.value().reply.nodes, [](const auto& one) {
                 return one.is_up;
               }) == static_cast<std::ptrdiff_t>(count);
      });
    });
  }

  static std::string AddressOf(const Node& node) { return node.daemon->address().ToString(); }
  ClusterClient Client() const {
    std::vector<std::string> addresses;
    for (const Node& node : nodes_) addresses.push_back(AddressOf(node));
    return ClusterClient(addresses, token_);
  }
  std::uint64_t Metric(const Node& node, const std::string& name) const {
    return test::MetricOf(*node.daemon->server().admin_address(), name);
  }
  // The files of the extents on a node's disk.
  static std::vector<std::filesystem::path> ExtentsOf(const Node& node) {
    return node.daemon->Extents();
  }
  // Each is on two disks, and whole.
  bool WaitForReplicas(const DatasetManifest& manifest) const {
    return Eventually([&] {
      const auto extents = test::ExtentsOf(manifest);
      return std::ranges::all_of(
          extents, [&](const ManifestExtent& one) { return Client().CountReplicas(one) == 2; });
    });
  }

  test::TempFolder folder_;
  std::shared_ptr<MetaStore> store_;
  std::chrono::milliseconds down_grace_{600'000};
  std::vector<std::byte> token_;
  std::vector<Node> nodes_;
};

TEST_F(ClusterServiceTest, WhatOnePublishesAllServe) {
  StartNodes(3);
  const auto extents = SomeExtents(6, 100'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;

  const auto revision = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value());

  ASSERT_TRUE(revision) << revision.error().message;
  for (const Node& node : nodes_) {
    const auto resolved = Client().Resolve(AddressOf(node), "train/a");
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(resolved.value(), manifest.value());
  }
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const ManifestExtent extent = test::ExtentsOf(manifest.value())[i];
    EXPECT_EQ(Client().CountReplicas(extent), 2U);
    EXPECT_EQ(Client().Read(extent).value(), extents[i]);
  }
  EXPECT_EQ(Client().Resolve(AddressOf(nodes_[1]), "train/b").error().code, ErrorCode::kNotFound);
}

TEST_F(ClusterServiceTest, FramesCarryTheVersionOfTheMap) {
  StartNodes(1);
  const auto map = Client().GetMap(AddressOf(nodes_[0]));
  ASSERT_TRUE(map) << map.error().message;
  const auto channel = Client().Connect(AddressOf(nodes_[0])).value();

  const auto request = channel->Send(net::FrameType::kPing, {}).value();

  EXPECT_EQ(channel->Receive(request, test::Within(20s), "PING").value().map_version,
            map.value().slots.version);
  const auto known = channel->Call(net::FrameType::kClusterMap,
                                   net::ClusterMap{map.value().slots.version}.Encode(), {},
                                   test::Within(20s), "the map");
  EXPECT_TRUE(known && known.value().payload.empty());
}

TEST_F(ClusterServiceTest, AnExtentOnTooFewNodesIsNotPublished) {
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(2, 10'000), /*replicas=*/1);
  ASSERT_TRUE(manifest) << manifest.error().message;

  const auto refused = Client().Publish(AddressOf(nodes_[1]), "train/a", manifest.value());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
}

TEST_F(ClusterServiceTest, TheSameAttemptHasOneEffect) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(1, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;

  const auto first = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value(), 77);
  const auto again = Client().Publish(AddressOf(nodes_[1]), "train/a", manifest.value(), 77);

  ASSERT_TRUE(first) << first.error().message;
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(first.value(), again.value());
}

TEST_F(ClusterServiceTest, AWipedNodePullsWhatItShouldHold) {
  StartNodes(3);
  const auto extents = SomeExtents(8, 100'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  Node& wiped = nodes_[2];
  ASSERT_FALSE(ExtentsOf(wiped).empty());

  wiped.daemon->Kill();
  for (const auto& path : ExtentsOf(wiped)) std::filesystem::remove(path);
  wiped.daemon->Start();

  EXPECT_TRUE(WaitForReplicas(manifest.value()));
  EXPECT_GT(Metric(wiped, "ffrecord_cluster_pulled_total"), 0U);
  EXPECT_TRUE(Eventually([&] { return Metric(wiped, "ffrecord_cluster_extents_missing") == 0; }));
}

TEST_F(ClusterServiceTest, OthersTakeOverWhatALostNodeHeld) {
  down_grace_ = 0ms;
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(8, 50'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  nodes_[1].daemon->Kill();

  EXPECT_TRUE(WaitForReplicas(manifest.value()));
}

TEST_F(ClusterServiceTest, ARottenReplicaIsReplaced) {
  Server::Options options;
  options.scrub.period = 500ms;
  StartNodes(2, options);
  const auto manifest = Client().Upload(SomeExtents(1, 100'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  Node& rotten = nodes_[1];
  const ManifestExtent extent = test::ExtentsOf(manifest.value()).front();
  for (const auto& path : ExtentsOf(rotten)) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('!');
  }

  EXPECT_TRUE(Eventually([&] { return Client().CountReplicas(extent) == 2; }));
}

TEST_F(ClusterServiceTest, WhatIsRemovedGoesFromAllDisks) {
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(4, 50'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  const auto removed = Client().Remove(AddressOf(nodes_[1]), "train/a");

  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_TRUE(Eventually([&] {
    return std::ranges::all_of(nodes_, [&](const Node& node) { return ExtentsOf(node).empty(); });
  }));
  for (const Node& node : nodes_)
    EXPECT_EQ(Client().Resolve(AddressOf(node), "train/a").error().code, ErrorCode::kNotFound);
}

TEST_F(ClusterServiceTest, WithoutTheStoreReadsGoOnAndPublishingSaysWhy) {
  StartNodes(3);
  const auto extents = SomeExtents(4, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  // Each node has the name on its own disk by the time that its extents are counted.
  for (const Node& node : nodes_) ASSERT_TRUE(Client().Resolve(AddressOf(node), "train/a"));

  for (Node& node : nodes_) node.store->Cut();
  for (Node& node : nodes_) {
    EXPECT_TRUE(node.daemon->Stop(20s));
    node.daemon->Kill();
    node.daemon->Start();
  }

  for (const Node& node : nodes_) {
    const auto resolved = Client().Resolve(AddressOf(node), "train/a");
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(resolved.value(), manifest.value());
    EXPECT_EQ(Metric(node, "ffrecord_cluster_stale"), 1U);
    EXPECT_EQ(Client().GetMap(AddressOf(node)).value().slots.nodes.size(), 3U);
  }
  for (std::size_t i = 0; i < extents.size(); ++i)
    EXPECT_EQ(Client().Read(test::ExtentsOf(manifest.value())[i]).value(), extents[i]);
  const auto refused = Client().Publish(AddressOf(nodes_[0]), "train/b", manifest.value());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("coordinator"), std::string::npos)
      << refused.error().message;

  for (Node& node : nodes_) node.store->Mend();
  EXPECT_TRUE(WaitForNodes(3));
  EXPECT_TRUE(Eventually([&] { return Metric(nodes_[0], "ffrecord_cluster_stale") == 0; }));
  EXPECT_TRUE(Eventually(
      [&] { return bool(Client().Publish(AddressOf(nodes_[0]), "train/b", manifest.value())); }));
}

TEST_F(ClusterServiceTest, ANodeOfAnotherClusterDoesNotTakePart) {
  StartNodes(1);
  auto other = OpenSqliteStore(folder_ / "other.sqlite");
  ASSERT_TRUE(other) << other.error().message;
  MakeBlockingStore(std::move(other).value())
      ->TryCommit({{}, {{"cluster", std::vector<std::byte>(16, std::byte{7})}}, {}})
      .value();
  const auto manifest = Client().Upload(SomeExtents(1, 1000), 1);
  nodes_.front().daemon->Kill();

  Server::Options options;
  options.data = {folder_ / "n1"};
  options.core_count = 1;
  options.cluster.emplace();
  options.cluster->connect = [this]() -> Result<std::shared_ptr<MetaStore>> {
    return std::shared_ptr<MetaStore>(OpenSqliteStore(folder_ / "other.sqlite").value());
  };
  options.cluster->service.node = "n1";
  test::Daemon stray(options);

  const std::string address = stray.address().ToString();
  EXPECT_TRUE(Eventually([&] {
    const auto refused = ClusterClient({address}).Publish(address, "train/a", manifest.value());
    return !refused && refused.error().message.find("belongs to") != std::string::npos;
  }));
}

TEST_F(ClusterServiceTest, OperatorsDrainANode) {
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(8, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  const auto set = Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);

  ASSERT_TRUE(set) << set.error().message;
  EXPECT_TRUE(Eventually([&] { return ExtentsOf(nodes_[2]).empty(); }));
  for (const ManifestExtent& extent : test::ExtentsOf(manifest.value()))
    EXPECT_EQ(Client().CountReplicas(extent), 2U);
  EXPECT_EQ(Client().SetMember(AddressOf(nodes_[0]), "nobody", net::MemberState::kOut).error().code,
            ErrorCode::kNotFound);
}

TEST_F(ClusterServiceTest, OnlyNodesAskWhatNodesAsk) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = test::MakeToken(test::kRead | test::kWrite, "");
  StartNodes(2, options);

  // Nodes show each other tokens of their own.
  const auto manifest = Client().Upload(SomeExtents(2, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  const auto published = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value());
  EXPECT_TRUE(published) << published.error().message;

  const auto channel = Client().Connect(AddressOf(nodes_[0])).value();
  const auto asked = CallPeer(*channel, cluster::AskFilled{"", 1}, test::Within(20s));
  ASSERT_FALSE(asked);
  EXPECT_EQ(asked.error().code, ErrorCode::kDenied);
  EXPECT_EQ(Client().SetMember(AddressOf(nodes_[0]), "n2", net::MemberState::kOut).error().code,
            ErrorCode::kDenied);
}

TEST_F(ClusterServiceTest, ADaemonThatStopsAnswersWhoWaits) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(1, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  for (Node& node : nodes_) node.store->Cut();
  Result<std::uint64_t> published = std::uint64_t{0};
  std::thread publisher(
      [&] { published = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()); });
  ASSERT_TRUE(Eventually(
      [&] { return Metric(nodes_[0], "ffrecord_requests_total{type=\"publish\"}") == 1; }));

  const auto begin = std::chrono::steady_clock::now();
  nodes_[0].daemon->Kill();
  const auto took = std::chrono::steady_clock::now() - begin;

  publisher.join();
  EXPECT_FALSE(published);
  EXPECT_LT(took, 8s);
}

}  // namespace
}  // namespace ffrecord::server
