// Goal: the names of a cluster are listed, changed and guarded as the protocol says, through
// whichever node.
// Method: daemons of one cluster in this process; frames by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <future>

#include "daemon_cluster.h"
#include "libffrecord/base/checksum.h"
#include "server/cluster/records.h"
#include "server/storage/extent_trailer.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using test::ClusterClient;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class ClusterNamesTest : public test::DaemonCluster {
 protected:
  void Adjust(const std::string& /*node*/, Server::Options& options) override {
    options.cluster->service.delete_grace = delete_grace_;
  }
  DatasetManifest Uploaded(std::size_t count = 1, std::size_t size_bytes = 10'000) const {
    auto manifest = Client().Upload(SomeExtents(count, size_bytes));
    EXPECT_TRUE(manifest) << manifest.error().message;
    return std::move(manifest).value();
  }
  void Publish(const std::string& name, const DatasetManifest& manifest) const {
    const auto published = Client().Publish(AddressOf(nodes_[0]), name, manifest);
    ASSERT_TRUE(published) << published.error().message;
  }
  Result<net::Channel::Reply> Call(const Node& node, net::FrameType type,
                                   std::span<const std::byte> body,
                                   std::span<const std::byte> payload = {}) const {
    const auto channel = Client().Connect(AddressOf(node)).value();
    return channel->Call(type, body, {&payload, payload.empty() ? 0U : 1U}, test::Within(40s),
                         "an answer");
  }
  void ExpectNoPlace(const Node& node, const ExtentId& id, std::uint64_t size_bytes) const {
    const auto begun =
        Call(node, net::FrameType::kPutBegin, net::PutBegin{id, size_bytes}.Encode());
    ASSERT_FALSE(begun) << node.id << ' ' << size_bytes;
    EXPECT_EQ(begun.error().code, ErrorCode::kConflict) << begun.error().message;
  }
  std::vector<std::string> Page(const std::string& prefix, const std::string& after,
                                std::uint32_t limit, bool more) const {
    const auto reply =
        Call(nodes_[1], net::FrameType::kList, net::List{limit, prefix, after}.Encode());
    if (!reply) {
      ADD_FAILURE() << reply.error().message;
      return {};
    }
    const auto list = net::ListReply::Decode(reply.value().body).value();
    EXPECT_EQ(list.more, more) << prefix << " behind " << after;
    std::vector<std::string> names;
    for (const auto& entry : list.entries) names.push_back(entry.name);
    return names;
  }
  std::vector<MetaStore::KeyValue> Stored(std::string_view prefix) const {
    std::promise<Result<MetaStore::Page>> listed;
    MetaStore::ListRequest request;
    request.prefix = prefix;
    store_->List(request, test::Within(20s),
                 [&](Result<MetaStore::Page> page) { listed.set_value(std::move(page)); });
    return listed.get_future().get().value().entries;
  }
  std::vector<std::byte> Token(const std::string& prefix) const {
    return test::MakeToken(test::kRead | test::kWrite | test::kDelete, prefix);
  }
  ClusterClient ClientOf(const std::string& prefix) const {
    return ClusterClient(Client().addresses(), Token(prefix));
  }

  std::chrono::milliseconds delete_grace_{0};
};

using Names = std::vector<std::string>;

TEST_F(ClusterNamesTest, NamesAreListedByTheirPrefixInPages) {
  StartNodes(2);
  const auto manifest = Uploaded();
  for (const char* const name : {"a", "b/1", "b/2", "b/3", "c"}) Publish(name, manifest);

  EXPECT_EQ(Page("", "", 10, false), (Names{"a", "b/1", "b/2", "b/3", "c"}));
  EXPECT_EQ(Page("b/", "", 10, false), (Names{"b/1", "b/2", "b/3"}));
  EXPECT_EQ(Page("b/", "", 2, true), (Names{"b/1", "b/2"}));
  EXPECT_EQ(Page("b/", "b/2", 2, false), (Names{"b/3"}));
  EXPECT_EQ(Page("b/", "", 3, false), (Names{"b/1", "b/2", "b/3"}));
  EXPECT_EQ(Page("b/", "A", 10, false), (Names{"b/1", "b/2", "b/3"}));
  EXPECT_EQ(Page("b/", "c", 10, false), Names{});
  EXPECT_EQ(Page("d", "", 10, false), Names{});
}

// Clients of earlier versions take a list with nothing behind it.
TEST_F(ClusterNamesTest, AListTellsDurabilityClassesToThoseWhoKnowThem) {
  StartNodes(2);
  auto manifest = Uploaded();
  Publish("default", manifest);
  manifest.replicas = 1;
  Publish("one", manifest);
  using Classes = std::vector<std::string>;
  const auto classes = [&](std::uint64_t capabilities) {
    net::Hello hello;
    hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
    hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
    hello.capabilities = capabilities;
    const auto address = net::Address::Parse(AddressOf(nodes_[1]), 0).value();
    const auto endpoint = net::ConnectTcp(address, test::Within(60s)).value();
    endpoint->SetLimits(net::FrameLimits{});
    const auto answer = [&](net::FrameType type, std::span<const std::byte> body) {
      EXPECT_TRUE(endpoint->Send({.type = type, .request_id = 1}, body, {}));
      EXPECT_TRUE(net::NextEvent(*endpoint, test::Within(60s), "an answer"));
      EXPECT_EQ(endpoint->header().type, net::ReplyTo(type));
      return endpoint->body();
    };
    const auto greeting =
        net::HelloReply::Decode(answer(net::FrameType::kHello, hello.Encode())).value();
    EXPECT_EQ(greeting.capabilities, capabilities);
    const auto list =
        net::ListReply::Decode(answer(net::FrameType::kList, net::List{}.Encode())).value();
    Classes told;
    for (const auto& entry : list.entries) told.push_back(entry.durability);
    return told;
  };

  EXPECT_EQ(classes(net::kCapabilityCluster | net::kCapabilityClasses), (Classes{"r2", "r1"}));
  EXPECT_EQ(classes(net::kCapabilityCluster | net::kCapabilityWaiting), (Classes{"", ""}));
}

TEST_F(ClusterNamesTest, AListShowsWhatAnotherNodeHasJustPublished) {
  StartNodes(2);
  const auto manifest = Uploaded();
  for (int i = 0; i < 30; ++i) {
    const std::string name = "train/" + std::to_string(i);
    Publish(name, manifest);
    ASSERT_EQ(Page(name, "", 10, false), Names{name});
  }
}

TEST_F(ClusterNamesTest, WhatHasChangedSinceItWasLookedAtIsNotChanged) {
  StartNodes(2);
  const auto manifest = Uploaded();
  Publish("a", manifest);
  const auto first = Client().Publish(AddressOf(nodes_[0]), "a", manifest).value();
  const auto second = Client().Publish(AddressOf(nodes_[1]), "a", manifest).value();
  const auto bytes = EncodeDatasetManifest(manifest).value();
  const auto swap = [&](std::uint64_t expected) {
    const net::Publish request{net::Publish::Mode::kSwap, RandomNumber(), expected, "a"};
    return Call(nodes_[0], net::FrameType::kPublish, request.Encode(), bytes);
  };
  const auto remove = [&](std::uint64_t expected) {
    return Call(nodes_[0], net::FrameType::kDelete, net::Delete{expected, "a"}.Encode());
  };

  EXPECT_EQ(swap(first).error().code, ErrorCode::kConflict);
  EXPECT_EQ(remove(first).error().code, ErrorCode::kConflict);
  const auto swapped = swap(second);
  ASSERT_TRUE(swapped) << swapped.error().message;
  const auto third = net::RevisionReply::Decode(swapped.value().body).value().revision;
  EXPECT_EQ(remove(second).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(remove(third));
}

TEST_F(ClusterNamesTest, WhatNobodyCouldLookUpIsNotDenied) {
  StartNodes(1);
  nodes_[0].store->Cut();

  const auto resolved = Client().Resolve(AddressOf(nodes_[0]), "a");

  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kUnavailable) << resolved.error().message;
}

TEST_F(ClusterNamesTest, BytesOfWhatIsPublishedAreNotReplaced) {
  StartNodes(3);
  const auto manifest = Uploaded(1, 10'000);
  Publish("a", manifest);
  const ManifestExtent extent = test::ExtentsOf(manifest).front();

  for (const std::size_t size_bytes : {10'000U, 9'999U, 10'001U}) {
    const std::string other(size_bytes, 'x');
    const ManifestExtent wrong{extent.id, size_bytes, Xxh3(test::AsBytes(other))};
    for (const Node& node : nodes_) {
      const auto channel = Client().Connect(AddressOf(node)).value();
      const auto stored = StoreExtent(*channel, wrong, test::AsBytes(other), test::Within(20s));
      ASSERT_FALSE(stored) << node.id << ' ' << size_bytes;
      EXPECT_EQ(stored.error().code, ErrorCode::kConflict) << stored.error().message;
      // Another size is refused before its bytes are sent, also where the extent is not.
      if (size_bytes != extent.size_bytes) ExpectNoPlace(node, extent.id, size_bytes);
    }
  }
  EXPECT_EQ(Client().CountReplicas(extent), 2U);
}

// The client would take it for what it has sent.
TEST_F(ClusterNamesTest, WhatIsUploadedIsNotThereInAnotherSize) {
  StartNodes(2);
  const ManifestExtent extent = test::ExtentsOf(Uploaded(1, 10'000)).front();
  for (const Node& node : nodes_) ExpectNoPlace(node, extent.id, 9'999);
}

// Others may have given the upload up: what it took would count as held, and could be dropped.
TEST_F(ClusterNamesTest, ANodeWithoutItsLeaseTakesNoUploadEvenOneThatItKnows) {
  StartNodes(2);
  const std::uint64_t upload = UploadOf(test::ExtentsOf(Uploaded(1)).front().id);
  const std::string data(100, 'x');
  const auto bytes = test::AsBytes(data);
  const auto store = [&](std::uint32_t number) -> Result<void> {
    const auto channel = FFR_TRY(Client().Connect(AddressOf(nodes_[0])));
    return StoreExtent(*channel, {MakeExtentId(upload, 1, number), bytes.size(), Xxh3(bytes)},
                       bytes, test::Within(40s));
  };
  ASSERT_TRUE(store(0));
  nodes_[0].store->Cut();
  const auto is_cut_off = [&] {
    const auto page = test::PageOf(*nodes_[0].daemon->server().admin_address(), "/cluster");
    return page.find("\"leased\": false") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(is_cut_off));

  const auto refused = store(1);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  EXPECT_NE(refused.error().message.find("lease"), std::string::npos) << refused.error().message;
  nodes_[0].store->Mend();
  EXPECT_TRUE(Eventually([&] { return bool(store(1)); }));
}

TEST_F(ClusterNamesTest, WhatIsRemovedOrReplacedStaysForItsGrace) {
  delete_grace_ = 1h;
  StartNodes(2);
  const auto first = Uploaded(1, 10'000);
  const auto second = Uploaded(1, 20'000);
  Publish("a", first);

  Publish("a", second);
  ASSERT_TRUE(Client().Remove(AddressOf(nodes_[1]), "a"));

  const auto tombstones = Stored(cluster::kTombstoneKeys);
  ASSERT_EQ(tombstones.size(), 2U);
  for (const auto& entry : tombstones)
    EXPECT_EQ(cluster::TombstoneRecord::Decode(entry.value).value().grace, 1h);
  for (const auto& manifest : {first, second})
    EXPECT_EQ(Client().CountReplicas(test::ExtentsOf(manifest).front()), 2U);
}

TEST_F(ClusterNamesTest, TheRightToReadAnExtentEndsWithTheNameThatHasIt) {
  delete_grace_ = 1h;
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = Token("");
  StartNodes(2, options);
  const auto first = Uploaded(1, 10'000);
  const auto second = Uploaded(1, 20'000);
  const auto is_read = [&](const DatasetManifest& manifest, const std::string& prefix) {
    const ManifestExtent extent = test::ExtentsOf(manifest).front();
    return std::ranges::all_of(nodes_, [&](const Node& node) {
      return bool(ClientOf(prefix).ReadFrom(AddressOf(node), extent));
    });
  };
  Publish("a/1", first);
  EXPECT_TRUE(Eventually([&] { return is_read(first, "a/"); }));
  EXPECT_FALSE(is_read(first, "b/"));

  Publish("a/1", second);
  EXPECT_TRUE(Eventually([&] { return is_read(second, "a/"); }));
  for (const Node& node : nodes_)
    EXPECT_FALSE(ClientOf("a/").ReadFrom(AddressOf(node), test::ExtentsOf(first).front()));

  // A daemon that starts without the coordinator gives the same rights.
  for (Node& node : nodes_) {
    node.store->Cut();
    node.daemon->Kill();
    node.daemon->Start();
  }
  EXPECT_TRUE(is_read(second, "a/"));
  EXPECT_FALSE(is_read(second, "b/"));
  for (Node& node : nodes_) node.store->Mend();
  ASSERT_TRUE(WaitForNodes(2));

  ASSERT_TRUE(Client().Remove(AddressOf(nodes_[0]), "a/1"));
  EXPECT_TRUE(Eventually([&] {
    return std::ranges::none_of(nodes_, [&](const Node& node) {
      return bool(ClientOf("a/").ReadFrom(AddressOf(node), test::ExtentsOf(second).front()));
    });
  }));
}

TEST_F(ClusterNamesTest, ExtentsOfOthersAreNotPublished) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = Token("");
  StartNodes(2, options);
  const auto manifest = Uploaded();
  Publish("a/1", manifest);

  const auto stolen = ClientOf("b/").Publish(AddressOf(nodes_[0]), "b/1", manifest);
  const auto own = ClientOf("a/").Publish(AddressOf(nodes_[0]), "a/2", manifest);

  ASSERT_FALSE(stolen);
  EXPECT_EQ(stolen.error().code, ErrorCode::kConflict) << stolen.error().message;
  EXPECT_TRUE(own) << own.error().message;
}

TEST_F(ClusterNamesTest, ThereIsNoRoomBeyondAQuota) {
  Server::Options options;
  options.quotas = {{"train/", 30'000}};
  StartNodes(2, options);
  Publish("train/a", Uploaded(2, 10'000));
  const auto check = [&](const std::string& name, std::uint64_t size_bytes) {
    return Call(nodes_[0], net::FrameType::kCheckRoom, net::CheckRoom{size_bytes, name}.Encode());
  };

  EXPECT_TRUE(check("train/b", 10'000));
  const auto refused = check("train/b", 10'001);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, EDQUOT) << refused.error().message;
  EXPECT_TRUE(check("train/a", 30'000));  // In place of itself.
  EXPECT_TRUE(check("other", 1'000'000));
}

// Each extent goes to one node, as by a client that has no use for replicas.
TEST_F(ClusterNamesTest, UploadsThroughAllNodesStayWithinTheQuotaOfTheirPrefix) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  options.quotas = {{"q/", 30'000}};
  token_ = Token("");
  StartNodes(3, options);
  const std::string bytes(10'000, 'x');
  const auto put = [&](const Node& node, std::uint64_t upload, const std::string& prefix) {
    const auto channel = ClientOf(prefix).Connect(AddressOf(node)).value();
    const ManifestExtent extent{MakeExtentId(upload, 0, 0), bytes.size(),
                                Xxh3(test::AsBytes(bytes))};
    const auto stored = StoreExtent(*channel, extent, test::AsBytes(bytes), test::Within(20s));
    return stored ? 0 : stored.error().system_errno;
  };
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(put(nodes_[i], 10 + i, "q/"), 0);
  for (const Node& node : nodes_) {
    EXPECT_EQ(put(node, 11, "q/"), 0);  // A replica of what counts already.
    EXPECT_EQ(put(node, 20, "q/"), EDQUOT);
    EXPECT_EQ(put(node, 30, "other/"), 0);
  }
}

TEST_F(ClusterNamesTest, EveryNodeKnowsWhoLeads) {
  StartNodes(2);
  EXPECT_TRUE(Eventually([&] {
    std::size_t leading = 0;
    std::size_t named = 0;
    for (const Node& node : nodes_) {
      const std::string page = test::DaemonCluster::Page(node, "/cluster");
      const std::string leads = "\"leading\": true, \"leader\": \"" + node.id + "\"";
      leading += page.find(leads) != std::string::npos;
      named += page.find("\"leader\": \"n") != std::string::npos;
    }
    return leading == 1 && named == nodes_.size();
  }));
}

}  // namespace
}  // namespace ffrecord::server
