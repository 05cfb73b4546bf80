// Goal: a daemon that answers at the address of a node and is not that node is asked for nothing:
// what it has, lacks or takes counts neither for reads nor for publications, and errors name both.
// Method: a cluster of three nodes in this process; in place of some, with clients that know the
// addresses of before, come a node of another cluster, a daemon of none, or another node of ours.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "client/dataset/cluster.h"
#include "client/dataset/upload.h"
#include "dataset_cluster.h"
#include "libffrecord/base/hex.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

class ClusterStrangersTest : public test::DatasetCluster {
 protected:
  // Published, and open with all addresses as they are now.
  RecordReader PublishAndOpen(std::chrono::milliseconds timeout = 20s) {
    const auto published = PublishDataset(Files(), Address("x"), false, Options(), {});
    EXPECT_TRUE(published) << published.error().message;
    AwaitKnown("x");
    const std::vector<std::string> where{Address("x")};
    auto reader = OpenDataset(where, {}, Options(timeout));
    EXPECT_TRUE(reader) << reader.error().message;
    return std::move(reader).value();
  }
  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (std::size_t i = 0; i < kFileCount; ++i) files.push_back(PathOf(i));
    return files;
  }
  std::shared_ptr<Cluster> FindCluster() const {
    const auto found = Cluster::Find(net::Location::ParseAll(Address("x")).value(), Options());
    EXPECT_TRUE(found) << found.error().message;
    return found.value();
  }
  static std::string ClusterOf(const ClusterView& view) { return Hex(view.reply.cluster); }

  // Ends the node, and starts a daemon of no cluster at its address.
  std::unique_ptr<test::Daemon> ReplaceByDaemon(Node& node) {
    server::Server::Options options;
    options.listen = node.daemon->address();
    node.daemon.reset();
    return std::make_unique<test::Daemon>(std::move(options));
  }
  // Likewise one of another cluster, as the node of the same name.
  std::unique_ptr<test::Daemon> ReplaceByNode(Node& node) {
    server::Server::Options options = OptionsOf(node);
    options.listen = node.daemon->address();
    options.data = {folder_ / (node.id + "-of-another")};
    options.cluster->service.replicas = 1;
    options.cluster->connect =
        [path = folder_ / "another.sqlite"]() -> Result<std::shared_ptr<server::MetaStore>> {
      return std::shared_ptr<server::MetaStore>(FFR_TRY(server::OpenSqliteStore(path)));
    };
    node.daemon.reset();
    auto daemon = std::make_unique<test::Daemon>(std::move(options));
    const std::string address = daemon->address().ToString();
    EXPECT_TRUE(test::Eventually([&] {
      const auto map = test::ClusterClient({address}).GetMap(address);
      return map && map.value().reply.version != 0;
    }));
    return daemon;
  }
  // Publishes one record under the name at that daemon, or cluster, alone.
  void PublishOne(const std::string& address, const std::string& text) {
    const std::filesystem::path path = folder_ / "one.ffr";
    std::filesystem::remove(path);
    test::WriteRecords(path, {text});
    Result<void> published;
    EXPECT_TRUE(test::Eventually([&] {
      published =
          PublishDataset(std::vector{path}, "ffrecord://" + address + "/one", true, Options(), {});
      return bool(published);
    })) << published.error().message;
  }
  // The first record of "one" at that address, or why it cannot be read.
  static std::string ReadOne(const std::string& address) {
    const std::vector<std::string> where{address};
    const auto reader = OpenDataset(where, {}, Options(3s));
    if (!reader) return reader.error().message;
    const std::vector<std::uint64_t> indices{0};
    const auto batch = reader.value().ReadBatch(indices);
    return batch ? std::string(test::AsString(batch.value().record(0))) : batch.error().message;
  }
  // Of the first two nodes.
  void ExchangeAddresses() {
    auto first = OptionsOf(nodes_[0]);
    auto second = OptionsOf(nodes_[1]);
    first.listen = nodes_[1].daemon->address();
    second.listen = nodes_[0].daemon->address();
    nodes_[0].daemon.reset();
    nodes_[1].daemon.reset();
    nodes_[0].daemon = std::make_unique<test::Daemon>(std::move(first));
    nodes_[1].daemon = std::make_unique<test::Daemon>(std::move(second));
  }
  // On nodes of ours.
  std::size_t CountReplicas(const ManifestExtent& extent) const {
    std::vector<std::string> addresses;
    for (const Node& node : nodes_)
      if (node.daemon) addresses.push_back(AddressOf(node));
    return test::ClusterClient(addresses).CountReplicas(extent);
  }
  // Of one record of each file, so that each file's owners are asked.
  static std::vector<ErrorCode> StatusesOf(const RecordReader& reader,
                                           std::size_t file_count = kFileCount) {
    std::vector<std::uint64_t> indices;
    for (std::uint64_t i = 0; i < file_count; ++i) indices.push_back(i * kRecordCount);
    const auto batch = reader.ReadBatch(indices);
    EXPECT_TRUE(batch) << batch.error().message;
    const auto statuses = batch.value().statuses();
    return {statuses.begin(), statuses.end()};
  }
};

TEST_F(ClusterStrangersTest, ANodeOfAnotherClusterTakesNoReplicasAndNoNames) {
  StartNodes(3);
  const auto cluster = FindCluster();
  const auto reader = PublishAndOpen();
  const auto stranger = ReplaceByNode(nodes_[2]);

  Upload upload(cluster);
  for (int i = 0; i < 20; ++i) {
    const std::string content(100 + static_cast<std::size_t>(i), 'a');
    const auto bytes = std::as_bytes(std::span(content));
    const auto put = upload.PutBytes("f", {&bytes, 1});
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_EQ(CountReplicas(put.value().extents[0]), 2U);
  }
  EXPECT_TRUE(stranger->Extents().empty());
  for (const ErrorCode status : StatusesOf(reader)) EXPECT_EQ(status, ErrorCode::kOk);
}

TEST_F(ClusterStrangersTest, WhereStrangersHaveTakenAllPlacesTheErrorNamesBothAndTheRemedy) {
  StartNodes(3);
  const auto cluster = FindCluster();
  const auto reader = PublishAndOpen(500ms);
  const std::string ours = ClusterOf(*cluster->view());
  const auto stranger = ReplaceByNode(nodes_[0]);
  const std::string address = stranger->address().ToString();
  const auto map = test::ClusterClient({address}).GetMap(address);
  ASSERT_TRUE(map) << map.error().message;
  const std::string theirs = Hex(map.value().reply.cluster);
  nodes_[1].daemon.reset();
  nodes_[2].daemon.reset();

  // It knows no such extent, but that says nothing of ours.
  for (const ErrorCode status : StatusesOf(reader, 1)) EXPECT_EQ(status, ErrorCode::kUnavailable);
  const Cluster::Attempt attempt = [](net::Connection&, net::Deadline) -> Result<void> {
    ADD_FAILURE() << "a stranger is asked";
    return {};
  };
  EXPECT_FALSE(cluster->Run(attempt, net::Clock::now() + 1s, 500ms));
  SessionOptions options = Options(1s);
  Upload upload(std::make_shared<Cluster>(*cluster->view(), options));
  const auto bytes = std::as_bytes(std::span(std::string_view("some bytes")));
  const auto put = upload.PutBytes("f", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kUnavailable);
  for (const std::string& part :
       {"ffrecord://" + address + " is node n1 of cluster " + theirs,
        "at the address of node n1 of cluster " + ours, std::string("correct `advertise`")})
    EXPECT_NE(put.error().message.find(part), std::string::npos) << part << "\n"
                                                                 << put.error().message;
}

TEST_F(ClusterStrangersTest, ADaemonOfNoClusterTakesNoReplicas) {
  StartNodes(3);
  const auto cluster = FindCluster();
  const auto stranger = ReplaceByDaemon(nodes_[1]);
  nodes_[2].daemon.reset();
  SessionOptions options = Options(1s);
  Upload upload(std::make_shared<Cluster>(*cluster->view(), options));
  const auto bytes = std::as_bytes(std::span(std::string_view("some bytes")));
  const auto put = upload.PutBytes("f", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_NE(put.error().message.find("is a daemon of no cluster, at the address of node n2"),
            std::string::npos)
      << put.error().message;
  EXPECT_TRUE(stranger->Extents().empty());
}

// The address of all nodes, one of which is another cluster's by now: whoever answers first.
TEST_F(ClusterStrangersTest, AnAddressOfTwoClustersIsTheOneThatMostOfItsDaemonsAreOf) {
  StartNodes(3);
  const std::string address = Address("one");
  PublishOne(AddressOf(nodes_[0]), "ours");
  const auto stranger = ReplaceByNode(nodes_[1]);
  PublishOne(stranger->address().ToString(), "theirs");
  for (int i = 0; i < 40; ++i) ASSERT_EQ(ReadOne(address), "ours");
}

TEST_F(ClusterStrangersTest, WhereNeitherClusterHasMostOfTheDaemonsTheErrorNamesBoth) {
  StartNodes(3);
  const std::string ours = ClusterOf(*FindCluster()->view());
  const std::string address = Address("one");
  PublishOne(AddressOf(nodes_[0]), "ours");
  const auto stranger = ReplaceByNode(nodes_[1]);
  nodes_[2].daemon.reset();
  // Once its lease is over, the one node that is left does not say any more that the others are up.
  ASSERT_TRUE(test::Eventually([&] {
    const auto map = test::ClusterClient({AddressOf(nodes_[0])}).GetMap(AddressOf(nodes_[0]));
    return std::ranges::count(map.value().reply.nodes, true, &net::ClusterMapReply::Node::is_up) ==
           1;
  }));
  const std::string theirs = Hex(test::ClusterClient({stranger->address().ToString()})
                                     .GetMap(stranger->address().ToString())
                                     .value()
                                     .reply.cluster);
  // One of three, and one of two.
  const std::string half =
      "ffrecord://" + AddressOf(nodes_[0]) + "," + stranger->address().ToString() + "/one";
  for (int i = 0; i < 20; ++i) {
    const std::string why = ReadOne(i % 2 == 0 ? address : half);
    EXPECT_NE(why.find(AddressOf(nodes_[0]) + " is a node of cluster " + ours), std::string::npos)
        << why;
    EXPECT_NE(why.find(stranger->address().ToString() + " is a node of cluster " + theirs),
              std::string::npos)
        << why;
  }
}

TEST_F(ClusterStrangersTest, ADaemonOfNoClusterAtAnAddressMakesNoSingleDaemonsOfTheOthers) {
  StartNodes(3);
  const std::string address = Address("one");
  const std::string x = Address("x");
  const auto stranger = ReplaceByDaemon(nodes_[1]);
  PublishOne(stranger->address().ToString(), "theirs");
  PublishOne(AddressOf(nodes_[0]), "ours");
  for (int i = 0; i < 20; ++i) {
    const auto published = PublishDataset(Files(), x, /*replace=*/true, Options(), {});
    ASSERT_TRUE(published) << published.error().message;
    ASSERT_EQ(ReadOne(address), "ours");
  }
  EXPECT_FALSE(test::ClusterClient({stranger->address().ToString()})
                   .Resolve(stranger->address().ToString(), "x"));
}

// Two hosts have exchanged their addresses. To a client that knew the former ones, two replicas at
// two addresses could be two on one node.
TEST_F(ClusterStrangersTest, NodesThatHaveExchangedTheirAddressesAreFoundAgain) {
  StartNodes(3);
  const auto cluster = FindCluster();
  const auto reader = PublishAndOpen();
  ExchangeAddresses();

  // The batch began by the former addresses, and is read by the new ones.
  for (const ErrorCode status : StatusesOf(reader)) EXPECT_EQ(status, ErrorCode::kOk);
  ASSERT_TRUE(WaitForNodes(3));
  Upload upload(cluster);
  for (int i = 0; i < 20; ++i) {
    const std::string content(100 + static_cast<std::size_t>(i), 'b');
    const auto bytes = std::as_bytes(std::span(content));
    const auto put = upload.PutBytes("f", {&bytes, 1});
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_EQ(CountReplicas(put.value().extents[0]), 2U);
  }
  const auto published = PublishDataset(Files(), Address("y"), false, Options(), {});
  EXPECT_TRUE(published) << published.error().message;
}

// No node has the extents any more, which shows once all of them have been found.
TEST_F(ClusterStrangersTest, WhatNodesThatHaveMovedDoNotHaveIsMissing) {
  StartNodes(3);
  const auto reader = PublishAndOpen();
  for (const Node& node : nodes_)
    for (const auto& path : ExtentsOf(node)) std::filesystem::remove(path);
  nodes_[2].daemon->Kill();
  nodes_[2].daemon->Start();
  ExchangeAddresses();
  for (const ErrorCode status : StatusesOf(reader)) EXPECT_EQ(status, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord::client
