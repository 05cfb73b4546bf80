// Goal: a checkpoint in a cluster is loaded and verified as it was saved while one replica of each
// of its files is good, and what a reader has met is mended, whichever part of the checkpoint it
// was. Method: a cluster of three nodes in this process, without scrubbers, one of which has all of
// its data rot; checkpoints as they were saved, and as they are kept compressed.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include <ffrecord/client/checkpoint.h>

#include "checkpoint_state.h"
#include "daemon_cluster.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using test::Compare;
using test::State;

class CheckpointDamageTest : public test::DaemonCluster, public testing::WithParamInterface<bool> {
 protected:
  // Over TCP no daemon is nearer than others: a reader asks the owners of an extent by turns.
  std::string Address(const std::string& name) const {
    std::string hosts;
    for (const Node& node : nodes_) hosts += (hosts.empty() ? "" : ",") + AddressOf(node);
    return "ffrecord://" + hosts + "/" + name + "?transport=tcp";
  }
  // What lies on the node, but lists of files, which no client reads.
  static std::map<std::filesystem::path, std::string> DataOn(const Node& node) {
    std::map<std::filesystem::path, std::string> data;
    for (const auto& path : ExtentsOf(node)) {
      std::string bytes = test::ReadFile(path);
      if (bytes.find("MANI01") > 8) data.emplace(path, std::move(bytes));
    }
    return data;
  }
  static void Rot(const std::filesystem::path& path, std::string bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += 13) bytes[at] ^= 1;
    test::WriteFile(path, bytes);
  }
};

TEST_P(CheckpointDamageTest, DamageOfOneReplicaCostsNothingAndIsMended) {
  StartNodes(3);
  const std::string target = Address("runs/a");
  const State state(10'001, test::Seed());
  const std::string saved = GetParam() ? (folder_ / "plain").string() : target;
  ASSERT_TRUE(test::SaveAlone(saved, 1, state));
  if (GetParam()) {
    ASSERT_TRUE(CopyCheckpoint(saved, 1, target, {}, true));
  }
  // The owners of the segment: it is read several times, its end, its table and its blocks.
  for (const Node& node : nodes_) {
    const auto data = DataOn(node);
    if (std::ranges::none_of(
            data, [&](const auto& one) { return one.second.size() > state.matrix.size(); }))
      continue;
    for (const auto& [path, bytes] : data) Rot(path, bytes);
    std::uint64_t met = 0;

    // Of what nobody reads, nobody knows.
    EXPECT_TRUE(test::Eventually([&] {
      EXPECT_EQ(Compare(target, state), "");
      const auto damage = CheckpointReader::Open(target, 1, {}).value().Verify();
      EXPECT_TRUE(damage && damage.value().empty())
          << (damage ? damage.value().front() : damage.error().message);
      met = Metric(node, "ffrecord_cluster_doubted_damaged_total");
      return HasFailure() || (met > 0 && Metric(node, "ffrecord_cluster_healed_total") == met);
    })) << met;
    if (HasFailure()) return;
    for (const auto& [path, bytes] : data)
      if (std::filesystem::exists(path)) test::WriteFile(path, bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(PlainAndCompressed, CheckpointDamageTest, testing::Bool(),
                         [](const auto& instance) {
                           return instance.param ? "Compressed" : "Plain";
                         });

}  // namespace
}  // namespace ffrecord::client
