// Goal: of a hinted epoch each node of a cluster reads ahead the extents whose first owner it is,
// and readers ask that node for them; lost nodes cost what they would have read ahead, and nothing
// else. Method: daemons of one cluster in this process, of which none holds all files; their
// metrics say what each holds that was read ahead and not asked for yet.

#include <ffrecord/client/dataset.h>
#include <ffrecord/permutation.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "daemon_cluster.h"
#include "libffrecord/format/stripes.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

constexpr std::size_t kFileCount = 12;
constexpr std::size_t kRecordsOfFile = 40;
constexpr std::uint64_t kCount = kFileCount * kRecordsOfFile;
constexpr std::uint32_t kStep = 20;
constexpr std::uint64_t kPageBytes = 4096;
// On a busy machine an answer is late, and the other replica is asked: for 5 % of the reads.
constexpr double kHedgedShare = 0.1;

class ClusterHintsTest : public test::DaemonCluster {
 protected:
  void SetUp() override {
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < kFileCount; ++i) {
      std::vector<std::string> records;
      for (std::size_t j = 0; j < kRecordsOfFile; ++j)
        records.push_back(test::RandomText(500 + random() % 9000, random));
      paths_.push_back(folder_ / (std::to_string(100 + i) + ".ffr"));
      test::WriteRecords(paths_.back(), records);
      records_.insert(records_.end(), records.begin(), records.end());
    }
    StartNodes(3);
    const auto published = PublishDataset(paths_, Address(), false, Options(), {}, Durability());
    ASSERT_TRUE(published) << published.error().message;
  }
  void Adjust(const std::string& /*node*/, server::Server::Options& options) override {
    options.cluster->service.feature_level = server::cluster::kFeatureLevel;
  }
  virtual std::string Durability() const { return ""; }

  std::string Address() const {
    std::string hosts;
    for (const Node& node : nodes_) hosts += (hosts.empty() ? "" : ",") + AddressOf(node);
    return "ffrecord://" + hosts + "/train";
  }
  static SessionOptions Options() {
    SessionOptions options;
    options.timeout = 30s;
    options.transport = Transport::kTcp;
    return options;
  }
  RecordReader Open() const {
    auto opened = OpenDataset({{Address()}}, {}, Options());
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(opened).value();
  }

  // Nodes that open the indexes read the ends of small files from each other, which takes what was
  // read ahead of them. So this hint is sent when all have opened them, for another one.
  std::unique_ptr<PrefetchHint> Hint(const RecordReader& reader) const {
    const auto first = reader.HintEpoch(plan_);
    EXPECT_TRUE(first) << first.error().message;
    auto hint = reader.HintEpoch(plan_);
    EXPECT_TRUE(hint) << hint.error().message;
    return hint ? std::move(hint).value() : nullptr;
  }
  // Sends a hint, then stops a node for good, which ends the hint.
  std::unique_ptr<PrefetchHint> HintThatLosesANode(const RecordReader& reader) {
    auto hint = reader.HintEpoch(plan_);
    EXPECT_TRUE(hint && hint.value());
    if (!hint || !hint.value()) return nullptr;
    nodes_.back().daemon->Stop();
    nodes_.pop_back();
    EXPECT_TRUE(Eventually([&] { return !hint.value()->alive(); }));
    return std::move(hint).value();
  }

  // What the records of each file take of the page cache, by the preferred owner of its one extent.
  std::map<std::string, std::uint64_t> PlannedBytes() const {
    const auto map = Client().GetMap(AddressOf(nodes_.front())).value().slots;
    const auto manifest = Client().Resolve(AddressOf(nodes_.front()), "train").value();
    std::map<std::string, std::uint64_t> bytes;
    for (std::size_t i = 0; i < kFileCount; ++i) {
      const auto source = OpenLocalFiles({&paths_[i], 1}).value();
      const auto indexes = OpenIndexes(*source, {}).value();
      const auto& extents = manifest.files[i].extents;
      EXPECT_EQ(extents.size(), 1U);
      std::uint64_t& sum = bytes[map.nodes[ReaderOf(map, manifest, i)].id];
      for (std::size_t j = 0; j < kRecordsOfFile; ++j) {
        RecordLocation location;
        EXPECT_EQ(indexes.front()->Locate(j, location), ErrorCode::kOk);
        sum += (location.stored_size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      }
    }
    return bytes;
  }
  // Of the one extent of that file.
  static std::uint16_t ReaderOf(const SlotMap& map, const DatasetManifest& manifest,
                                std::size_t file) {
    if (manifest.has_code()) {
      const Stripe stripe = StripeOf(manifest, file / manifest.code.data);
      const auto owners = map.StripeOwners(stripe.slot(), stripe.members.size());
      return owners[file % manifest.code.data];
    }
    const std::size_t replicas = manifest.replicas != 0 ? manifest.replicas : 2;
    const ExtentId& id = manifest.files[file].extents.front().id;
    return map.OwnersByAffinity(SlotOf(id), replicas).front();
  }
  bool HoldAhead(const std::map<std::string, std::uint64_t>& expected) const {
    return std::ranges::all_of(nodes_, [&](const Node& node) {
      const auto found = expected.find(node.id);
      return Metric(node, "ffrecord_read_ahead_held_bytes") ==
             (found == expected.end() ? 0 : found->second);
    });
  }
  // Whether all nodes together hold at most that share of what was planned.
  bool HoldAtMost(const std::map<std::string, std::uint64_t>& planned, double share) const {
    double all = 0;
    for (const auto& [node, bytes] : planned) all += static_cast<double>(bytes);
    double held = 0;
    for (const Node& node : nodes_)
      held += static_cast<double>(Metric(node, "ffrecord_read_ahead_held_bytes"));
    return held <= all * share;
  }
  bool HavePlans(std::uint64_t count) const {
    return std::ranges::all_of(nodes_, [&](const Node& node) {
      return Metric(node, "ffrecord_read_ahead_plans") == count;
    });
  }
  // Reads the epoch of `plan` in its order.
  void ReadEpoch(const RecordReader& reader, const EpochPlan& plan) const {
    const auto order = Permutation::Make(plan.seed, plan.epoch, 0, kCount).value();
    std::vector<std::uint64_t> indices(kStep);
    for (std::uint64_t first = 0; first < kCount; first += kStep) {
      for (std::uint64_t i = 0; i < kStep; ++i) indices[i] = order(first + i);
      const auto batch = reader.ReadBatch(indices);
      ASSERT_TRUE(batch) << batch.error().message;
      for (std::uint64_t i = 0; i < kStep; ++i) {
        ASSERT_EQ(batch.value().statuses()[i], ErrorCode::kOk);
        ASSERT_EQ(test::AsString(batch.value().record(i)), records_[indices[i]]);
      }
    }
  }

  std::vector<fs::path> paths_;
  std::vector<std::string> records_;
  const EpochPlan plan_{.seed = 3, .epoch = 1, .end = kCount, .step_size = kStep};
};

class ClusterHintClassesTest : public ClusterHintsTest,
                               public testing::WithParamInterface<const char*> {
 protected:
  std::string Durability() const override { return GetParam(); }
};

TEST_P(ClusterHintClassesTest, EachNodeReadsAheadWhatItIsThePreferredOwnerOfAndIsAskedForIt) {
  for (const Node& node : nodes_) ASSERT_LT(ExtentsOf(node).size(), kFileCount + 1);
  const RecordReader reader = Open();
  auto hint = Hint(reader);
  ASSERT_TRUE(hint);
  EXPECT_TRUE(hint->alive());
  EXPECT_TRUE(Eventually([&] { return HavePlans(1); }));
  const auto planned = PlannedBytes();
  EXPECT_TRUE(Eventually([&] { return HoldAhead(planned); }));

  ReadEpoch(reader, plan_);
  EXPECT_TRUE(Eventually([&] { return HoldAtMost(planned, kHedgedShare); }));
  hint = nullptr;
  EXPECT_TRUE(Eventually([&] { return HavePlans(0); }));
  EXPECT_TRUE(Eventually([&] { return HoldAhead({}); }));
}

INSTANTIATE_TEST_SUITE_P(Classes, ClusterHintClassesTest, testing::Values("", "r1", "ec:2+1"));

class StripedHintsTest : public ClusterHintsTest {
 protected:
  std::string Durability() const override { return "ec:2+1"; }
};

// Its indexes are computed for readers, not for those who plan: the epoch is read without a hint.
TEST_F(StripedHintsTest, ANodeThatIsAwayCostsTheHintAndNoRead) {
  const RecordReader reader = Open();
  const auto ended = HintThatLosesANode(reader);
  ASSERT_TRUE(ended);
  ReadEpoch(reader, plan_);
  // The indexes that were computed for readers serve plans as well.
  auto next = reader.HintEpoch(plan_);
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_TRUE(next.value());
  ReadEpoch(reader, plan_);
}

TEST_F(ClusterHintsTest, WithoutAHintReadsAreSharedOutAmongOwners) {
  const RecordReader reader = Open();
  ASSERT_TRUE(Hint(reader));       // It ends at once.
  const auto hint = Hint(Open());  // Of another reader.
  ASSERT_TRUE(hint);
  const auto planned = PlannedBytes();
  ASSERT_TRUE(Eventually([&] { return HoldAhead(planned); }));
  ReadEpoch(reader, plan_);
  EXPECT_FALSE(HoldAhead({}));
}

TEST_F(ClusterHintsTest, ALostNodeEndsTheHintAndTheNextOneGoesToTheOthers) {
  const RecordReader reader = Open();
  auto ended = HintThatLosesANode(reader);
  ASSERT_TRUE(ended);
  auto next = reader.HintEpoch(plan_);
  ASSERT_TRUE(next) << next.error().message;
  ASSERT_TRUE(next.value());
  ended = nullptr;
  EXPECT_TRUE(next.value()->alive());
  EXPECT_TRUE(Eventually([&] { return HavePlans(1); }));
  ReadEpoch(reader, plan_);
}

TEST_F(ClusterHintsTest, APlanOfOtherRecordsOrOfAnOlderPublicationIsRefused) {
  const RecordReader reader = Open();
  EXPECT_FALSE(reader.HintEpoch({.end = 10 * kCount}));
  EXPECT_FALSE(reader.HintEpoch({.end = 1, .rank = 1}));
  const auto again = PublishDataset(paths_, Address(), true, Options(), {});
  ASSERT_TRUE(again) << again.error().message;
  const auto refused = reader.HintEpoch(plan_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  EXPECT_TRUE(HavePlans(0));
  const RecordReader newer = Open();
  const auto taken = newer.HintEpoch(plan_);
  EXPECT_TRUE(taken && taken.value());
}

}  // namespace
}  // namespace ffrecord::client
