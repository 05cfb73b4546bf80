// Goal: a dataset is published though a node is lost between its upload and its publication, and is
// refused at once where no node could do better.
// Method: three daemons of one cluster in this process; one of them that has taken an extent ends
// in the middle of the upload; quotas.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "client/dataset/cluster.h"
#include "client/dataset/upload.h"
#include "daemon_cluster.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t kFileCount = 3;

class ClusterPublishTest : public test::DaemonCluster {
 protected:
  ClusterPublishTest() {
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < kFileCount; ++i) {
      files_.push_back(folder_ / (std::to_string(i) + ".ffr"));
      test::WriteRecords(files_.back(), {test::RandomText(5000, random)});
    }
  }
  std::string Address(const std::string& name) const {
    std::string hosts;
    for (const Node& node : nodes_) hosts += (hosts.empty() ? "" : ",") + AddressOf(node);
    return "ffrecord://" + hosts + "/" + name;
  }
  static SessionOptions Options() {
    SessionOptions options;
    options.timeout = 30s;
    options.transport = Transport::kTcp;
    return options;
  }
  // Publishes, and ends a node that has the first file as soon as the second one is sent.
  Result<void> PublishWithLoss(const std::string& name, bool replace) {
    const std::uint64_t first_bytes = fs::file_size(files_[0]);
    const std::string address = Address(name);
    bool has_lost = false;
    return PublishDataset(files_, address, replace, Options(), [&](std::uint64_t done, auto) {
      if (done <= first_bytes || std::exchange(has_lost, true)) return;
      for (Node& node : nodes_) {
        const auto extents = ExtentsOf(node);
        const bool has_it = std::ranges::any_of(
            extents, [&](const fs::path& path) { return fs::file_size(path) > first_bytes; });
        if (!has_it) continue;
        node.daemon->Kill();
        break;
      }
      EXPECT_TRUE(has_lost);
    });
  }

  std::vector<fs::path> files_;
};

TEST_F(ClusterPublishTest, WhatALostNodeHadGoesToAnother) {
  StartNodes(3);
  const auto published = PublishWithLoss("a", /*replace=*/false);
  ASSERT_TRUE(published) << published.error().message;
  const std::vector<std::string> where{Address("a")};
  const auto reader = OpenDataset(where, {}, Options());
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader.value().record_count(), kFileCount);
}

// No other node has another quota: whoever asks them all until the timeout hears of that instead.
TEST_F(ClusterPublishTest, WhatPassesAQuotaIsRefusedAtOnceThoughANodeIsDown) {
  server::Server::Options options;
  options.quotas = {{"", 20'000}};
  StartNodes(3, options);
  const auto cluster = Cluster::Find(net::Location::ParseAll(Address("a")).value(), Options());
  ASSERT_TRUE(cluster) << cluster.error().message;
  const std::string content(30'000, 'x');
  const auto bytes = test::AsBytes(content);
  for (const bool is_down : {false, true}) {
    if (is_down) nodes_[0].daemon->Kill();
    const auto begin = net::Clock::now();
    const auto refused = Upload(cluster.value()).PutBytes("f", {&bytes, 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().system_errno, EDQUOT) << refused.error().message;
    EXPECT_NE(refused.error().message.find("wait to be published"), std::string::npos)
        << refused.error().message;
    EXPECT_LT(net::Clock::now() - begin, Options().timeout / 2) << is_down;
  }
}

TEST_F(ClusterPublishTest, ANameThatIsTakenIsNotTriedAgain) {
  StartNodes(3);
  ASSERT_TRUE(PublishDataset(files_, Address("a"), false, Options(), {}));
  const auto refused = PublishDataset(files_, Address("a"), false, Options(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace ffrecord::client
