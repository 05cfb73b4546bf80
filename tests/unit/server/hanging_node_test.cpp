// Goal: a node of a cluster stops within its time though a disk hangs.
// Method: one node in this process, which fetches a file of an origin; syncs that hold until the
// test lets them go.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>

#include "bytes.h"
#include "cluster_clients.h"
#include "daemon_cluster.h"
#include "held_syncs.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class HangingNodeTest : public test::DaemonCluster {
 protected:
  HangingNodeTest() { fs::create_directory(folder_ / "shared"); }
  void Adjust(const std::string& /*node*/, Server::Options& options) override {
    options.cluster->origins.reader.allowed = {(folder_ / "shared").string()};
    options.cluster->origins.free_bytes_min = 0;
  }
};

TEST_F(HangingNodeTest, AFetchThatHangsOnTheDiskHoldsUpNoStop) {
  StartNodes(1);
  const std::string bytes(10'000, 'x');
  const fs::path path = folder_ / "shared" / "f";
  test::WriteFile(path, bytes);
  const ManifestExtent extent{MakeExtentId(7, 0, 0), bytes.size(), Xxh3(test::AsBytes(bytes))};
  const DatasetManifest manifest{{{"f", bytes.size(), {extent}, {path.string(), ""}}}};
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "a", manifest));
  test::HeldSyncs syncs;
  const test::ClusterClient client({AddressOf(nodes_[0])}, {}, 2s);
  EXPECT_FALSE(client.ReadFrom(AddressOf(nodes_[0]), extent));

  auto stopped = std::async(std::launch::async, [&] { return nodes_[0].daemon->Stop(1s); });
  EXPECT_EQ(stopped.wait_for(20s), std::future_status::ready);

  syncs.Release();
  EXPECT_FALSE(stopped.get());
}

}  // namespace
}  // namespace ffrecord::server
