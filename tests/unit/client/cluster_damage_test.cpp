// Goal: a replica whose damage a reader has met is mended within seconds, on whichever node and of
// whatever kind, and the node tells so; the reader gets the right bytes meanwhile.
// Method: a cluster of three nodes in this process, without scrubbers, one of which has all of its
// data rot; a client reads until it has met that.

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint_state.h"
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
  // A byte of each 4 KiB: payload, tables and manifests alike. The extent's own trailer stays.
  static void RotAll(const std::filesystem::path& path) {
    std::string bytes = ReadFile(path);
    for (std::size_t at = 40; at + 64 < bytes.size(); at += 4096) bytes[at] ^= 1;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // Of each file: its first record at one replica, its last one at another.
  void RotRecords() {
    for (std::size_t i = 0; i < kFileCount; ++i) {
      std::size_t replica = 0;
      for (const Node& node : nodes_)
        for (const auto& path : ExtentsOf(node)) {
          std::string bytes = ReadFile(path);
          if (!bytes.starts_with(ReadFile(PathOf(i)))) continue;
          const std::size_t record = replica++ == 0 ? 0 : kRecordCount - 1;
          bytes[bytes.find(records_[i * kRecordCount + record]) + 7] ^= 1;
          std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
              .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        }
    }
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

// Each record is whole at one of them: what is damaged is not worth less for that. Both find out,
// and neither gets the bytes from the other.
TEST_F(ClusterDamageTest, ReplicasThatAreDamagedAtDifferentPlacesServeAllRecords) {
  StartNodes(3);
  Publish("r2");
  RotRecords();
  EXPECT_TRUE(test::Eventually([&] {
    EXPECT_EQ(FaultOf("x"), "");
    return SumOf("ffrecord_extents_bad") == 2 * kFileCount &&
           SumOf("ffrecord_cluster_extents_unheld") == 2 * kFileCount;
  }));
  EXPECT_EQ(FaultOf("x"), "");
}

TEST_F(ClusterDamageTest, OfAnOnlyReplicaTheOtherRecordsAreServed) {
  StartNodes(3);
  Publish("r1");
  RotRecords();
  const std::vector<std::string> where{Address("x")};
  const auto reader = OpenDataset(where, {}, Options());
  ASSERT_TRUE(reader) << reader.error().message;
  for (std::uint64_t i = 0; i < records_.size(); ++i) {
    const auto batch = reader.value().ReadBatch({&i, 1});
    ASSERT_TRUE(batch) << batch.error().message;
    const bool is_damaged = i % kRecordCount == 0;
    EXPECT_EQ(batch.value().statuses()[0], is_damaged ? ErrorCode::kCorruption : ErrorCode::kOk);
  }
}

// Segments, their tables and both kinds of manifests. Which replica is read is not known, so each
// node has its turn; a rotten one that nobody reads stays.
TEST_F(ClusterDamageTest, DamageOfACheckpointCostsNoLoadAndIsMended) {
  StartNodes(3);
  const std::string run = Address("runs/a") + "?transport=tcp";
  std::uint64_t met = 0;
  for (std::size_t turn = 0; turn < nodes_.size(); ++turn) {
    const test::State state(40'000, static_cast<std::uint32_t>(turn));
    const auto before = ExtentsOf(nodes_[turn]);
    for (std::uint64_t step = 0; step < 4; ++step)
      ASSERT_TRUE(test::SaveAlone(run, 10 * turn + step, state));
    for (const auto& path : ExtentsOf(nodes_[turn]))
      if (std::ranges::find(before, path) == before.end()) RotAll(path);

    for (std::uint64_t step = 0; step < 4; ++step) {
      const std::uint64_t number = 10 * turn + step;
      EXPECT_EQ(test::Compare(run, state, number), "") << number;
      const auto reader = CheckpointReader::Open(run, number, {});
      ASSERT_TRUE(reader) << reader.error().message;
      EXPECT_EQ(reader.value().Verify().value(), std::vector<std::string>()) << number;
    }
    met += Metric(nodes_[turn], "ffrecord_cluster_doubted_damaged_total");
    EXPECT_TRUE(test::Eventually([&] {
      return Metric(nodes_[turn], "ffrecord_cluster_healed_total") ==
             Metric(nodes_[turn], "ffrecord_cluster_doubted_damaged_total");
    }));
  }
  EXPECT_GT(met, 0U);
}

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
