// Goal: a name of class origin is read through the nodes of a cluster, which fetch its files from
// where they lie; a lost node, a changed origin and one that does not answer cost what they must,
// and are told; nothing else of the cluster changes.
// Method: daemons of one cluster in this process; a folder and a bucket are the origins.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

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
  void Adjust(const std::string& node, server::Server::Options& options) override {
    auto& origins = options.cluster->origins;
    if (node != without_) origins.reader.allowed = allowed_;
    if (lease_) options.cluster->service.lease = *lease_;
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
    auto published = PublishFromOrigin(files, Address(name), replace, Options(), {});
    if (published) AwaitKnown(name);
    return published;
  }
  // Else a later node of the slot may fetch what an earlier one has not heard of yet.
  void AwaitKnown(const std::string& name) const {
    const auto is_known = [&](const Node& node) {
      return node.daemon == nullptr || bool(Client().Resolve(AddressOf(node), name));
    };
    EXPECT_TRUE(Eventually([&] { return std::ranges::all_of(nodes_, is_known); }));
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
  static fs::path ACachedFileOf(const Node& node) {
    for (const auto& entry : fs::recursive_directory_iterator(node.daemon->data() / "origin-cache"))
      if (entry.is_regular_file()) return entry.path();
    return {};
  }
  static void Rot(const fs::path& path) {
    std::string bytes = test::ReadFile(path);
    bytes[bytes.size() / 2] ^= 1;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::uint64_t SumOf(const std::string& metric) const {
    std::uint64_t sum = 0;
    for (const Node& node : nodes_) sum += node.daemon ? Metric(node, metric) : 0;
    return sum;
  }
  void Hide() const { fs::rename(folder_ / "shared", folder_ / "hidden"); }
  void Show() const { fs::rename(folder_ / "hidden", folder_ / "shared"); }

  std::vector<std::string> records_;
  std::vector<std::string> allowed_{(folder_ / "shared").string(), "s3://bucket"};
  std::uint32_t level_ = server::cluster::kFeatureLevel;
  std::string without_;  // This node has no setting `origins`.
  std::optional<std::chrono::milliseconds> lease_;
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
  AwaitKnown("a");

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

// All nodes together fetch each file once, though many clients want it at once.
TEST_F(OriginTest, ManyReadersOfWhatIsNotCachedFetchItOnce) {
  StartNodes(3);
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

// Whoever may upload could else have others read bytes of their choice.
TEST_F(OriginTest, WhatIsUploadedUnderAnOriginsIdIsNotServedForIt) {
  without_ = "n2";
  StartNodes(2);
  const std::string at_first = AddressOf(nodes_[0]);
  ASSERT_TRUE(PublishFromOrigin(Paths(), "ffrecord://" + at_first + "/a", false, Options(), {}));
  const auto manifest = Client().Resolve(at_first, "a").value();
  for (const ManifestExtent& extent : test::ExtentsOf(manifest)) {
    const std::string other(extent.size_bytes, 'x');
    const auto bytes = test::AsBytes(other);
    for (const Node& node : nodes_) {
      const auto channel = Client().Connect(AddressOf(node)).value();
      (void)server::StoreExtent(*channel, {extent.id, extent.size_bytes, Xxh3(bytes)}, bytes,
                                test::Within(30s));
    }
  }

  EXPECT_EQ(FaultOf("a"), "");
  EXPECT_EQ(CachedOn(nodes_[0]), kFileCount);
  for (const ManifestExtent& extent : test::ExtentsOf(manifest))
    EXPECT_FALSE(Client().ReadFrom(AddressOf(nodes_[1]), extent));
}

// --- Copying there first ---

class CopyTest : public OriginTest {
 protected:
  CopyTest() {
    fs::create_directory(folder_ / "local");
    for (std::size_t i = 0; i < 2; ++i) {
      locals_.push_back(folder_ / "local" / ("part" + std::to_string(i) + ".ffr"));
      fs::copy_file(PathOf(i), locals_.back());
    }
    records_.resize(2 * kRecordCount);
  }
  Result<void> PublishCopies(const std::string& place) {
    return PublishThroughOrigin(locals_, place, Address("a"), false, Options(),
                                [&](std::uint64_t done, std::uint64_t total) {
                                  EXPECT_LE(done, total);
                                  EXPECT_GE(done, told_);
                                  told_ = done;
                                  total_ = total;
                                });
  }
  fs::path Shared(const std::string& name) const { return folder_ / "shared" / name; }

  std::vector<fs::path> locals_;
  std::uint64_t told_ = 0, total_ = 0;
};

TEST_F(CopyTest, LocalFilesAreCopiedToTheOriginAndReadFromThere) {
  StartNodes(2);
  const auto published = PublishCopies((folder_ / "shared").string() + "/");
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(told_, total_);
  fs::remove_all(folder_ / "local");
  EXPECT_EQ(FaultOf("a"), "");
}

TEST_F(CopyTest, AnotherFileOfThatNameIsNeverReplaced) {
  StartNodes(1);
  test::WriteFile(Shared("part1.ffr"), "somebody's");
  const auto refused = PublishCopies((folder_ / "shared").string());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message.find(Shared("part1.ffr").string()), std::string::npos);
  EXPECT_EQ(test::ReadFile(Shared("part1.ffr")), "somebody's");
  EXPECT_EQ(Client().Resolve(AddressOf(nodes_[0]), "a").error().code, ErrorCode::kNotFound);

  // Made again, it takes what has been copied.
  fs::remove(Shared("part1.ffr"));
  told_ = 0;
  EXPECT_TRUE(PublishCopies((folder_ / "shared").string()));
  EXPECT_EQ(FaultOf("a"), "");
}

// As long as the right one: its bytes decide.
TEST_F(CopyTest, AFileOfThatNameAndSizeWithOtherBytesIsNotTakenForIt) {
  StartNodes(1);
  std::string other = test::ReadFile(locals_[0]);
  other.back() ^= 1;
  test::WriteFile(Shared("part0.ffr"), other);
  const auto refused = PublishCopies((folder_ / "shared").string());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(test::ReadFile(Shared("part0.ffr")), other);
}

TEST_F(CopyTest, NothingIsCopiedWhereNothingCanBePublished) {
  StartNodes(1);
  const auto count = [&] {
    return std::distance(fs::directory_iterator(folder_ / "shared"), fs::directory_iterator());
  };
  const auto before = count();
  const std::string place = (folder_ / "shared").string();
  ASSERT_TRUE(Publish("a", Paths()));
  EXPECT_EQ(PublishCopies(place).error().code, ErrorCode::kConflict);  // The name is taken.
  ASSERT_TRUE(RemovePublished(Address("a"), Options()));

  EXPECT_EQ(PublishCopies(place + "/nowhere").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(PublishCopies("http://host/x").error().code, ErrorCode::kInvalidArgument);
  const fs::path local = std::exchange(locals_[0], "s3://bucket/x.ffr");
  EXPECT_EQ(PublishCopies(place).error().code, ErrorCode::kInvalidArgument);
  locals_[0] = local;
  const std::string good = test::ReadFile(locals_[1]);
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  test::WriteFile(locals_[1], bad);
  EXPECT_EQ(PublishCopies(place).error().code, ErrorCode::kCorruption);
  test::WriteFile(locals_[1], good);
  fs::create_directory(folder_ / "local" / "more");
  fs::copy_file(locals_[0], folder_ / "local" / "more" / "part0.ffr");
  locals_[1] = folder_ / "local" / "more" / "part0.ffr";
  EXPECT_EQ(PublishCopies(place).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(count(), before);
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

// Else nodes would fetch what others read from there, as soon as they have started again.
TEST_F(OriginTest, ANameCannotGiveTheExtentsOfAnotherOneAnotherOrigin) {
  StartNodes(2);
  ASSERT_TRUE(Publish("b", Paths()));
  const std::string at = AddressOf(nodes_[0]);
  const auto manifest = Client().Resolve(at, "b").value();
  ASSERT_TRUE(Client().Publish(at, "same", manifest));

  auto elsewhere = manifest;
  elsewhere.files[0].origin.address = PathOf(1).string();
  auto other_bytes = manifest;
  other_bytes.files[2].extents[0].xxh3 ^= 1;
  auto swapped = manifest;
  std::swap(swapped.files[0].extents, swapped.files[1].extents);
  std::swap(swapped.files[0].size_bytes, swapped.files[1].size_bytes);
  for (const DatasetManifest& wrong : {elsewhere, other_bytes, swapped}) {
    const auto refused = Client().Publish(at, "a", wrong);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
  }

  RestartNode(nodes_[0]);
  RestartNode(nodes_[1]);
  ASSERT_TRUE(WaitForNodes(2));
  EXPECT_EQ(FaultOf("b"), "");
  EXPECT_EQ(FaultOf("same"), "");
}

// Neither where the setting is missing: such a node would serve what was uploaded.
TEST_F(OriginTest, AnUploadCannotTakeTheIdOfAnOrigin) {
  without_ = "n2";
  StartNodes(2);
  ASSERT_TRUE(Publish("a", Paths()));
  const auto manifest = Client().Resolve(AddressOf(nodes_[1]), "a");
  ASSERT_TRUE(manifest) << manifest.error().message;
  ManifestExtent extent = manifest.value().files[0].extents[0];
  const std::string other(extent.size_bytes, 'x');
  extent.xxh3 = Xxh3(test::AsBytes(other));

  for (const Node& node : nodes_) {
    const auto channel = Client().Connect(AddressOf(node)).value();
    const auto taken =
        server::StoreExtent(*channel, extent, test::AsBytes(other), test::Within(20s));
    ASSERT_FALSE(taken) << node.id;
    EXPECT_EQ(taken.error().code, ErrorCode::kConflict) << taken.error().message;
    EXPECT_FALSE(Client().ReadFrom(AddressOf(node), extent)) << node.id;
  }
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
