// Goal: a name with an erasure code is whole while no more nodes are lost than it has parity, is
// read meanwhile, and is mended; names with a number of replicas of their own have as many. Method:
// daemons of one cluster in this process, each in a failure domain of its own.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/dataset/durability.h"
#include "dataset_cluster.h"
#include "libffrecord/format/stripes.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

class ErasureTest : public test::DatasetCluster {
 protected:
  void Adjust(const std::string& /*node*/, server::Server::Options& options) override {
    options.cluster->service.feature_level = level_;
    if (lease_) options.cluster->service.lease = *lease_;
  }

  Result<void> Publish(const std::string& name, const std::string& durability,
                       bool replace = false) {
    const auto texts = Paths();
    const std::vector<fs::path> paths(texts.begin(), texts.end());
    auto published = PublishDataset(paths, Address(name), replace, Options(), {}, durability);
    if (published) AwaitKnown(name);
    return published;
  }
  const Node& AnyUp() const {
    return *std::ranges::find_if(nodes_, [](const Node& node) { return node.daemon != nullptr; });
  }
  DatasetManifest ManifestOf(const std::string& name) const {
    return Client().Resolve(AddressOf(AnyUp()), name).value();
  }
  // The nodes that have each member of a name's stripes on their disks.
  std::map<ExtentId, std::set<std::string>> HoldersOf(const std::string& name) const {
    std::map<ExtentId, std::set<std::string>> holders;
    for (const Stripe& stripe : StripesOf(ManifestOf(name)))
      for (const ManifestExtent& member : stripe.members) {
        auto& nodes = holders[member.id];
        for (const Node& node : nodes_)
          if (node.daemon != nullptr && Client().ReadFrom(AddressOf(node), member))
            nodes.insert(node.id);
      }
    return holders;
  }
  // Each member is on the node that is to have it, and on no other.
  bool IsInPlace(const std::string& name) const {
    const SlotMap map = Client().GetMap(AddressOf(AnyUp())).value().slots;
    const auto holders = HoldersOf(name);
    for (const Stripe& stripe : StripesOf(ManifestOf(name))) {
      const auto owners = map.StripeOwners(stripe.slot(), stripe.members.size());
      for (std::size_t i = 0; i < owners.size(); ++i)
        if (holders.at(stripe.members[i].id) != std::set{map.nodes[owners[i]].id}) return false;
    }
    return true;
  }
  void Stop(std::size_t node) { nodes_[node].daemon.reset(); }
  void Start(std::size_t node) {
    nodes_[node].daemon = std::make_unique<test::Daemon>(OptionsOf(nodes_[node]));
  }

  std::uint32_t level_ = server::cluster::kFeatureLevel;
  std::optional<std::chrono::milliseconds> lease_;
};

TEST_F(ErasureTest, EachMemberLiesOnANodeOfItsOwnAndIsReadFromThere) {
  lease_ = 300s;  // On a busy machine none lapses: members would go to other nodes.
  StartNodes(7);
  const auto published = Publish("a", "ec:4+2");
  ASSERT_TRUE(published) << published.error().message;
  const DatasetManifest manifest = ManifestOf("a");
  EXPECT_EQ(manifest.code, (ErasureCode{4, 2}));
  EXPECT_EQ(StripeCountOf(manifest), 3U);
  EXPECT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  EXPECT_EQ(FaultOf("a"), "");
  EXPECT_EQ(SumOf("ffrecord_cluster_brought_total"), 0U);
  // And nothing else: the name holds the list of files.
  std::size_t held = 0;
  for (const Node& node : nodes_) held += ExtentsOf(node).size();
  EXPECT_EQ(held, 18U);
}

TEST_F(ErasureTest, AnyTwoNodesMayBeAwayAndWhatWasReadMeanwhileIsDroppedAfterwards) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  for (std::size_t first = 0; first < 6; ++first) {
    const std::size_t second = (first + 1 + first % 2) % 6;
    Stop(first);
    Stop(second);
    EXPECT_EQ(FaultOf("a"), "") << first << " and " << second << " are away";
    Start(first);
    Start(second);
    ASSERT_TRUE(WaitForNodes(6));
  }
  EXPECT_GT(SumOf("ffrecord_cluster_brought_total"), 0U);
  EXPECT_TRUE(Eventually([&] { return IsInPlace("a"); }));
}

TEST_F(ErasureTest, WhereTooManyNodesAreAwayTheErrorSaysSo) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  for (std::size_t node = 0; node < 3; ++node) Stop(node);
  const std::string fault = FaultOf("a", 4s);
  EXPECT_NE(fault.find("erasure code"), std::string::npos) << fault;
  for (std::size_t node = 0; node < 3; ++node) Start(node);
  ASSERT_TRUE(WaitForNodes(6));
  EXPECT_EQ(FaultOf("a"), "");
}

// Its lease holds: the cluster takes it to be up.
TEST_F(ErasureTest, WhereANodeDoesNotAnswerItsMembersAreComputedAtOnce) {
  lease_ = 300s;
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  nodes_[2].store->Cut();
  nodes_[2].daemon->Kill();
  EXPECT_EQ(FaultOf("a"), "");
  nodes_[2].daemon.reset();
}

TEST_F(ErasureTest, ANodeThatHasLostItsDataComputesItAnew) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  ASSERT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  ASSERT_FALSE(ExtentsOf(nodes_[1]).empty());
  const auto files = ExtentsOf(nodes_[1]);
  Stop(1);
  for (const fs::path& file : files) fs::remove(file);
  Start(1);
  ASSERT_TRUE(WaitForNodes(6));
  EXPECT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(ErasureTest, WhatALostNodeHadIsComputedByOthers) {
  down_grace_ = 1s;
  StartNodes(7);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  ASSERT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  Stop(6);
  nodes_.pop_back();
  ASSERT_TRUE(Eventually([&] {
    const auto map = Client().GetMap(AddressOf(nodes_[0]));
    return map && std::ranges::count_if(map.value().slots.nodes,
                                        [](const auto& node) { return node.weight > 0; }) == 6;
  }));
  EXPECT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(ErasureTest, WhatRotsIsReadFromTheStripeAndMended) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  ASSERT_TRUE(Eventually([&] { return IsInPlace("a"); }));
  // Of one node all: of each stripe a member at most, and of one a member with data.
  const ExtentId data = StripesOf(ManifestOf("a"))[0].members[0].id;
  const std::string holder = *HoldersOf("a").at(data).begin();
  Node& node = *std::ranges::find(nodes_, holder, &Node::id);
  const auto files = ExtentsOf(node);
  ASSERT_FALSE(files.empty());
  RestartNode(node);
  ASSERT_TRUE(WaitForNodes(6));
  for (const fs::path& file : files) Rot(file);
  EXPECT_EQ(FaultOf("a"), "");
  // At least those that were read.
  EXPECT_GT(Metric(node, "ffrecord_cluster_brought_total"), 0U);
  EXPECT_TRUE(Eventually([&] { return IsInPlace("a"); }));
}

TEST_F(ErasureTest, WhatCannotBeKeptSoIsRefused) {
  StartNodes(4);
  for (const char* const wrong : {"r0", "r4", "r", "ec", "ec:", "ec:4", "ec:4+", "ec:1+1",
                                  "ec:17+1", "ec:4+5", "ec:04+2x", "ec:-4+2", "origin", "R2"}) {
    const auto refused = Publish("a", wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << wrong;
    EXPECT_NE(refused.error().message.find("ec:4+2"), std::string::npos);
  }
  const auto too_few = Publish("a", "ec:2+4");
  ASSERT_FALSE(too_few);
  EXPECT_EQ(too_few.error().code, ErrorCode::kInvalidArgument) << too_few.error().message;
  EXPECT_NE(too_few.error().message.find("failure domains"), std::string::npos);
  EXPECT_EQ(Client().Resolve(AddressOf(nodes_[0]), "a").error().code, ErrorCode::kNotFound);
  const test::Daemon daemon;
  const auto alone =
      PublishDataset(std::vector<fs::path>{PathOf(0)}, daemon.Uri("a"), false, Options(), {}, "r2");
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ErasureTest, AClusterWithNodesOfAnEarlierVersionTakesNone) {
  level_ = 2;
  StartNodes(3);
  level_ = server::cluster::kFeatureLevel;
  for (Node& node : nodes_) RestartNode(node);
  ASSERT_TRUE(WaitForNodes(3));
  for (const char* const durability : {"ec:2+1", "r1"}) {
    const auto refused = Publish("a", durability);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_NE(refused.error().message.find("cluster upgrade"), std::string::npos);
  }
  ASSERT_TRUE(Client().RaiseLevel(AddressOf(nodes_[0]), 0));
  EXPECT_TRUE(Eventually([&] { return bool(Publish("a", "ec:2+1")); }));
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(ErasureTest, ARemovedNameLeavesNothing) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", "ec:4+2"));
  ASSERT_TRUE(Publish("a", "ec:3+1", true));
  EXPECT_EQ(FaultOf("a"), "");
  ASSERT_TRUE(RemovePublished(Address("a"), Options()));
  EXPECT_TRUE(Eventually([&] {
    return std::ranges::all_of(nodes_, [](const Node& node) { return ExtentsOf(node).empty(); });
  }));
}

TEST_F(ErasureTest, NamesHaveAsManyReplicasAsTheyAskFor) {
  StartNodes(4);
  for (const std::size_t replicas : {1U, 2U, 3U}) {
    const std::string name = "r" + std::to_string(replicas);
    const auto published = Publish(name, name);
    ASSERT_TRUE(published) << published.error().message;
    EXPECT_EQ(FaultOf(name), "");
    const auto extents = test::ExtentsOf(ManifestOf(name));
    EXPECT_TRUE(Eventually([&] {
      return std::ranges::all_of(extents, [&](const ManifestExtent& extent) {
        return Client().CountReplicas(extent) == replicas;
      });
    })) << name;
  }
}

}  // namespace
}  // namespace ffrecord::client
