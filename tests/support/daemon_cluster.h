#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster_clients.h"
#include "cut_store.h"
#include "daemon.h"
#include "daemon_metrics.h"
#include "temp_folder.h"

namespace ffrecord::test {

using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

// Daemons of one cluster in this process, over TCP, with a store that they share and from which
// each can be cut off; and a client by hand.
class DaemonCluster : public testing::Test {
 protected:
  struct Node {
    std::string id;
    std::shared_ptr<CutStore> store;
    std::unique_ptr<Daemon> daemon;
  };

  DaemonCluster() {
    auto opened = server::OpenSqliteStore(folder_ / "store.sqlite");
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
  }

  // n1, n2 and so on, until all are up.
  void StartNodes(std::size_t count, const server::Server::Options& common = {}) {
    common_ = common;
    for (std::size_t i = 0; i < count; ++i) StartNode("n" + std::to_string(i + 1));
    ASSERT_TRUE(WaitForNodes(expected_count_.value_or(count)));
  }
  // Like those before.
  void StartNode(const std::string& id) {
    Node& node = nodes_.emplace_back();
    node.id = id;
    node.store = std::make_shared<CutStore>(store_);
    node.daemon = std::make_unique<Daemon>(OptionsOf(node));
  }
  // Stops the node, and starts it with its options as they are now, at another port.
  void RestartNode(Node& node) {
    node.daemon.reset();
    node.daemon = std::make_unique<Daemon>(OptionsOf(node));
  }
  server::Server::Options OptionsOf(const Node& node) {
    server::Server::Options options = common_;
    options.core_count = 1;
    options.admin = net::Address{"127.0.0.1", 0};
    options.cluster.emplace();
    options.cluster->connect = [store =
                                    node.store]() -> Result<std::shared_ptr<server::MetaStore>> {
      return std::shared_ptr<server::MetaStore>(store);
    };
    options.cluster->service.node = node.id;
    options.cluster->service.approves_members = approves_members_;
    options.cluster->service.lease = 4s;
    options.cluster->service.down_grace = down_grace_;
    options.cluster->service.delete_grace = 0ms;
    options.cluster->service.pull_bytes_per_s = pull_bytes_per_s_;
    options.cluster->service.pull_clock = pull_clock_;
    options.data = {folder_ / node.id};
    Adjust(node.id, options);
    return options;
  }
  // Changes the options of one node.
  virtual void Adjust(const std::string& /*node*/, server::Server::Options& /*options*/) {}

  // Until a map places slots on so many nodes, and the first so many have seen it and are up.
  bool WaitForNodes(std::size_t count) {
    return Eventually([&] {
      return std::ranges::all_of(std::span(nodes_).first(count), [&](const Node& node) {
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
    return ClusterClient(addresses, token_, std::chrono::seconds(40), tls_);
  }
  std::uint64_t Metric(const Node& node, const std::string& name) const {
    return MetricOf(*node.daemon->server().admin_address(), name);
  }
  // A page of the admin port.
  static std::string Page(const Node& node, const std::string& path) {
    return PageOf(*node.daemon->server().admin_address(), path);
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

  TempFolder folder_;
  std::shared_ptr<server::MetaStore> store_;
  std::chrono::milliseconds down_grace_{600'000};
  std::uint64_t pull_bytes_per_s_ = 0;
  server::PullClock pull_clock_;
  bool approves_members_ = true;
  // How many nodes are started; the others do not come into the map.
  std::optional<std::size_t> expected_count_;
  net::TlsFiles tls_;  // Files of the client; without an authority: no TLS.
  std::vector<std::byte> token_;
  server::Server::Options common_;
  std::vector<Node> nodes_;
};

}  // namespace ffrecord::test
