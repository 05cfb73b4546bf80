// Goal: what may become a name of class origin and what may not; local files come to the origin
// first if that is wanted, and nothing there is ever replaced. Method: daemons of one cluster in
// this process, whose origin is a folder.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "daemon.h"
#include "origin_cluster.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using OriginTest = test::OriginCluster;
using namespace std::chrono_literals;

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

}  // namespace
}  // namespace ffrecord::client
