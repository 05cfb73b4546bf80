// Goal: a name of class origin is read through the nodes of a cluster, which fetch its files from
// where they lie; a lost node, a changed origin and one that does not answer cost what they must,
// and are told; nothing else of the cluster changes.
// Method: daemons of one cluster in this process; a folder and a bucket are the origins.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "daemon_cluster.h"
#include "fake_bucket.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

constexpr std::size_t kFileCount = 12;
constexpr std::size_t kRecordCount = 20;

class OriginTest : public test::DaemonCluster {
 protected:
  OriginTest() {
    fs::create_directory(folder_ / "shared");
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < kFileCount; ++i) {
      std::vector<std::string> records;
      for (std::size_t j = 0; j < kRecordCount; ++j)
        records.push_back(test::RandomText(500 + j, random));
      test::WriteRecords(PathOf(i), records);
      records_.insert(records_.end(), records.begin(), records.end());
    }
  }
  void Adjust(const std::string& /*node*/, server::Server::Options& options) override {
    auto& origins = options.cluster->origins;
    origins.reader.allowed = allowed_;
    origins.reader.timeout = 1s;
    origins.free_bytes_min = 0;
    origins.retry = 50ms;
    options.cluster->service.feature_level = level_;
  }

  fs::path PathOf(std::size_t i) const {
    return folder_ / "shared" / (std::to_string(100 + i) + ".ffr");
  }
  std::vector<std::string> Paths() const {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < kFileCount; ++i) paths.push_back(PathOf(i).string());
    return paths;
  }
  std::string Address(const std::string& name) const {
    std::string hosts;
    for (const Node& node : nodes_)
      if (node.daemon) hosts += (hosts.empty() ? "" : ",") + AddressOf(node);
    return "ffrecord://" + hosts + "/" + name;
  }
  static SessionOptions Options(std::chrono::milliseconds timeout = 30s) {
    SessionOptions options;
    options.timeout = timeout;
    options.transport = Transport::kTcp;
    return options;
  }
  Result<void> Publish(const std::string& name, const std::vector<std::string>& files,
                       bool replace = false) {
    return PublishFromOrigin(files, Address(name), replace, Options(), {});
  }
  // What is wrong with the records of the dataset; empty: nothing.
  std::string FaultOf(const std::string& name, std::chrono::milliseconds timeout = 30s) {
    const std::vector<std::string> where{Address(name)};
    const auto reader = OpenDataset(where, {}, Options(timeout));
    if (!reader) return reader.error().message;
    std::vector<std::uint64_t> indices(reader.value().record_count());
    if (indices.size() != records_.size()) return "another count of records";
    std::iota(indices.begin(), indices.end(), 0);
    const auto batch = reader.value().ReadBatch(indices);
    if (!batch) return batch.error().message;
    for (const std::uint64_t i : indices) {
      const ErrorCode status = batch.value().statuses()[i];
      if (status != ErrorCode::kOk) return reader.value().Describe(i, status);
      if (test::AsString(batch.value().record(i)) != records_[i]) return "other bytes";
    }
    return "";
  }
  // The cached extents of a node.
  static std::size_t CachedOn(const Node& node) {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(node.daemon->data() / "origin-cache"))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  }
  std::size_t CachedCount() const {
    std::size_t count = 0;
    for (const Node& node : nodes_) count += node.daemon ? CachedOn(node) : 0;
    return count;
  }
  void Hide() const { fs::rename(folder_ / "shared", folder_ / "hidden"); }
  void Show() const { fs::rename(folder_ / "hidden", folder_ / "shared"); }

  std::vector<std::string> records_;
  std::vector<std::string> allowed_{(folder_ / "shared").string(), "s3://bucket"};
  std::uint32_t level_ = server::cluster::kFeatureLevel;
};

TEST_F(OriginTest, FilesOfASharedFolderAreFetchedOnceEachByTheNodesOfTheirSlots) {
  StartNodes(3);
  std::uint64_t told = 0;
  const auto published = PublishFromOrigin(Paths(), Address("a"), false, Options(),
                                           [&](std::uint64_t done, std::uint64_t total) {
                                             EXPECT_LE(done, total);
                                             told = done;
                                           });
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_GT(told, kFileCount * kRecordCount * 500);
  EXPECT_EQ(CachedCount(), 0U);

  EXPECT_EQ(FaultOf("a"), "");

  EXPECT_EQ(CachedCount(), kFileCount);
  for (const Node& node : nodes_) EXPECT_LT(CachedOn(node), kFileCount);
  // The list of files alone has replicas.
  EXPECT_TRUE(Eventually([&] {
    std::size_t held = 0;
    for (const Node& node : nodes_) held += ExtentsOf(node).size();
    return held == 2;
  }));
  Hide();
  EXPECT_EQ(FaultOf("a"), "");
  Show();
}

TEST_F(OriginTest, OtherClassesAreReadBesideIt) {
  StartNodes(3);
  const std::vector<fs::path> paths = [&] {
    const auto texts = Paths();
    return std::vector<fs::path>(texts.begin(), texts.end());
  }();
  ASSERT_TRUE(PublishDataset(paths, Address("uploaded"), false, Options(), {}));
  ASSERT_TRUE(Publish("origin", Paths()));
  EXPECT_EQ(FaultOf("origin"), "");
  EXPECT_EQ(FaultOf("uploaded"), "");
  ASSERT_TRUE(RemovePublished(Address("origin"), Options()));
  EXPECT_TRUE(Eventually([&] { return CachedCount() == 0; }));
  EXPECT_EQ(FaultOf("uploaded"), "");
  for (const std::string& path : Paths()) EXPECT_TRUE(fs::exists(path));
}

TEST_F(OriginTest, TheNextNodeFetchesWhatALostOneHad) {
  StartNodes(3);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  const auto lost = std::ranges::max_element(nodes_, {}, CachedOn);
  ASSERT_GT(CachedOn(*lost), 0U);
  lost->daemon.reset();

  EXPECT_EQ(FaultOf("a"), "");
  EXPECT_EQ(CachedCount(), kFileCount);
}

TEST_F(OriginTest, ARestartedNodeHasWhatItHadFetched) {
  StartNodes(1);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  RestartNode(nodes_[0]);
  ASSERT_TRUE(WaitForNodes(1));
  Hide();
  EXPECT_EQ(FaultOf("a"), "");
  Show();
}

TEST_F(OriginTest, AChangedFileIsAnErrorThatNamesIt) {
  StartNodes(2);
  ASSERT_TRUE(Publish("a", Paths()));
  const std::string good = test::ReadFile(PathOf(3));
  std::string other = good;
  other[other.size() / 2] ^= 1;
  test::WriteFile(PathOf(3), other);

  const std::string fault = FaultOf("a");
  EXPECT_NE(fault.find(PathOf(3).string()), std::string::npos) << fault;
  EXPECT_NE(fault.find("origin_fails"), std::string::npos) << fault;

  test::WriteFile(PathOf(3), good);
  EXPECT_TRUE(Eventually([&] { return FaultOf("a").empty(); }));
}

TEST_F(OriginTest, WhatDaemonsMayNotReadIsNotPublished) {
  StartNodes(1);
  fs::create_directory(folder_ / "private");
  fs::copy_file(PathOf(0), folder_ / "private" / "x.ffr");
  const std::string secret = (folder_ / "private" / "x.ffr").string();

  const auto refused = Publish("a", {secret});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDenied);
  EXPECT_NE(refused.error().message.find(secret), std::string::npos) << refused.error().message;
  EXPECT_EQ(Publish("a", {"http://host/x.ffr"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Publish("a", {PathOf(0).string(), "s3://bucket/x"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Publish("a", {PathOf(0).string() + "x"}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Client().Resolve(AddressOf(nodes_[0]), "a").error().code, ErrorCode::kNotFound);
}

TEST_F(OriginTest, WithoutTheSettingNothingIsPublished) {
  allowed_.clear();
  StartNodes(1);
  const auto refused = Publish("a", Paths());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDenied);
  EXPECT_NE(refused.error().message.find("setting origins"), std::string::npos);
}

TEST_F(OriginTest, AClusterWithNodesOfAnEarlierVersionTakesNone) {
  level_ = 1;
  StartNodes(1);
  level_ = server::cluster::kFeatureLevel;
  RestartNode(nodes_[0]);
  ASSERT_TRUE(WaitForNodes(1));

  const auto refused = Publish("a", Paths());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message.find("cluster upgrade"), std::string::npos);

  ASSERT_TRUE(Client().RaiseLevel(AddressOf(nodes_[0]), 0));
  EXPECT_TRUE(Eventually([&] { return bool(Publish("a", Paths())); }));
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(OriginTest, ADaemonByItselfTakesNone) {
  const test::Daemon daemon;
  const auto refused = PublishFromOrigin(Paths(), daemon.Uri("a"), false, Options(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
}

// The id of an extent decides what is read: nobody may give one of an upload another source.
TEST_F(OriginTest, AnOriginCannotTakeTheIdOfAnUpload) {
  StartNodes(2);
  auto manifest = Client().Upload(test::SomeExtents(1, 10'000)).value();
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "a", manifest));
  for (ManifestFile& file : manifest.files) file.origin = {PathOf(0).string(), ""};

  const auto refused = Client().Publish(AddressOf(nodes_[0]), "b", manifest);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
}

class BucketOriginTest : public OriginTest {
 protected:
  BucketOriginTest() {
    for (std::size_t i = 0; i < kFileCount; ++i) bucket_.Put(KeyOf(i), test::ReadFile(PathOf(i)));
    const std::string endpoint = "http://127.0.0.1:" + std::to_string(bucket_.port());
    for (const auto& [name, value] :
         {std::pair<const char*, std::string>{"AWS_ENDPOINT_URL_S3", endpoint},
          {"AWS_ACCESS_KEY_ID", "key"},
          {"AWS_SECRET_ACCESS_KEY", "secret"},
          {"AWS_REGION", "us-east-1"}})
      ::setenv(name, value.c_str(), 1);
  }
  static std::string KeyOf(std::size_t i) { return "data/" + std::to_string(i) + ".ffr"; }
  static std::vector<std::string> Objects() {
    std::vector<std::string> objects;
    for (std::size_t i = 0; i < kFileCount; ++i) objects.push_back("s3://bucket/" + KeyOf(i));
    return objects;
  }

  test::FakeBucket bucket_{{}};
};

TEST_F(BucketOriginTest, ObjectsAreFetchedOnceEach) {
  StartNodes(3);
  const auto published = Publish("a", Objects());
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(FaultOf("a"), "");
  EXPECT_EQ(CachedCount(), kFileCount);
  bucket_.Refuse(403);
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(BucketOriginTest, AReplacedObjectIsAnErrorThatNamesIt) {
  StartNodes(2);
  ASSERT_TRUE(Publish("a", Objects()));
  const std::string good = test::ReadFile(PathOf(2));
  std::string other = good;
  other[other.size() / 2] ^= 1;
  bucket_.Put(KeyOf(2), other);

  const std::string fault = FaultOf("a");
  EXPECT_NE(fault.find("s3://bucket/" + KeyOf(2)), std::string::npos) << fault;

  bucket_.Put(KeyOf(2), good);
  EXPECT_TRUE(Eventually([&] { return FaultOf("a").empty(); }));
}

TEST_F(BucketOriginTest, AStoreThatDoesNotAnswerIsWaitedForUntilTheTimeout) {
  StartNodes(2);
  ASSERT_TRUE(Publish("a", Objects()));
  bucket_.Refuse(503);
  const std::string fault = FaultOf("a", 3s);
  EXPECT_NE(fault.find("s3://bucket/"), std::string::npos) << fault;

  bucket_.Refuse(403);
  EXPECT_TRUE(
      Eventually([&] { return FaultOf("a", 5s).find("s3://bucket/") != std::string::npos; }));
  bucket_.Refuse(0);
  EXPECT_TRUE(Eventually([&] { return FaultOf("a").empty(); }));
}

}  // namespace
}  // namespace ffrecord::client
