// Goal: a client of a cluster reads each extent from its owners; goes on while a node is down,
// silent, elsewhere, or lacks what it should have; and follows the map.
// Method: as cluster_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "client/dataset/cluster_files.h"
#include "cluster_fixture.h"
#include "replicated_daemons.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using test::Eventually;
using namespace std::chrono_literals;

class ClusterReadsTest : public ClusterTest {
 protected:
  void SetUp() override {
    cluster_client_ = Find();
    Upload upload(cluster_client_);
    auto manifest = Put(upload);
    ASSERT_TRUE(manifest) << manifest.error().message;
    manifest_ = std::move(manifest).value();
    files_ = OpenClusterFiles(cluster_client_, manifest_, "ffrecord://cluster/x");
  }

  std::shared_ptr<Cluster> cluster_client_;
  DatasetManifest manifest_;
  std::unique_ptr<RangeReader> files_;
};

TEST_F(ClusterReadsTest, OwnersServeAndOneOfThemMayBeDown) {
  ReadAll(*files_);
  for (std::size_t i = 0; i < FakeCluster::kNodeCount; ++i) {
    cluster_.node(i).Kill();
    ReadAll(*files_);
    cluster_.node(i).Start();
    ReadAll(*files_);
  }
}

TEST_F(ClusterReadsTest, AnExtentThatIsNotWithItsOwnersIsFoundElsewhere) {
  cluster_.Alter([](auto& reply, auto& map) {  // Owners are other nodes from now on.
    reply.version = map.version = 6;
    for (auto& ordinal : map.rows)
      ordinal = ordinal == 4 ? 2 : static_cast<std::uint16_t>(ordinal + 1);
    for (std::size_t i = 0; i < map.rows.size(); i += 2) map.rows[i + 1] = map.rows[i];
    for (std::size_t i = 1; i < map.rows.size(); i += 2) map.rows[i] = SlotMap::kNoNode;
  });
  const auto later = Find();
  ASSERT_EQ(later->view()->map.version, 6U);
  ReadAll(*OpenClusterFiles(later, manifest_, "ffrecord://cluster/x"));
}

TEST_F(ClusterReadsTest, ANewerMapIsFetchedOnce) {
  ReadAll(*files_);
  const int before = cluster_.map_count();
  cluster_.Alter([](auto& reply, auto& map) { reply.version = map.version = 6; });
  cluster_client_->NoteVersion(5);
  EXPECT_EQ(cluster_.map_count(), before);
  cluster_client_->NoteVersion(6);
  ASSERT_TRUE(Eventually([&] { return cluster_client_->view()->map.version == 6; }));
  cluster_client_->NoteVersion(6);
  EXPECT_EQ(cluster_.map_count(), before + 1);
  ReadAll(*files_);
}

TEST_F(ClusterReadsTest, AnOlderMapNeverTakesThePlaceOfANewerOne) {
  cluster_.Alter([](auto& reply, auto& map) { reply.version = map.version = 4; });
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view()->map.version, 5U);
}

// The node keeps its data and comes back under another address, which nobody tells the client of.
TEST_F(ClusterReadsTest, ANodeThatMovesIsFoundAtItsNewAddress) {
  ReadAll(*files_);
  server::Server::Options options;
  options.data = {cluster_.node(0).data()};
  options.core_count = 1;
  options.identity = cluster_.IdentityOf(0);
  cluster_.node(0).Kill();
  auto moved = server::Server::Start(options);
  ASSERT_TRUE(moved) << moved.error().message;
  cluster_.Alter(
      [&](auto& reply, auto&) { reply.nodes[2].address = moved.value()->address().ToString(); });
  ReadAll(*files_);  // From the others; it shows that one is away.
  ASSERT_TRUE(Eventually([&] {
    ReadAll(*files_);
    return cluster_client_->view()->places.size() == FakeCluster::kScriptCount + 4;
  }));
  cluster_.node(1).Kill();  // What only the moved one has now.
  ReadAll(*files_);
}

// A batch begins by addresses at which nobody answers; only then do those who are asked for the map
// say the right ones: nodes at addresses that are known, or the seed.
class MovedNodesTest : public ClusterReadsTest, public testing::WithParamInterface<bool> {};

TEST_P(MovedNodesTest, ABatchUnderWayFindsItsNodesAtTheirNewAddresses) {
  const bool all_have_moved = GetParam();
  std::vector<std::string> right;
  cluster_.Alter([&](auto& reply, auto&) {
    for (auto& node : reply.nodes) {
      right.push_back(node.address);
      if (all_have_moved || node.id.starts_with('n')) node.address = "127.0.0.1:1";
    }
  });
  const auto client = Find();
  const auto files = OpenClusterFiles(client, manifest_, "ffrecord://cluster/x");
  const int before = cluster_.map_count();
  std::thread moves([&] {
    EXPECT_TRUE(Eventually([&] { return cluster_.map_count() > before; }));
    cluster_.Alter([&](auto& reply, auto&) {
      for (std::size_t i = 0; i < right.size(); ++i) reply.nodes[i].address = right[i];
    });
  });
  ReadAll(*files);
  moves.join();
  EXPECT_LE(cluster_.map_count(), before + 20);  // One a second.
}

INSTANTIATE_TEST_SUITE_P(Nodes, MovedNodesTest, testing::Bool());

// At each time one node is said to be where nobody answers, and all have other slots than before.
TEST_F(ClusterReadsTest, BatchesGoOnWhileTheMapChangesAllTheTime) {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      while (!is_over) ReadAll(*files_);
    });
  std::uint32_t version = 5;
  for (std::uint16_t i = 0; i < 20; ++i) {
    const auto away = static_cast<std::uint16_t>(i % FakeCluster::kNodeCount);
    ++version;
    cluster_.Alter([&](auto& reply, auto& map) {
      reply.version = map.version = version;
      for (std::uint16_t node = 0; node < FakeCluster::kNodeCount; ++node)
        reply.nodes[FakeCluster::kScriptCount + node].address =
            node == away ? "127.0.0.1:1" : cluster_.node(node).address().ToString();
      for (auto& ordinal : map.rows)
        ordinal = ordinal == 4 ? 2 : static_cast<std::uint16_t>(ordinal + 1);
    });
    cluster_client_->NoteVersion(version);
    std::this_thread::sleep_for(110ms);
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(cluster_client_->view()->map.version, 6U);
}

TEST_F(ClusterReadsTest, ASilentNodeDelaysTheMapByLittle) {
  cluster_.is_silent = true;
  EXPECT_TRUE(cluster_client_->Refresh(net::Clock::now() + 1'900ms));
}

TEST_F(ClusterReadsTest, AMapThatSaysNothingNewChangesNothing) {
  const auto before = cluster_client_->view();
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view(), before);
  cluster_.is_silent = true;  // So that another node says it.
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view(), before);
  cluster_.Alter([](auto& reply, auto&) { reply.nodes.back().is_up = false; });
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_NE(cluster_client_->view(), before);
}

TEST_F(ClusterReadsTest, AnExtentThatComesLaterToANodeIsFoundOverAnOpenConnection) {
  const ManifestExtent& extent = manifest_.files[0].extents[0];
  const std::uint32_t slot = SlotOf(extent.id);
  const auto second = FakeCluster::OwnerOf(slot, 1);
  // Without this extent at one owner, a reader binds there what is there.
  for (const auto& path : cluster_.node(second).Extents())
    if (path.filename() == HexOf(extent.id)) std::filesystem::remove(path);
  cluster_.node(second).Kill();
  cluster_.node(second).Start();
  const auto late = OpenClusterFiles(cluster_client_, manifest_, "ffrecord://cluster/late");
  for (int i = 0; i < 4; ++i) ReadAll(*late);
  ASSERT_TRUE(
      test::PutFiles(cluster_.node(second).address(), {&contents_[0], 1}, UploadOf(extent.id)));
  cluster_.node(FakeCluster::OwnerOf(slot, 0)).Kill();
  ReadAll(*late);
}

}  // namespace
}  // namespace ffrecord::client
