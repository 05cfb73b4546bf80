// Goal: of names with an erasure code the cluster names exactly those that are lost, and mends all
// others. Method: daemons of one cluster in this process, each in a failure domain of its own, that
// lose nodes, files and bytes at the same time.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "client/dataset/durability.h"
#include "dataset_cluster.h"
#include "libffrecord/format/stripes.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

class ErasureLossesTest : public test::DatasetCluster {
 protected:
  // One stripe: two files, and their parity.
  void Publish(const std::string& name, const std::string& durability) {
    const std::vector<fs::path> paths{PathOf(0), PathOf(1)};
    const auto published = PublishDataset(paths, Address(name), false, Options(), {}, durability);
    ASSERT_TRUE(published) << published.error().message;
    AwaitKnown(name);
  }
  DatasetManifest ManifestOf(const std::string& name) const {
    return Client().Resolve(AddressOf(nodes_.front()), name).value();
  }
  // The nodes that are to have the members of its stripe, in their order.
  std::vector<std::string> OwnersOf(const std::string& name) const {
    const SlotMap map = Client().GetMap(AddressOf(nodes_.front())).value().slots;
    const Stripe stripe = StripeOf(ManifestOf(name), 0);
    std::vector<std::string> owners;
    for (const std::uint16_t owner : map.StripeOwners(stripe.slot(), stripe.members.size()))
      owners.push_back(owner == SlotMap::kNoNode ? "" : map.nodes[owner].id);
    return owners;
  }
  // Each member is on the node that is to have it, with the right bytes.
  bool IsInPlace(const std::string& name) const {
    const auto owners = OwnersOf(name);
    const Stripe stripe = StripeOf(ManifestOf(name), 0);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto owner = std::ranges::find(nodes_, owners[i], &Node::id);
      if (owner == nodes_.end()) return false;
      const auto bytes = Client().ReadFrom(AddressOf(*owner), stripe.members[i]);
      if (!bytes || Xxh3(test::AsBytes(bytes.value())) != stripe.members[i].xxh3) return false;
    }
    return true;
  }
  bool AreInPlace(const std::set<std::string>& names) const {
    return std::ranges::all_of(names, [&](const std::string& name) { return IsInPlace(name); });
  }
  static std::set<std::string> LostAt(const Node& node) {
    std::set<std::string> names;
    const std::string page = Page(node, "/cluster/lost");
    const std::string before = "{\"name\": \"";
    for (auto at = page.find(before); at != std::string::npos; at = page.find(before, at + 1)) {
      const auto begin = at + before.size();
      names.insert(page.substr(begin, page.find('"', begin) - begin));
    }
    return names;
  }
};

// A name whose parity alone is known to be missing is lost like others; and one of which but the
// list of files is gone is not.
TEST_F(ErasureLossesTest, ExactlyTheLostNamesAreListed) {
  StartNodes(5);
  std::set<std::string> names, lost;
  for (std::size_t of_parity_count = 0;
       names.size() < 6 || of_parity_count == 0 || lost.size() == names.size();) {
    const std::string name = "n" + std::to_string(names.size());
    Publish(name, "ec:2+1");
    names.insert(name);
    const auto owners = OwnersOf(name);
    const auto has = [&](const std::string& id) {
      return std::ranges::find(owners, id) != owners.end();
    };
    if (!has("n4") || !has("n5")) continue;
    lost.insert(name);
    of_parity_count += owners.back() == "n4" ? 1 : 0;
  }
  ASSERT_TRUE(Eventually([&] { return AreInPlace(names); }));
  Node& wiped = nodes_[3];

  const auto files = ExtentsOf(wiped);
  wiped.daemon->Kill();
  nodes_[4].daemon.reset();
  for (const fs::path& file : files) fs::remove(file);
  wiped.daemon->Start();

  ASSERT_TRUE(Eventually([&] { return LostAt(wiped) == lost; }))
      << testing::PrintToString(lost) << " and not " << Page(wiped, "/cluster/lost");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(LostAt(wiped), lost);
  EXPECT_TRUE(Eventually([&] {
    return Metric(wiped, "ffrecord_cluster_extents_missing") ==
           Metric(wiped, "ffrecord_cluster_extents_unheld");
  }));
  nodes_[4].daemon = std::make_unique<test::Daemon>(OptionsOf(nodes_[4]));
  EXPECT_TRUE(Eventually([&] { return AreInPlace(names); }));
  EXPECT_TRUE(Eventually([&] { return LostAt(wiped).empty(); }));
}

// Long before the scrubber comes by.
TEST_F(ErasureLossesTest, ANodeWhoseMembersHaveRottenCanBeDrained) {
  StartNodes(4);
  std::set<std::string> names;
  for (int i = 0; i < 8; ++i) {
    Publish("n" + std::to_string(i), "ec:2+1");
    names.insert("n" + std::to_string(i));
  }
  ASSERT_TRUE(Eventually([&] { return AreInPlace(names); }));
  for (const fs::path& file : ExtentsOf(nodes_[3])) Rot(file);

  ASSERT_TRUE(Client().SetMember(AddressOf(nodes_[0]), "n4", net::MemberState::kDraining));

  ASSERT_TRUE(Eventually([&] {
    const auto map = Client().GetMap(AddressOf(nodes_[0])).value().slots;
    return map.nodes[map.Find("n4")].weight == 0;
  }));
  EXPECT_TRUE(Eventually([&] { return AreInPlace(names); }));
}

// What it has would have nowhere to go, whatever the cluster's own number of replicas is.
TEST_F(ErasureLossesTest, ANodeThatAStripeOrThreeReplicasNeedIsNotDrained) {
  StartNodes(3);
  for (const char* const durability : {"ec:2+1", "r3"}) {
    Publish("needs", durability);
    const auto drained =
        Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining);
    ASSERT_FALSE(drained) << durability;
    EXPECT_EQ(drained.error().code, ErrorCode::kConflict);
    EXPECT_NE(drained.error().message.find("with 3 replicas or members"), std::string::npos)
        << drained.error().message;
    ASSERT_TRUE(RemovePublished(Address("needs"), Options()));
    ASSERT_TRUE(Eventually([&] { return !Client().Resolve(AddressOf(nodes_[0]), "needs"); }));
  }
  EXPECT_TRUE(Client().SetMember(AddressOf(nodes_[0]), "n3", net::MemberState::kDraining));
}

}  // namespace
}  // namespace ffrecord::client
