// Goal: a name of class origin is read through the nodes of a cluster, which fetch its files from
// where they lie; a lost node, a changed origin and one that does not answer cost what they must,
// and are told; nothing else of the cluster changes.
// Method: daemons of one cluster in this process; a folder and a bucket are the origins.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_bucket.h"
#include "origin_cluster.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using OriginTest = test::OriginCluster;
using namespace std::chrono_literals;

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
  AwaitKnown("a");

  EXPECT_EQ(FaultOf("a"), "");

  EXPECT_EQ(CachedCount(), kFileCount);
  for (const Node& node : nodes_) EXPECT_LT(CachedOn(node), kFileCount);
  for (const Node& node : nodes_) EXPECT_TRUE(ExtentsOf(node).empty());
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

// Its lease holds: the cluster takes it to be up.
TEST_F(OriginTest, WhereANodeDoesNotAnswerTheNextOneFetchesAtOnce) {
  lease_ = 300s;
  StartNodes(3);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  const auto lost = std::ranges::max_element(nodes_, {}, CachedOn);
  ASSERT_GT(CachedOn(*lost), 0U);
  lost->store->Cut();
  lost->daemon->Kill();

  EXPECT_EQ(FaultOf("a"), "");

  const Node& other =
      *std::ranges::find_if(nodes_, [&](const Node& one) { return &one != &*lost; });
  const auto map = Client().GetMap(AddressOf(other)).value();
  EXPECT_EQ(std::ranges::count_if(map.reply.nodes, [](const auto& one) { return one.is_up; }), 3);
  lost->daemon.reset();
  EXPECT_EQ(CachedCount(), kFileCount);
}

// A node fetches each file once, though many clients want it at once. One node: of several, another
// one may be asked as well where the first is slow to answer.
TEST_F(OriginTest, ManyReadersOfWhatIsNotCachedFetchItOnce) {
  StartNodes(1);
  ASSERT_TRUE(Publish("a", Paths()));
  std::vector<std::thread> readers;
  for (int i = 0; i < 6; ++i) readers.emplace_back([&] { EXPECT_EQ(FaultOf("a"), ""); });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(SumOf("ffrecord_origin_fetched_total"), kFileCount);
}

TEST_F(OriginTest, WhatRotsInTheCacheIsFetchedAgainWhenItIsRead) {
  StartNodes(1);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  Rot(ACachedFileOf(nodes_[0]));

  EXPECT_EQ(FaultOf("a"), "");

  EXPECT_EQ(SumOf("ffrecord_origin_damaged_total"), 1U);
  EXPECT_EQ(SumOf("ffrecord_origin_fetched_total"), kFileCount + 1);
  Hide();
  EXPECT_EQ(FaultOf("a"), "");  // What is on the disk is right.
  Show();
}

TEST_F(OriginTest, WhatRotsIsFetchedAgainByTheNodeThatHasIt) {
  StartNodes(3);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  for (const Node& node : nodes_)
    if (CachedOn(node) > 0) Rot(ACachedFileOf(node));

  EXPECT_EQ(FaultOf("a"), "");

  EXPECT_GE(SumOf("ffrecord_origin_damaged_total"), 1U);
  EXPECT_EQ(SumOf("ffrecord_origin_fetched_total"),
            kFileCount + SumOf("ffrecord_origin_damaged_total"));
  EXPECT_EQ(CachedCount(), kFileCount);
}

// The file was changed on purpose, or the disk has lost it: not a bit, but all of it.
TEST_F(OriginTest, ACachedFileThatIsGoneIsFetchedAgain) {
  StartNodes(1);
  ASSERT_TRUE(Publish("a", Paths()));
  ASSERT_EQ(FaultOf("a"), "");
  RestartNode(nodes_[0]);  // It holds no file open.
  ASSERT_TRUE(WaitForNodes(1));
  fs::remove(ACachedFileOf(nodes_[0]));
  EXPECT_TRUE(Eventually([&] { return FaultOf("a").empty(); }));
  EXPECT_EQ(CachedCount(), kFileCount);
}

TEST_F(OriginTest, ANodeWithoutTheSettingCostsNoReadAndIsTold) {
  without_ = "n2";
  StartNodes(3);
  ASSERT_TRUE(PublishFromOrigin(Paths(), "ffrecord://" + AddressOf(nodes_[0]) + "/a", false,
                                Options(), {}));
  EXPECT_EQ(FaultOf("a"), "");
  EXPECT_FALSE(fs::exists(nodes_[1].daemon->data() / "origin-cache"));
  EXPECT_TRUE(Eventually([&] {
    return Page(nodes_[0], "/cluster").find(R"("other_origins": ["n2"])") != std::string::npos;
  })) << Page(nodes_[0], "/cluster");
  EXPECT_NE(Page(nodes_[1], "/cluster").find(R"("other_origins": ["n1", "n3"])"),
            std::string::npos);
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

// Clients ask few nodes for what is being fetched, and not always the same ones.
TEST_F(OriginTest, AnyNodeThatIsLeftFetchesWhatTheFirstFourHad) {
  StartNodes(6);
  ASSERT_TRUE(Publish("a", Paths()));
  const auto manifest = Client().Resolve(AddressOf(nodes_[0]), "a").value();
  const SlotMap map = Client().GetMap(AddressOf(nodes_[0])).value().slots;
  const auto order = map.FetchOrderOf(SlotOf(manifest.files[0].extents[0].id));
  for (const std::uint16_t ordinal : std::span(order).first(4))
    std::ranges::find(nodes_, map.nodes[ordinal].id, &Node::id)->daemon.reset();
  std::erase_if(nodes_, [](const Node& node) { return node.daemon == nullptr; });
  ASSERT_TRUE(Eventually([&] {
    return std::ranges::all_of(nodes_, [&](const Node& node) {
      const auto seen = Client().GetMap(AddressOf(node));
      return seen && std::ranges::count_if(seen.value().reply.nodes,
                                           [](const auto& one) { return one.is_up; }) == 2;
    });
  }));

  EXPECT_EQ(FaultOf("a", 10s), "");
}

// Whatever becomes of what a node has cached, its origin has it.
TEST_F(OriginTest, CachedFilesThatAreGoneOrCutAreFetchedAgain) {
  StartNodes(1);
  ASSERT_TRUE(Publish("a", Paths()));
  const std::vector<std::function<void(const fs::path&)>> harms{
      [](const fs::path& file) { fs::remove(file); },
      [](const fs::path& file) { fs::remove_all(file.parent_path()); },
      [](const fs::path& file) { fs::resize_file(file, 100); }};
  for (std::size_t i = 0; i < harms.size(); ++i) {
    ASSERT_EQ(FaultOf("a"), "") << i;
    // What is open stays readable.
    RestartNode(nodes_[0]);
    ASSERT_TRUE(WaitForNodes(1));
    std::vector<fs::path> cached;
    for (const auto& entry :
         fs::recursive_directory_iterator(nodes_[0].daemon->data() / "origin-cache"))
      if (entry.is_regular_file()) cached.push_back(entry.path());
    ASSERT_EQ(cached.size(), kFileCount) << i;
    harms[i](cached.front());
  }
  EXPECT_EQ(FaultOf("a"), "");
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
