// Goal: nodes join only when they may; operators see what holds extents, what a change would copy,
// and what is lost.
// Method: daemons of one cluster in this process; the pages of their admin ports.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <thread>

#include "daemon_cluster.h"
#include "server/storage/extent_trailer.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

bool Has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

class ClusterJoiningTest : public test::DaemonCluster {
 protected:
  ClusterJoiningTest() {
    approves_members_ = false;
    expected_count_ = 1;
  }
  // As its disk says.
  static std::string DaemonIdOf(const Node& node) {
    const std::string text = test::ReadFile(node.daemon->data() / "identity");
    const std::size_t at = text.find("daemon ");
    return at == std::string::npos ? "" : text.substr(at + 7, 32);
  }
  std::optional<net::MemberState> StateOf(const std::string& id) const {
    const auto map = Client().GetMap(AddressOf(nodes_[0]));
    if (!map) return std::nullopt;
    const auto found =
        std::ranges::find(map.value().reply.nodes, id, &net::ClusterMapReply::Node::id);
    return found == map.value().reply.nodes.end() ? std::nullopt : std::optional(found->state);
  }
};

TEST_F(ClusterJoiningTest, ANewNodeWaitsUntilItIsApproved) {
  StartNodes(2);
  // The one that was first in the store founds the cluster.
  const std::size_t founder = StateOf("n1") == net::MemberState::kIn ? 0 : 1;
  const std::string other = founder == 0 ? "n2" : "n1";
  ASSERT_TRUE(Eventually([&] { return StateOf(other) == net::MemberState::kWaiting; }));
  const Node& waiting = nodes_[1 - founder];
  EXPECT_TRUE(Has(Page(waiting, "/cluster"), "waits for approval"));
  EXPECT_TRUE(Has(Page(nodes_[founder], "/cluster"), "\"state\": \"waiting\", \"is_up\": false"));
  EXPECT_EQ(Metric(nodes_[founder], "ffrecord_cluster_nodes{state=\"waiting\"}"), 1U);
  // What an operator decides by.
  const auto what_waits = [&] {
    const auto map = Client().GetMap(AddressOf(nodes_[founder]));
    return map ? map.value().reply.waiting : std::vector<net::ClusterMapReply::Waiting>();
  };
  ASSERT_TRUE(Eventually([&] { return what_waits().size() == 1; }));
  const auto shown = what_waits().front();
  EXPECT_EQ(shown.id, other);
  EXPECT_EQ(shown.address, AddressOf(waiting));
  EXPECT_EQ(shown.daemon, DaemonIdOf(waiting));
  const std::chrono::milliseconds since(shown.since_unix_ms);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_LE(since, now);
  EXPECT_GT(since, now - 600s);
  EXPECT_TRUE(Has(Page(nodes_[founder], "/cluster"), "\"waiting\": {\"address\": \"" +
                                                         AddressOf(waiting) + "\", \"daemon\": \"" +
                                                         shown.daemon + "\""));
  const auto refused = Client().Publish(AddressOf(waiting), "a", DatasetManifest{});
  ASSERT_FALSE(refused);
  EXPECT_TRUE(Has(refused.error().message, "waits for approval")) << refused.error().message;

  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[founder]), other, net::MemberState::kIn));

  EXPECT_TRUE(WaitForNodes(2));
  EXPECT_TRUE(Eventually([&] { return what_waits().empty(); }));
  EXPECT_FALSE(Has(Page(nodes_[founder], "/cluster"), "\"waiting\": {"));
  waiting.daemon->Kill();
  waiting.daemon->Start();
  EXPECT_TRUE(WaitForNodes(2));  // It was approved for good.
}

// A disk that was copied, or a node that was given another name.
TEST_F(ClusterJoiningTest, ADataFolderOfOneNodeIsNotThatOfAnother) {
  StartNodes(1);
  auto options = OptionsOf(nodes_[0]);
  nodes_[0].daemon.reset();
  options.data = {folder_ / "copy"};
  std::filesystem::copy(folder_ / "n1", folder_ / "copy", std::filesystem::copy_options::recursive);
  nodes_[0].daemon = std::make_unique<test::Daemon>(OptionsOf(nodes_[0]));
  options.cluster->service.node = "n2";

  const auto started = Server::Start(options);

  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(Has(started.error().message, "that of node n1, and this daemon is node n2"));
  EXPECT_TRUE(Has(started.error().message, "`node = \"n1\"`")) << started.error().message;
  EXPECT_TRUE(Has(started.error().message, "an empty one"));
  EXPECT_EQ(StateOf("n2"), std::nullopt);

  // Under its own name it is the same node: of the two, one has the lease.
  ASSERT_TRUE(Eventually([&] { return Has(Page(nodes_[0], "/cluster"), "\"leased\": true"); }));
  options.cluster->service.node = "n1";
  const test::Daemon copy(options);
  const auto page = [&] { return test::PageOf(*copy.server().admin_address(), "/cluster"); };
  ASSERT_TRUE(Eventually(
      [&] { return Has(page(), "the daemon at " + AddressOf(nodes_[0]) + " runs as node n1"); }));
  EXPECT_TRUE(Has(page(), "\"leased\": false"));
  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster"), "\"leased\": true"));
}

TEST_F(ClusterJoiningTest, ApprovalNeedsTheRightOfOperators) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = test::MakeToken(test::kRead | test::kWrite, "");
  StartNodes(2, options);
  const std::string other = StateOf("n1") == net::MemberState::kIn ? "n2" : "n1";
  ASSERT_TRUE(Eventually([&] { return StateOf(other) == net::MemberState::kWaiting; }));

  const auto set =
      Client().SetMember(AddressOf(nodes_[other == "n2" ? 0 : 1]), other, net::MemberState::kIn);

  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kDenied);
  EXPECT_EQ(StateOf(other), net::MemberState::kWaiting);
}

// A node that has just started takes part before it has seen the metadata.
TEST_F(ClusterJoiningTest, WhatIsNotKnownYetIsNotDenied) {
  approves_members_ = true;
  expected_count_ = 2;
  StartNodes(2);
  Node& node = nodes_[1];
  node.daemon->Kill();
  node.store->CutLists();
  node.daemon->Start();
  ASSERT_TRUE(Eventually([&] { return Has(Page(node, "/cluster"), "\"trouble\": \"\""); }));

  Result<void> set;
  std::thread operators(
      [&] { set = Client().SetMember(AddressOf(node), "n1", net::MemberState::kIn); });
  EXPECT_TRUE(Eventually(
      [&] { return Metric(node, "ffrecord_requests_total{type=\"set_member\"}") == 1; }));
  node.store->MendLists();
  operators.join();

  EXPECT_TRUE(set) << set.error().message;
}

using ClusterMembersTest = test::DaemonCluster;

TEST_F(ClusterMembersTest, ANodeThatIsUpAndHoldsDataIsNotCountedOut) {
  StartNodes(3);
  const auto count_out = [&] {
    return Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kOut);
  };

  const auto refused = count_out();

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(Has(refused.error().message, "n3 is up and holds")) << refused.error().message;
  EXPECT_TRUE(Has(refused.error().message, "cluster drain")) << refused.error().message;
  // Once it is down, or drained, it is.
  nodes_[2].daemon->Kill();
  EXPECT_TRUE(Eventually([&] { return bool(count_out()); }));
  nodes_[2].daemon->Start();
  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kIn));
  ASSERT_TRUE(WaitForNodes(3));
  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining));
  EXPECT_TRUE(Eventually([&] { return bool(count_out()); }));
  // And then there is nothing to drain.
  const auto drained = Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code, ErrorCode::kConflict);
}

// What has changed since then keeps it from another commit, and says nothing of the first one.
TEST_F(ClusterMembersTest, ADrainWithoutAnAnswerIsNotCalledUndone) {
  StartNodes(3);
  nodes_[0].store->LoseCommits("members/n3", [&] {
    const cluster::MemberRecord drains{cluster::MemberRecord::State::kDraining, 1, "n2"};
    store_->TryCommit({{}, {{"members/n2", drains.Encode()}}, {}}, test::Within(20s),
                      [](const auto&) {});
  });
  const auto drained = Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code, ErrorCode::kConflict) << drained.error().message;
  EXPECT_TRUE(Has(drained.error().message, "may still take effect")) << drained.error().message;
}

TEST_F(ClusterMembersTest, AChangeThatTheCoordinatorNeverConfirmsIsNotCalledUndone) {
  StartNodes(3);
  std::atomic<int> commits = 0;
  nodes_[0].store->LoseCommits("members/n3", [&] { ++commits; });
  const auto drained = Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code, ErrorCode::kDeadlineExceeded) << drained.error().message;
  EXPECT_TRUE(Has(drained.error().message, "may still take effect")) << drained.error().message;
  EXPECT_GT(commits, 1);
  EXPECT_LT(commits, 200);  // It pauses before each.
}

class ClusterDomainsTest : public test::DaemonCluster {
 protected:
  void Adjust(const std::string& node, Server::Options& options) override {
    options.cluster->service.domain = node == "n1" ? "left" : "right";
  }
};

TEST_F(ClusterDomainsTest, TwoNodesOfOneDomainDoNotReplaceANodeOfAnother) {
  StartNodes(3);
  const auto drain = [&](const std::string& node) {
    return Client().SetMember(AddressOf(nodes_[0]), node, net::MemberState::kDraining);
  };

  const auto refused = drain("n1");

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  EXPECT_TRUE(Has(refused.error().message, "1 other failure domains")) << refused.error().message;
  EXPECT_TRUE(drain("n2"));
}

// What lies on a node that drains is found by the map of before, once all others are down for long.
TEST_F(ClusterMembersTest, TheMapKeepsItsOwnersWhileNobodyTakesSlots) {
  down_grace_ = std::chrono::milliseconds(300);
  StartNodes(3);
  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining));
  nodes_[0].daemon->Kill();
  nodes_[1].daemon->Kill();

  const auto keeps = [&] { return Has(Page(nodes_[2], "/cluster"), "no node that is up takes"); };
  EXPECT_TRUE(Eventually(keeps)) << Page(nodes_[2], "/cluster");

  const auto map = Client().GetMap(AddressOf(nodes_[2]));
  ASSERT_TRUE(map) << map.error().message;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    ASSERT_FALSE(map.value().slots.NodesOf(slot).empty()) << slot;
}

using ClusterReportsTest = test::DaemonCluster;

TEST_F(ClusterReportsTest, ThePlanOfADrainIsWhatItMoves) {
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(12, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  const std::size_t held = ExtentsOf(nodes_[2]).size();
  ASSERT_GT(held, 0U);

  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster/plan"), "\"moves\": []"));
  const std::string plan = Page(nodes_[0], "/cluster/plan?without=n3");
  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster/plan?without=n9"), "has no node n9"));

  // Each replica on n3 gets another place, and nothing else moves.
  std::size_t planned = 0;
  const std::string key = "\"extents\": ";
  for (auto at = plan.find(key); at != std::string::npos; at = plan.find(key, at + 1))
    planned += std::stoul(plan.substr(at + key.size()));
  EXPECT_EQ(planned, held) << plan;
  EXPECT_FALSE(Has(plan, "\"to\": \"n3\"")) << plan;
}

TEST_F(ClusterReportsTest, SlotsAndPlanTellOfANodeThatIsDown) {
  StartNodes(3);
  const auto manifest = Client().Upload(SomeExtents(12, 10'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  EXPECT_FALSE(Has(Page(nodes_[0], "/cluster/slots"), "\"lacking\": 1"));
  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster"), "\"lacking\": 0, \"alone\": 0, \"unheld\": 0"));

  nodes_[2].daemon->Kill();

  // On a busy machine the lease of another node may lapse too, for a moment.
  EXPECT_TRUE(Eventually([&] {
    return Has(Page(nodes_[0], "/cluster/slots"), "\"lacking\": 1") &&
           !Has(Page(nodes_[0], "/cluster"), "\"lacking\": 0");
  }));
  // Until it is lost, nothing moves.
  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster/plan"), "\"moves\": []"));
  std::string plan;
  EXPECT_TRUE(Eventually([&] {
    plan = Page(nodes_[0], "/cluster/plan?down=lost");
    return (Has(plan, "\"to\": \"n1\"") || Has(plan, "\"to\": \"n2\"")) &&
           !Has(plan, "\"to\": \"n3\"");
  })) << plan;
}

class ClusterScrubbingTest : public test::DaemonCluster {
 protected:
  static constexpr std::size_t kExtentBytes = 100'000;
  void StartScrubbed() {
    Server::Options options;
    options.scrub.period = 500ms;
    StartNodes(2, options);
    const auto uploaded = Client().Upload(SomeExtents(1, kExtentBytes));
    ASSERT_TRUE(uploaded) << uploaded.error().message;
    ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", uploaded.value()));
    extent_ = test::ExtentsOf(uploaded.value()).front();
  }
  // Also of the manifest, if it is long enough.
  static void FlipByte(const std::filesystem::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(5000);
    const int byte = file.get();
    file.seekp(5000);
    file.put(static_cast<char>(byte ^ 1));
  }
  std::filesystem::path FileOn(const Node& node) const {
    for (const auto& path : ExtentsOf(node))
      if (std::filesystem::file_size(path) >= extent_.size_bytes) return path;
    return {};
  }

  ManifestExtent extent_;
};

TEST_F(ClusterScrubbingTest, ADamagedReplicaIsReplacedByItself) {
  StartScrubbed();
  FlipByte(FileOn(nodes_[1]));

  EXPECT_TRUE(Eventually([&] { return Metric(nodes_[1], "ffrecord_cluster_healed_total") == 1; }));
  EXPECT_EQ(Client().CountReplicas(extent_), 2U);
  EXPECT_EQ(Metric(nodes_[1], "ffrecord_extents_bad"), 0U);
  EXPECT_EQ(Metric(nodes_[0], "ffrecord_cluster_healed_total"), 0U);
}

TEST_F(ClusterScrubbingTest, WhereAllAreDamagedTheRestIsServedAndNothingIsRemoved) {
  StartScrubbed();
  EXPECT_TRUE(Has(Page(nodes_[0], "/cluster/lost"), "\"names\": []"));
  // At the same time as far as the scrubbers are concerned: neither has a good one to copy.
  for (Node& node : nodes_) node.daemon->Kill();
  for (const Node& node : nodes_) FlipByte(FileOn(node));
  for (Node& node : nodes_) node.daemon->Start();

  for (const Node& node : nodes_) {
    EXPECT_TRUE(Eventually([&] {
      return Has(Page(node, "/cluster/lost"), "{\"name\": \"train/a\", \"extents\": 1}");
    }));
    // A client checks what it reads: all bytes but one are worth something to it.
    const auto read = Client().ReadFrom(AddressOf(node), extent_);
    ASSERT_TRUE(read) << read.error().message;
    std::string damaged = SomeExtents(1, kExtentBytes).front();
    damaged[5000] ^= 1;
    EXPECT_EQ(read.value(), damaged);
    EXPECT_EQ(Metric(node, "ffrecord_extents_bad"), 1U);
    EXPECT_EQ(Metric(node, "ffrecord_cluster_extents_unheld"), 1U);
    EXPECT_FALSE(FileOn(node).empty());
  }

  // One comes back: both are whole.
  FlipByte(FileOn(nodes_[0]));
  EXPECT_TRUE(Eventually([&] { return Client().CountReplicas(extent_) == 2; }));
  EXPECT_TRUE(Eventually([&] { return Has(Page(nodes_[1], "/cluster/lost"), "\"names\": []"); }));
}

TEST_F(ClusterScrubbingTest, AnExtentThatWasFoundDamagedDoesNotCountAsUploaded) {
  StartScrubbed();
  const auto bytes = SomeExtents(1, 50'000);
  const auto uploaded = Client().Upload(bytes);
  ASSERT_TRUE(uploaded) << uploaded.error().message;
  const ManifestExtent extent = test::ExtentsOf(uploaded.value()).front();
  FlipByte(folder_ / nodes_[1].id / "extents" / ExtentPath(extent.id));
  ASSERT_TRUE(Eventually([&] { return Metric(nodes_[1], "ffrecord_extents_bad") == 1; }));

  const auto channel = Client().Connect(AddressOf(nodes_[1])).value();
  const auto stored =
      StoreExtent(*channel, extent, test::AsBytes(bytes.front()), test::Within(20s));

  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, ErrorCode::kUnavailable) << stored.error().message;
}

TEST_F(ClusterScrubbingTest, DamagedBytesThatWereBoundBeforeAreNotServed) {
  StartScrubbed();
  const auto channel = Client().Connect(AddressOf(nodes_[1])).value();
  const auto bound =
      channel->Call(net::FrameType::kExtentBind, net::ExtentBind{0, {extent_.id}}.Encode(), {},
                    test::Within(20s), "an extent");
  ASSERT_TRUE(bound) << bound.error().message;
  FlipByte(FileOn(nodes_[1]));
  ASSERT_TRUE(Eventually([&] { return Metric(nodes_[1], "ffrecord_cluster_healed_total") == 1; }));

  net::BatchRead batch;
  batch.entries = {{0, 0, 8000, 0}};
  const auto request = channel->Send(net::FrameType::kBatchRead, batch.Encode()).value();
  const auto header = channel->Receive(request, test::Within(20s), "a batch");

  ASSERT_TRUE(header) << header.error().message;
  if (header.value().type == net::FrameType::kBatchData) {
    // The connection has been given the one that replaced it.
    std::string read(header.value().payload_size_bytes, '\0');
    const std::array place{std::as_writable_bytes(std::span(read))};
    ASSERT_TRUE(channel->ReceivePayload(place, test::Within(20s)));
    EXPECT_EQ(read, SomeExtents(1, kExtentBytes).front().substr(0, 8000));
    return;
  }
  ASSERT_EQ(header.value().type, net::ReplyTo(net::FrameType::kBatchRead));
  const auto done = net::BatchDone::Decode(channel->body());
  ASSERT_TRUE(done && done.value().statuses.size() == 1);
  EXPECT_EQ(done.value().statuses.front(), net::EntryStatus::kNotHere);
}

}  // namespace
}  // namespace ffrecord::server
