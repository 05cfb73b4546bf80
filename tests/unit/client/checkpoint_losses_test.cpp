// Goal: retention removes no step for the sake of a newer one whose data is gone, also if this
// process has read that data before.
// Method: two steps that were read and found whole; the data of the newer one is removed behind the
// target's back, at daemons, in a cluster, in a folder, at a store and at two places.

#include <ffrecord/client/checkpoint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint_state.h"
#include "daemon.h"
#include "daemon_cluster.h"
#include "fake_bucket.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

using test::Compare;
using test::Daemon;
using test::SaveAlone;
using test::State;

constexpr std::uint64_t kRows = 10'000;
const State& First() {
  static const State state(kRows, test::Seed());
  return state;
}
const State& Second() {
  static const State state(kRows, test::Seed() + 1);
  return state;
}

using Paths = std::set<fs::path>;

Paths Below(const fs::path& folder) {
  Paths files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.insert(entry.path());
  return files;
}

// Those of `after` that were not there before and have tensors in them.
Paths DataAmong(const Paths& before, const Paths& after) {
  Paths data;
  std::ranges::set_difference(after, before, std::inserter(data, data.end()));
  std::erase_if(data, [](const fs::path& path) { return fs::file_size(path) < kRows * 32; });
  return data;
}

std::vector<std::uint64_t> Removed(const std::string& target, const Retention& retention) {
  std::vector<std::uint64_t> steps;
  const auto removed = PruneCheckpoints(target, retention, {});
  EXPECT_TRUE(removed) << removed.error().message;
  if (!removed) return steps;
  for (const Commit& commit : removed.value()) steps.push_back(commit.step);
  return steps;
}

// Reads both steps, and removes none.
void ReadBoth(const std::string& target) {
  EXPECT_EQ(Removed(target, {.keep_last = 2}), std::vector<std::uint64_t>());
}

void ExpectThatTheFirstStays(const std::string& target) {
  ASSERT_NE(Compare(target, Second(), 2), "");  // Or else nothing was lost.
  for (const bool verify : {true, false})
    EXPECT_EQ(Removed(target, {.keep_last = 1, .verify = verify}), std::vector<std::uint64_t>())
        << "verify: " << verify;
  EXPECT_EQ(Compare(target, First(), 1), "");
}

class LossesAtADaemonTest : public testing::Test {
 protected:
  using Loss = std::function<void(const fs::path& file)>;

  static void Remove(const fs::path& file) { fs::remove(file); }
  // As a file system does that has lost the end of a file in a power cut.
  static void CutShort(const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }

  // Saves both steps and reads them; then the daemon loses data files of the second one, `count` of
  // them, or all.
  void SaveAndLose(const std::string& target, std::size_t count = ~std::size_t{0},
                   const Loss& lose = Remove) {
    ASSERT_TRUE(SaveAlone(target, 1, First()));
    const Paths before = Below(daemon_.data());
    ASSERT_TRUE(SaveAlone(target, 2, Second()));
    const Paths data = DataAmong(before, Below(daemon_.data()));
    ASSERT_FALSE(data.empty());
    ReadBoth(target);
    daemon_.Kill();
    for (const fs::path& path : data)
      if (count-- > 0) lose(path);
    daemon_.Start();
  }

  Daemon daemon_;
};

TEST_F(LossesAtADaemonTest, AStepWhoseDataIsGoneDoesNotCount) {
  const std::string target = daemon_.Uri("run");
  SaveAndLose(target);
  ExpectThatTheFirstStays(target);
}

TEST_F(LossesAtADaemonTest, NeitherDoesOneWhoseDataWasCutShort) {
  const std::string target = daemon_.Uri("run");
  SaveAndLose(target, ~std::size_t{0}, CutShort);
  ExpectThatTheFirstStays(target);
}

TEST_F(LossesAtADaemonTest, NeitherDoesOneThatIsGoneAtAllPlaces) {
  const std::string target = "buddies:" + daemon_.Uri("a") + "|" + daemon_.Uri("b");
  SaveAndLose(target);
  ExpectThatTheFirstStays(target);
}

TEST_F(LossesAtADaemonTest, OneCopyIsEnough) {
  const std::string target = "buddies:" + daemon_.Uri("a") + "|" + daemon_.Uri("b");
  SaveAndLose(target, 1);
  for (const bool verify : {true, false}) {
    EXPECT_EQ(Removed(target, {.keep_last = 1, .verify = verify, .dry_run = true}),
              std::vector<std::uint64_t>{1});
  }
}

class LossesInAClusterTest : public test::DaemonCluster {};

TEST_F(LossesInAClusterTest, AStepWhoseDataIsGoneFromAllNodesDoesNotCount) {
  StartNodes(2);
  const std::string target = "ffrecord://" + AddressOf(nodes_[0]) + "/run";
  ASSERT_TRUE(SaveAlone(target, 1, First()));
  const Paths before = Below(folder_.path());
  ASSERT_TRUE(SaveAlone(target, 2, Second()));
  ReadBoth(target);
  const Paths data = DataAmong(before, Below(folder_.path()));
  ASSERT_EQ(data.size(), 2U);
  for (Node& node : nodes_) node.daemon->Kill();
  for (const fs::path& path : data) fs::remove(path);
  for (Node& node : nodes_) node.daemon->Start();
  ASSERT_TRUE(WaitForNodes(2));
  ExpectThatTheFirstStays(target);
}

TEST(LossesInAFolderTest, AStepWhoseDataIsGoneDoesNotCount) {
  const test::TempFolder folder;
  const std::string target = folder.path().string();
  ASSERT_TRUE(SaveAlone(target, 1, First()));
  const Paths before = Below(target);
  ASSERT_TRUE(SaveAlone(target, 2, Second()));
  ReadBoth(target);
  for (const fs::path& path : DataAmong(before, Below(target))) fs::remove(path);
  ExpectThatTheFirstStays(target);
}

// Bytes of the other place were whole when they were read in the place of damaged ones.
TEST(LossesAtTwoPlacesTest, WhatTheOtherPlaceHasMadeGoodIsReadAgain) {
  for (const std::string damaged : {"a", "b"}) {
    const test::TempFolder folder;
    const fs::path a = folder / "a";
    const fs::path b = folder / "b";
    const std::string target = "buddies:" + a.string() + "|" + b.string();
    ASSERT_TRUE(SaveAlone(target, 1, First()));
    ASSERT_TRUE(SaveAlone(target, 2, Second()));
    const fs::path segment = "step-000000002/part-00000/seg-0000";
    std::string bytes = test::ReadFile(folder / damaged / segment);
    bytes[bytes.size() / 2] ^= 1;
    test::WriteFile(folder / damaged / segment, bytes);
    ReadBoth(target);
    EXPECT_EQ(Removed(target, {.keep_last = 1, .dry_run = true}), std::vector<std::uint64_t>{1});
    fs::remove((damaged == "a" ? b : a) / segment);
    ASSERT_NE(Compare(target, Second(), 2), "");
    EXPECT_EQ(Removed(target, {.keep_last = 1}), std::vector<std::uint64_t>());
    EXPECT_EQ(Compare(target, First(), 1), "");
  }
}

TEST(LossesAtAStoreTest, AStepWhoseDataIsGoneDoesNotCount) {
  test::FakeBucket bucket{std::map<std::string, std::string>()};
  ::setenv("AWS_ENDPOINT_URL", bucket.settings().endpoint.c_str(), 1);
  ::setenv("AWS_ACCESS_KEY_ID", "key", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  ::setenv("AWS_REGION", "us-east-1", 1);
  const std::string target = "s3://bucket/run";
  ASSERT_TRUE(SaveAlone(target, 1, First()));
  const auto saved = SaveAlone(target, 2, Second());
  ASSERT_TRUE(saved) << saved.error().message;
  ReadBoth(target);
  httplib::Client client("127.0.0.1", bucket.port());
  ASSERT_TRUE(client.Delete("/bucket/run/step-000000002-" + saved.value().attempt +
                            "/part-00000/seg-0000"));
  ExpectThatTheFirstStays(target);
}

}  // namespace
}  // namespace ffrecord::client
