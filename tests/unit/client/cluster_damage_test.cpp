// Goal: a replica whose damage a reader has met is mended within seconds, on whichever node and of
// whatever kind, and the node tells so; the reader gets the right bytes meanwhile.
// Method: a cluster of three nodes in this process, without scrubbers, one of which has all of its
// data rot; a client reads until it has met that.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "dataset_cluster.h"

namespace ffrecord::client {
namespace {

using test::ReadFile;

class ClusterDamageTest : public test::DatasetCluster,
                          public testing::WithParamInterface<std::string> {
 protected:
  void Publish(const std::string& durability) {
    std::vector<std::filesystem::path> files;
    for (std::size_t i = 0; i < kFileCount; ++i) files.push_back(PathOf(i));
    const auto published = PublishDataset(files, Address("x"), false, Options(), {}, durability);
    ASSERT_TRUE(published) << published.error().message;
    AwaitKnown("x");
  }
  // Extents of whole files on the node, with what lies there: not parity, nor lists of files.
  std::map<std::filesystem::path, std::string> DataOn(const Node& node) const {
    std::map<std::filesystem::path, std::string> data;
    for (const auto& path : ExtentsOf(node)) {
      const std::string bytes = ReadFile(path);
      for (std::size_t i = 0; i < kFileCount; ++i)
        if (bytes.starts_with(ReadFile(PathOf(i)))) data.emplace(path, bytes);
    }
    return data;
  }
  static std::size_t CountWhole(const std::map<std::filesystem::path, std::string>& data) {
    return static_cast<std::size_t>(std::ranges::count_if(data, [](const auto& one) {
      return std::filesystem::exists(one.first) && ReadFile(one.first) == one.second;
    }));
  }
};

TEST_P(ClusterDamageTest, DamageThatAReaderMeetsIsMended) {
  StartNodes(3);
  Publish(GetParam());
  const Node& node = nodes_[0];
  const auto data = DataOn(node);
  ASSERT_FALSE(data.empty());
  for (const auto& [path, bytes] : data) Rot(path);
  ASSERT_EQ(CountWhole(data), 0U);

  // Of some extents the node is the one that is read; of those that nobody reads nobody knows. It
  // is chance which node a reader asks first: they read until one has met the damage.
  std::uint64_t met = 0;
  EXPECT_TRUE(test::Eventually([&] {
    EXPECT_EQ(FaultOf("x"), "");
    met = Metric(node, "ffrecord_cluster_doubted_damaged_total");
    return met > 0 && Metric(node, "ffrecord_cluster_healed_total") == met;
  })) << met;
  EXPECT_EQ(Metric(node, "ffrecord_extents_bad"), 0U);
  EXPECT_EQ(CountWhole(data), met);
  EXPECT_EQ(FaultOf("x"), "");
}

INSTANTIATE_TEST_SUITE_P(AllClasses, ClusterDamageTest, testing::Values("r2", "r3", "ec:2+1"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::erase_if(name, [](char c) { return c == ':' || c == '+'; });
                           return name;
                         });

// A disk that fails damages the new replica as it did the old one. A reader tells of it once.
TEST_F(ClusterDamageTest, DamageThatComesBackAtOnceIsMendedAgain) {
  StartNodes(3);
  Publish("r2");
  const Node& node = nodes_[0];
  const auto data = DataOn(node);
  std::uint64_t before = 0;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [path, bytes] : data)
      if (ReadFile(path) == bytes) Rot(path);

    for (int i = 0; i < 2; ++i) EXPECT_EQ(FaultOf("x"), "");

    EXPECT_TRUE(test::Eventually([&] {
      const std::uint64_t healed = Metric(node, "ffrecord_cluster_healed_total");
      return healed > before && healed == Metric(node, "ffrecord_cluster_doubted_damaged_total");
    })) << round;
    before = Metric(node, "ffrecord_cluster_healed_total");
  }
}

// What was found is not doubted for what is right: nothing is dropped on a reader's word alone.
TEST_F(ClusterDamageTest, WhatIsSoundIsNotMarked) {
  StartNodes(3);
  Publish("r2");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(FaultOf("x"), "");
  for (const Node& node : nodes_) {
    EXPECT_EQ(Metric(node, "ffrecord_cluster_doubted_damaged_total"), 0U);
    EXPECT_EQ(Metric(node, "ffrecord_cluster_healed_total"), 0U);
  }
}

}  // namespace
}  // namespace ffrecord::client
