// Goal: daemons of one cluster act as one: what is published at one is served by all, in as many
// replicas as promised; a node that is lost or wiped is made good; nothing but writing needs the
// coordinator.
// Method: three daemons in this process, over TCP, with a store that they share and from which each
// can be cut off; a client by hand.

#include "server/service/cluster/cluster_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "cluster_clients.h"
#include "daemon_cluster.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using test::ClusterClient;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

using ClusterServiceTest = test::DaemonCluster;

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

// One of two commits loses, for both compare the generation: it looks again, and commits once more.
TEST_F(ClusterServiceTest, NamesThatAreReplacedAtTheSameTimeAreAllReplaced) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(1, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  for (const char* const name : {"kept", "train/a", "train/b"})
    ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), name, manifest.value()));

  for (int round = 0; round < 20; ++round) {
    Result<std::uint64_t> one = std::uint64_t{0};
    std::thread publisher(
        [&] { one = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()); });
    const auto other = Client().Publish(AddressOf(nodes_[1]), "train/b", manifest.value());
    publisher.join();

    ASSERT_TRUE(one) << one.error().message;
    ASSERT_TRUE(other) << other.error().message;
  }
}

TEST_F(ClusterServiceTest, AQuotaHoldsForPublicationsThroughDifferentNodes) {
  Server::Options options;
  options.quotas = {{"train/", 30'000}};
  StartNodes(2, options);
  const auto manifest = Client().Upload(SomeExtents(2, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;

  for (int round = 0; round < 3; ++round) {
    Result<std::uint64_t> one = std::uint64_t{0}, other = std::uint64_t{0};
    std::thread publisher(
        [&] { one = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()); });
    other = Client().Publish(AddressOf(nodes_[1]), "train/b", manifest.value());
    publisher.join();

    ASSERT_NE(bool(one), bool(other));
    const Error& refused = one ? other.error() : one.error();
    EXPECT_EQ(refused.system_errno, EDQUOT) << refused.message;
    ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "kept", manifest.value()));
    ASSERT_TRUE(Client().Remove(AddressOf(nodes_[1]), one ? "train/a" : "train/b"));
  }
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

// The clock stands still but for those who sleep: without a pace, no time passes.
TEST_F(ClusterServiceTest, ANodePullsNoFasterThanItMay) {
  using Ticks = PullPace::Time::rep;
  const auto time = std::make_shared<std::atomic<Ticks>>(PullPace::Time::duration(1000s).count());
  pull_clock_.now = [time] { return PullPace::Time(PullPace::Time::duration(time->load())); };
  pull_clock_.sleep = [time](PullPace::Time::duration slept) { *time += slept.count(); };
  pull_bytes_per_s_ = 400'000;
  StartNodes(2);  // Both hold everything.
  const auto manifest = Client().Upload(SomeExtents(8, 100'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  Node& wiped = nodes_[1];
  wiped.daemon->Kill();
  for (const auto& path : ExtentsOf(wiped)) std::filesystem::remove(path);
  const auto started = pull_clock_.now();

  wiped.daemon->Start();

  EXPECT_TRUE(WaitForReplicas(manifest.value()));
  // The last extent is asked for once the seven before it have had their time.
  EXPECT_GE(pull_clock_.now() - started, 1750ms - PullPace::kUnusedMax);
}

// Else it would come once nobody counts it as left any more, and stay.
TEST_F(ClusterServiceTest, WhatIsBeingPulledIsNotGone) {
  struct Gate {
    ~Gate() { is_open = true; }
    std::atomic<bool> is_open{false}, is_reached{false};
  };
  const auto gate = std::make_shared<Gate>();
  pull_clock_.now = [gate] {
    gate->is_reached = true;
    gate->is_open.wait(false);
    return PullPace::Time::clock::now();
  };
  pull_bytes_per_s_ = 1 << 30;
  StartNodes(2);  // Both hold everything.
  const auto manifest = Client().Upload(SomeExtents(1, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  const auto revision = Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value());
  ASSERT_TRUE(revision);
  Node& wiped = nodes_[1];
  wiped.daemon->Kill();
  for (const auto& path : ExtentsOf(wiped)) std::filesystem::remove(path);
  wiped.daemon->Start();
  const bool is_pulling = Eventually([&] { return gate->is_reached.load(); });
  const bool is_removed = bool(Client().Remove(AddressOf(nodes_[0]), "train/a"));
  const bool is_known = Eventually(
      [&] { return Page(wiped, "/cluster").find("\"tombstones\": 1") != std::string::npos; });

  const net::AskBuried question{{"deletes/name-" + Hex(revision.value()) + "-0"}};
  const auto reply = Client()
                         .Connect(AddressOf(wiped))
                         .value()
                         ->Call(net::FrameType::kAskBuried, question.Encode(), {},
                                test::Within(20s), "a tombstone");

  gate->is_open = true;
  gate->is_open.notify_all();
  EXPECT_TRUE(is_pulling && is_removed && is_known);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(net::FlagsReply::Decode(reply.value().body).value().flags, std::vector<bool>{false});
  EXPECT_TRUE(Eventually([&] {
    return std::ranges::all_of(nodes_, [](const Node& node) {
      return ExtentsOf(node).empty() &&
             Page(node, "/cluster").find("\"tombstones\": 0") != std::string::npos;
    });
  }));
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

class ClusterAddressTest : public test::DaemonCluster {
 protected:
  void Adjust(const std::string& node, Server::Options& options) override {
    if (node == "n3") options.cluster->service.advertise = AddressOf(nodes_[1]);
  }
  static bool Says(const Node& node, const std::string& text) {
    return Page(node, "/cluster").find(text) != std::string::npos;
  }
};

// Else one disk would count as two.
TEST_F(ClusterAddressTest, ANodeAtTheAddressOfAnotherIsNotTakenForIt) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(8, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  StartNode("n3");

  // Whichever of them asks it.
  EXPECT_TRUE(Eventually([&] {
    return Says(nodes_[0], "and node n2 of cluster") || Says(nodes_[1], "and node n2 of cluster");
  })) << Page(nodes_[0], "/cluster");
  // Nobody has taken n2's word that n3 has its extents.
  EXPECT_TRUE(Says(nodes_[0], "\"moving\": true"));

  // Nor is it told for ever, once the cluster does without that node.
  nodes_[2].daemon->Kill();
  EXPECT_TRUE(Eventually([&] {
    return bool(Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kOut));
  }));
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(Eventually([&] { return Says(nodes_[i], "\"refusals\": []"); }))
        << Page(nodes_[i], "/cluster");
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
    const auto resolved = Client().Resolve(AddressOf(node), "train/a", /*accepts_old=*/true);
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
  OpenBlockingStore(folder_ / "other.sqlite")
      .value()
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

TEST_F(ClusterServiceTest, AStoreThatWasMadeAnewIsNotTakenForTheOldOne) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(2, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  for (const Node& node : nodes_) ASSERT_TRUE(Client().Resolve(AddressOf(node), "train/a"));

  std::shared_ptr<MetaStore> anew = OpenSqliteStore(folder_ / "anew.sqlite").value();
  for (Node& node : nodes_) node.store->LeadTo(anew);

  for (const Node& node : nodes_) {
    EXPECT_TRUE(Eventually([&] { return Metric(node, "ffrecord_cluster_frozen") == 1; }));
    EXPECT_TRUE(Eventually([&] { return Metric(node, "ffrecord_cluster_leased") == 0; }));
    EXPECT_EQ(Client().Resolve(AddressOf(node), "train/a").error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(Client().Resolve(AddressOf(node), "train/a", /*accepts_old=*/true).value(),
              manifest.value());
    EXPECT_EQ(Client().GetMap(AddressOf(node)).value().slots.nodes.size(), 2U);
  }
  std::promise<Result<MetaStore::Page>> listed;
  anew->List({}, test::Within(20s),
             [&](Result<MetaStore::Page> page) { listed.set_value(std::move(page)); });
  EXPECT_TRUE(listed.get_future().get().value().entries.empty());
}

TEST_F(ClusterServiceTest, AManifestThatNoDiskHasIsRestoredByWhoeverKnowsIt) {
  StartNodes(3);
  auto manifest = Client().Upload(SomeExtents(4, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  test::MakeLarge(manifest.value());
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  for (const Node& node : nodes_) ASSERT_TRUE(Client().Resolve(AddressOf(node), "train/a"));
  const auto is_of_manifest = [](const std::filesystem::path& path) {
    return path.filename().string().ends_with("ffffffff00000000");
  };
  const auto copies = [&] {
    std::ptrdiff_t count = 0;
    for (const Node& node : nodes_) count += std::ranges::count_if(ExtentsOf(node), is_of_manifest);
    return count;
  };
  ASSERT_EQ(copies(), 2);

  for (Node& node : nodes_) {
    EXPECT_TRUE(node.daemon->Stop(20s));
    node.daemon->Kill();
    for (const auto& path : ExtentsOf(node))
      if (is_of_manifest(path)) std::filesystem::remove(path);
  }
  for (Node& node : nodes_) node.daemon->Start();

  ASSERT_TRUE(WaitForNodes(3));
  EXPECT_TRUE(Eventually([&] { return copies() >= 2; }));
  const auto later = Client().Publish(AddressOf(nodes_[1]), "train/b", manifest.value());
  EXPECT_TRUE(later) << later.error().message;
}

TEST_F(ClusterServiceTest, ANodeWhoseReplicasHaveNowhereToGoIsNotDrained) {
  StartNodes(2);

  const auto set = Client().SetMember(AddressOf(nodes_[0]), "n2", net::MemberState::kDraining);

  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kConflict) << set.error().message;
  EXPECT_NE(set.error().message.find("1 other failure domains"), std::string::npos)
      << set.error().message;
}

// Each by itself could go. The map still has weight for both when they are asked for.
TEST_F(ClusterServiceTest, OfTwoNodesThatCannotBothGoOneIsDrained) {
  StartNodes(3);
  for (int round = 0; round < 5; ++round) {
    Result<void> first, second;
    std::thread other([&] {
      first = Client().SetMember(AddressOf(nodes_[1]), "n2", net::MemberState::kDraining);
    });
    second = Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);
    other.join();

    EXPECT_NE(bool(first), bool(second)) << round;
    const Result<void>& refused = first ? second : first;
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
    const std::string drained = first ? "n2" : "n3";
    ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[0]), drained, net::MemberState::kIn));
  }
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
  // Nor may everybody do what operators do.
  const net::MetadataHistory history{net::MetadataHistory::Action::kConfirm, false, 1};
  const std::pair<net::FrameType, std::vector<std::byte>> requests[] = {
      {net::FrameType::kSetLevel, net::SetLevel{1}.Encode()},
      {net::FrameType::kMetadataList, net::MetadataList{}.Encode()},
      {net::FrameType::kMetadataPut, net::MetadataPut{7, true, {}}.Encode()},
      {net::FrameType::kMetadataHistory, history.Encode()}};
  for (const auto& [type, body] : requests) {
    const auto done = channel->Call(type, body, {}, test::Within(20s), "what operators do");
    ASSERT_FALSE(done) << static_cast<int>(type);
    EXPECT_EQ(done.error().code, ErrorCode::kDenied) << static_cast<int>(type);
  }
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
  EXPECT_LT(took, 30s);  // The publisher would wait for 40 s.
}

}  // namespace
}  // namespace ffrecord::server
