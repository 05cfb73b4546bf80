// Goal: a cluster of real daemons and a real etcd serves on while any one of them is gone, and is
// whole again when it is back.
// Method: three processes of ffrecordd and one of etcd on loopback, killed as kill -9 does; a
// client by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cluster_clients.h"
#include "daemon_process.h"
#include "etcd.h"
#include "eventually.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::ClusterClient;
using test::DaemonProcess;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class ClusterProcessesTest : public testing::Test {
 protected:
  struct Node {
    std::string id;
    std::string address;
    std::unique_ptr<DaemonProcess> process;
  };

  void SetUp() override {
    if (!test::HasEtcd()) GTEST_SKIP() << test::kEtcdProgram << " is not installed";
    etcd_ = std::make_unique<test::EtcdCluster>(1);
    etcd_->WaitForLeader();
    for (const char* const id : {"n1", "n2", "n3"}) nodes_.push_back({id, "127.0.0.1:0", nullptr});
    for (Node& node : nodes_) Start(node);
    ASSERT_TRUE(WaitForNodes(3));
  }

  void Start(Node& node) {
    node.process = std::make_unique<DaemonProcess>(
        FFRECORDD, std::vector<std::string>{"--data", folder_ / node.id, "--listen", node.address,
                                            "--cores", "1", "--cluster", "test", "--coordinator",
                                            "etcd:" + etcd_->AddressOf(0), "--node", node.id,
                                            "--lease-s", "5", "--approval", "automatic"});
    node.address = node.process->WaitReady();
    ASSERT_FALSE(node.address.empty()) << node.process->output();
  }
  static void Kill(Node& node) {
    node.process->Signal(SIGKILL);
    EXPECT_EQ(node.process->Wait(10s), -SIGKILL);
  }

  ClusterClient Client() const {
    std::vector<std::string> addresses;
    for (const Node& node : nodes_) addresses.push_back(node.address);
    return ClusterClient(addresses);
  }
  // Until all daemons that run know that so many do, and where the slots are.
  bool WaitForNodes(std::ptrdiff_t count) const {
    return Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const Node& node) {
        if (node.process->Wait(0ms) != DaemonProcess::kStillRunning) return true;
        const auto map = Client().GetMap(node.address);
        return map && map.value().slots.nodes.size() == nodes_.size() &&
               std::ranges::count_if(map.value().reply.nodes,
                                     [](const auto& one) { return one.is_up; }) == count;
      });
    });
  }
  bool WaitForReplicas(const DatasetManifest& manifest, std::size_t count) const {
    return Eventually([&] {
      const auto extents = test::ExtentsOf(manifest);
      return std::ranges::all_of(
          extents, [&](const ManifestExtent& one) { return Client().CountReplicas(one) == count; });
    });
  }
  // The bytes of all extents are there.
  void ExpectReadable(const DatasetManifest& manifest,
                      const std::vector<std::string>& extents) const {
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const auto text = Client().Read(test::ExtentsOf(manifest)[i]);
      ASSERT_TRUE(text) << text.error().message;
      EXPECT_EQ(text.value(), extents[i]);
    }
  }

  test::TempFolder folder_;
  std::unique_ptr<test::EtcdCluster> etcd_;
  std::vector<Node> nodes_;
};

TEST_F(ClusterProcessesTest, KilledNodesAndEtcdCostNothingThatWasPublished) {
  const auto extents = SomeExtents(8, 200'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  const auto published = Client().Publish(nodes_[0].address, "train/a", manifest.value());
  ASSERT_TRUE(published) << published.error().message;

  // One node is killed: all can be read, and more can be published.
  Kill(nodes_[2]);
  ExpectReadable(manifest.value(), extents);
  ASSERT_TRUE(WaitForNodes(2));
  const auto more = Client().Upload(SomeExtents(4, 50'000));
  ASSERT_TRUE(more) << more.error().message;
  const auto later = Client().Publish(nodes_[1].address, "train/b", more.value());
  ASSERT_TRUE(later) << later.error().message;

  // It comes back with an empty disk, and is filled from the others.
  std::filesystem::remove_all(folder_ / "n3/extents");
  Start(nodes_[2]);
  ASSERT_TRUE(WaitForNodes(3));
  EXPECT_TRUE(WaitForReplicas(manifest.value(), 2));

  // etcd is killed: reads go on, and a daemon that starts does not guess what is the newest.
  etcd_->Kill(0);
  ExpectReadable(manifest.value(), extents);
  Kill(nodes_[1]);
  Start(nodes_[1]);
  const auto refused = Client().Resolve(nodes_[1].address, "train/a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  ExpectReadable(manifest.value(), extents);

  // It comes back: so does publishing.
  etcd_->Start(0);
  ASSERT_TRUE(WaitForNodes(3));
  EXPECT_TRUE(Eventually(
      [&] { return bool(Client().Publish(nodes_[1].address, "train/c", manifest.value())); }));
  const auto resolved = Client().Resolve(nodes_[1].address, "train/a");
  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(resolved.value(), manifest.value());
  for (Node& node : nodes_) {
    node.process->Signal(SIGTERM);
    EXPECT_EQ(node.process->Wait(10s), 0) << node.process->output();
  }
}

}  // namespace
}  // namespace ffrecord::server
