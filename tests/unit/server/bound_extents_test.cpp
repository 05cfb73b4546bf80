// Goal: a client that has bound extents and does nothing keeps no disk full.
// Method: the nodes of a cluster in this process; connections that bind what is published, and stay
// open while its name is removed.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cluster_clients.h"
#include "daemon_cluster.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class BoundExtentsTest : public test::DaemonCluster {
 protected:
  // Connections to all nodes that have bound all extents.
  std::vector<std::unique_ptr<net::Channel>> Bind(const DatasetManifest& manifest) const {
    std::vector<std::unique_ptr<net::Channel>> readers;
    net::ExtentBind bind{0, {}};
    for (const auto& extent : test::ExtentsOf(manifest)) bind.ids.push_back(extent.id);
    for (const Node& node : nodes_) {
      readers.push_back(Client().Connect(AddressOf(node)).value());
      EXPECT_TRUE(readers.back()->Call(net::FrameType::kExtentBind, bind.Encode(), {},
                                       test::Within(20s), "extents"));
    }
    return readers;
  }
  // Files of the manifest's extents on the disks of all nodes.
  std::size_t FileCount(const DatasetManifest& manifest) const {
    std::size_t count = 0;
    for (const Node& node : nodes_)
      for (const auto& path : ExtentsOf(node))
        count += static_cast<std::size_t>(std::ranges::count_if(
            test::ExtentsOf(manifest),
            [&](const ManifestExtent& extent) { return path.filename() == Hex(extent.id); }));
    return count;
  }
};

TEST_F(BoundExtentsTest, RemovedOnesGoThoughAClientHasThemBound) {
  Server::Options options;
  options.deleted_hold = 500ms;
  StartNodes(2, options);
  const auto manifest = Client().Upload(SomeExtents(3, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  const auto readers = Bind(manifest.value());
  ASSERT_EQ(FileCount(manifest.value()), 6U);

  ASSERT_TRUE(Client().Remove(AddressOf(nodes_[0]), "train/a"));

  EXPECT_TRUE(Eventually([&] { return FileCount(manifest.value()) == 0; }));
  for (const auto& reader : readers)
    EXPECT_TRUE(reader->Call(net::FrameType::kPing, {}, {}, test::Within(20s), "PING"));
}

TEST_F(BoundExtentsTest, RemovedOnesStayForAWhileForThoseWhoReadThem) {
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(3, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  const auto other = Client().Upload(SomeExtents(3, 10'000));
  ASSERT_TRUE(other) << other.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/b", other.value()));
  auto readers = Bind(manifest.value());

  ASSERT_TRUE(Client().Remove(AddressOf(nodes_[0]), "train/a"));
  ASSERT_TRUE(Client().Remove(AddressOf(nodes_[0]), "train/b"));

  EXPECT_TRUE(Eventually([&] { return FileCount(other.value()) == 0; }));
  EXPECT_EQ(FileCount(manifest.value()), 6U);
  readers.clear();
  EXPECT_TRUE(Eventually([&] { return FileCount(manifest.value()) == 0; }));
}

}  // namespace
}  // namespace ffrecord::server
