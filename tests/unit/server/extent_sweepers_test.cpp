// Goal: dropped extents go from the disk while the metadata is trusted, stay while it is not, and
// are the node's again while it is frozen.
// Method: the sweepers alone, over one disk; they have done what they can once all threads wait, by
// a clock of the test.

#include "server/service/cluster/extent_sweepers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "libffrecord/base/checksum.h"
#include "server/storage/extent_trailer.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace ffrecord::server {
namespace {

class ExtentSweepersTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(extents_.Write(extent_, test::AsBytes(text_)));
    extents_.Drop(extent_.id);
    ASSERT_TRUE(IsOnDisk());
  }
  bool IsOnDisk() const {
    return std::filesystem::exists(folder_ / "extents" / ExtentPath(extent_.id));
  }
  void Sweep(bool is_frozen) {
    sweepers_.Sweep(is_frozen);
    clock_.RunUntilIdle();
  }
  // As the thread does that writes to this node's disk.
  void RunPosted() {
    for (const auto& task : std::exchange(posted_, {})) task();
  }

  test::VirtualClock clock_;
  const test::TempFolder folder_;
  const std::string text_ = std::string(1'000, 'x');
  const ManifestExtent extent_{MakeExtentId(7, 0, 0), text_.size(), Xxh3(test::AsBytes(text_))};
  const std::unique_ptr<ExtentStore> store_ = ExtentStore::Open(folder_ / "extents").value();
  NodeExtents extents_{*store_};
  std::vector<TaskThreads::Task> posted_;
  ExtentSweepers sweepers_{extents_,
                           [this](TaskThreads::Task task) { posted_.push_back(std::move(task)); }};
};

TEST_F(ExtentSweepersTest, NothingGoesBeforeTheMetadataIsTrusted) {
  Sweep(/*is_frozen=*/false);
  EXPECT_TRUE(IsOnDisk());
  sweepers_.Trust(true);
  Sweep(/*is_frozen=*/false);
  EXPECT_FALSE(IsOnDisk());
  EXPECT_FALSE(extents_.has_dropped());
}

TEST_F(ExtentSweepersTest, NothingGoesOnceTheMetadataIsNotTrustedAnyMore) {
  sweepers_.Trust(true);
  sweepers_.Trust(false);
  Sweep(/*is_frozen=*/false);
  EXPECT_TRUE(IsOnDisk());
  EXPECT_TRUE(extents_.has_dropped());
}

TEST_F(ExtentSweepersTest, WhileTheMetadataIsFrozenDroppedExtentsAreTheNodesAgain) {
  sweepers_.Trust(true);
  Sweep(/*is_frozen=*/true);
  EXPECT_FALSE(extents_.Find(extent_.id));
  Sweep(/*is_frozen=*/false);  // Not beside it.
  EXPECT_TRUE(IsOnDisk());
  ASSERT_EQ(posted_.size(), 1U);

  RunPosted();

  EXPECT_TRUE(extents_.Find(extent_.id));
  EXPECT_FALSE(extents_.has_dropped());
}

TEST_F(ExtentSweepersTest, WhatIsDroppedAfterItWasTakenBackGoes) {
  sweepers_.Trust(true);
  Sweep(/*is_frozen=*/true);
  RunPosted();
  extents_.Drop(extent_.id);
  Sweep(/*is_frozen=*/false);
  EXPECT_FALSE(IsOnDisk());
}

}  // namespace
}  // namespace ffrecord::server
