// Goal: a node's replicas become what the machines of the cluster want: what is written is there
// whole, whatever was in its place; what is dropped goes once nobody needs it.
// Method: one disk; files damaged by hand.

#include "server/service/cluster/node_extents.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "bytes.h"
#include "libffrecord/base/checksum.h"
#include "server/storage/extent_trailer.h"
#include "synced_files.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class NodeExtentsTest : public testing::Test {
 protected:
  using Trust = NodeExtents::Trust;

  void SetUp() override { Start(); }
  // As the daemon does: what is on the disk is looked at.
  void Start() {
    extents_.reset();
    store_.reset();
    auto store = ExtentStore::Open(folder_ / "extents");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(store).value();
    extents_ = std::make_unique<NodeExtents>(*store_);
    extents_->SetTrust(Trust::kIs);
  }
  fs::path path() const { return folder_ / "extents" / ExtentPath(extent_.id); }
  void Sweep() {
    for (const auto& disk : store_->disks()) extents_->Collect(disk.get());
  }
  Result<void> Write() { return extents_->Write(extent_, test::AsBytes(text_)); }
  // The byte is of the data, or from `text_.size()` on of the trailer.
  void FlipByte(std::size_t offset) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }
  void ExpectWhole() const {
    EXPECT_EQ(extents_->Find(extent_.id), extent_);
    const auto read = extents_->Read(extent_);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(test::AsString(read.value()), text_);
  }

  const std::string text_ = std::string(5000, 'x') + "end";
  const ManifestExtent extent_{MakeExtentId(7, 0, 0), text_.size(), Xxh3(test::AsBytes(text_))};
  test::TempFolder folder_;
  std::unique_ptr<ExtentStore> store_;
  std::unique_ptr<NodeExtents> extents_;
};

TEST_F(NodeExtentsTest, WhatIsHereIsWrittenAgainWithoutAnError) {
  ASSERT_TRUE(Write());

  const auto again = Write();

  EXPECT_TRUE(again) << again.error().message;
  ExpectWhole();
  EXPECT_EQ(extents_->healed().value(), 0U);
}

TEST_F(NodeExtentsTest, OtherBytesUnderTheSameIdAreRefused) {
  ASSERT_TRUE(Write());
  const std::string other(text_.size(), 'y');

  const auto refused =
      extents_->Write({extent_.id, other.size(), Xxh3(test::AsBytes(other))}, test::AsBytes(other));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  ExpectWhole();
}

TEST_F(NodeExtentsTest, AnExtentThatIsDescribedOtherwiseIsNotReadAndNotDamaged) {
  ASSERT_TRUE(Write());
  ManifestExtent other = extent_;
  ++other.xxh3;

  const auto read = extents_->Read(other);

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kNotFound) << read.error().message;
  ExpectWhole();
}

TEST_F(NodeExtentsTest, AReplicaThatWasFoundDamagedIsReplaced) {
  ASSERT_TRUE(Write());
  FlipByte(100);
  const auto read = extents_->Read(extent_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kCorruption) << read.error().message;
  EXPECT_FALSE(extents_->Find(extent_.id));

  const auto written = Write();

  ASSERT_TRUE(written) << written.error().message;
  ExpectWhole();
  EXPECT_EQ(extents_->healed().value(), 1U);
}

TEST_F(NodeExtentsTest, ATwentiethOfASmallDiskIsLeftFreeAnd256MiBOfALargeOne) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  EXPECT_EQ(NodeExtents::KeptOf(0), 0U);
  EXPECT_EQ(NodeExtents::KeptOf(100 * kMiB), 5 * kMiB);
  EXPECT_EQ(NodeExtents::KeptOf(5120 * kMiB), 256 * kMiB);
  EXPECT_EQ(NodeExtents::KeptOf(std::uint64_t{1} << 50), 256 * kMiB);
}

TEST_F(NodeExtentsTest, ASmallDiskTakesReplicasUntilItIsNearlyFull) {
  test::TempFolder folder;
  const fs::path small = folder / "small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=10m") != 0)
    GTEST_SKIP() << "tmpfs cannot be mounted here";
  {
    const auto store = ExtentStore::Open(small / "extents");
    ASSERT_TRUE(store) << store.error().message;
    const NodeExtents extents(*store.value());
    const std::uint64_t free_bytes = store.value()->FreeBytes().value();
    EXPECT_EQ(store.value()->SizeBytes(), 10U << 20);
    EXPECT_EQ(extents.KeptBytes(), (10U << 20) / 20);
    EXPECT_EQ(extents.RoomBytes(), free_bytes - extents.KeptBytes());
    EXPECT_TRUE(extents.HasRoomFor(extents.RoomBytes()));
    EXPECT_FALSE(extents.HasRoomFor(extents.RoomBytes() + 1));
    // Others fill it.
    store.value()->disks().front()->set_kept_bytes(free_bytes - 100);
    EXPECT_EQ(extents.RoomBytes(), 0U);
    EXPECT_FALSE(extents.HasRoomFor(1));
  }
  EXPECT_EQ(::umount2(small.c_str(), MNT_DETACH), 0);
}

// Else it would be pulled again and again, and nobody would be told that there is no room.
TEST_F(NodeExtentsTest, WhatFitsOnNoDiskHasNoRoomThoughAllTogetherHaveIt) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kLeft = 300 * kMiB;
  ExtentStore::Disks disks;
  for (const char* const name : {"one", "two"})
    disks.present.push_back(Disk::Open(folder_ / name).value());
  for (const auto& disk : disks.present) {
    ASSERT_GT(disk->space().free_bytes, kLeft);
    disk->set_kept_bytes(disk->space().free_bytes - kLeft);
  }
  const auto store = ExtentStore::Open(std::move(disks));
  ASSERT_TRUE(store) << store.error().message;
  const NodeExtents extents(*store.value());

  ASSERT_GT(extents.RoomBytes(), kLeft + 20 * kMiB);
  EXPECT_FALSE(extents.HasRoomFor(kLeft + 20 * kMiB));
  EXPECT_TRUE(extents.HasRoomFor(kLeft - 20 * kMiB));
}

// The scan refuses such a file and leaves it where it is.
TEST_F(NodeExtentsTest, AFileThatIsNoExtentIsReplaced) {
  const auto damage = std::to_array<std::function<void()>>({
      [&] { FlipByte(text_.size() + 30); },
      [&] { ASSERT_EQ(::truncate(path().c_str(), 0), 0); },
      [&] { ASSERT_EQ(::truncate(path().c_str(), 1000), 0); },
      [&] { ASSERT_EQ(::truncate(path().c_str(), 6000), 0); },
      [&] {
        fs::remove(path());
        fs::create_symlink("/dev/null", path());
      },
  });
  for (const auto& hurt : damage) {
    ASSERT_TRUE(Write());
    hurt();
    Start();
    ASSERT_FALSE(extents_->Find(extent_.id));
    ASSERT_EQ(store_->scan_report().refused.size(), 1U);

    const auto written = Write();

    ASSERT_TRUE(written) << written.error().message;
    ExpectWhole();
    Start();
    ExpectWhole();
    EXPECT_TRUE(store_->scan_report().refused.empty());
  }
}

TEST_F(NodeExtentsTest, WhatIsDroppedIsNotThereAndGoesOnceNobodyReadsIt) {
  ASSERT_TRUE(Write());
  ExtentPtr reader = store_->Find(extent_.id);

  extents_->Drop(extent_.id);

  EXPECT_FALSE(extents_->Find(extent_.id));
  Sweep();
  EXPECT_TRUE(extents_->has_dropped());
  EXPECT_TRUE(fs::exists(path()));
  EXPECT_FALSE(Write());  // It would be removed with the old one.
  reader.reset();
  Sweep();
  EXPECT_FALSE(extents_->has_dropped());
  EXPECT_FALSE(fs::exists(path()));
  const auto again = Write();
  EXPECT_TRUE(again) << again.error().message;
  Sweep();
  ExpectWhole();
}

TEST_F(NodeExtentsTest, NothingGoesWhileTheMetadataIsNotTrusted) {
  ASSERT_TRUE(Write());
  extents_->SetTrust(Trust::kNot);
  extents_->Drop(extent_.id);
  Sweep();
  EXPECT_TRUE(extents_->has_dropped());
  EXPECT_TRUE(fs::exists(path()));
  extents_->SetTrust(Trust::kIs);
  Sweep();
  EXPECT_FALSE(extents_->has_dropped());
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(NodeExtentsTest, WhatWasDroppedIsTheNodesAgainWhereTheMetadataIsFrozen) {
  ASSERT_TRUE(Write());
  extents_->Drop(extent_.id);
  extents_->SetTrust(Trust::kFrozen);
  Sweep();
  EXPECT_FALSE(extents_->has_dropped());
  ExpectWhole();

  extents_->SetTrust(Trust::kIs);  // What is dropped after that goes.
  Sweep();
  ExpectWhole();
  extents_->Drop(extent_.id);
  Sweep();
  EXPECT_FALSE(fs::exists(path()));
}

// By a process that was killed before it had synced the folder: a power cut would bring it back.
TEST_F(NodeExtentsTest, WhatAnEarlierProcessHasRemovedIsGoneForGood) {
  ASSERT_TRUE(Write());
  ASSERT_TRUE(fs::remove(path()));
  const test::SyncedFiles synced;
  Start();
  EXPECT_FALSE(extents_->Find(extent_.id));
  EXPECT_TRUE(synced.Contains(path().parent_path()));
}

TEST_F(NodeExtentsTest, WhatComesFromOtherNodesIsInMotionUntilItIsHere) {
  const ExtentId id = MakeExtentId(3, 0, 1);
  auto first = std::make_unique<NodeExtents::Coming>(*extents_, id);
  {
    const NodeExtents::Coming second(*extents_, id);
    EXPECT_NE(std::ranges::count(extents_->InMotion(), id), 0);
  }
  EXPECT_EQ(std::ranges::count(extents_->InMotion(), id), 1);
  first.reset();
  EXPECT_TRUE(extents_->InMotion().empty());
}

TEST_F(NodeExtentsTest, WhatIsKeptIsNeitherShownNorDropped) {
  ASSERT_TRUE(Write());
  extents_->Keep({extent_.id});

  extents_->Drop(extent_.id);
  Sweep();

  EXPECT_TRUE(extents_->All().empty());
  ExpectWhole();
}

TEST_F(NodeExtentsTest, UploadsAreForgottenAfterTheirGraceAndNotBefore) {
  const auto before = cluster::TimePoint::clock::now();
  extents_->NoteHeard(5);
  const auto after = cluster::TimePoint::clock::now();

  extents_->ForgetSilent(before + 10s, 10s);
  ASSERT_TRUE(extents_->LastHeard(5));
  EXPECT_LE(before, *extents_->LastHeard(5));
  extents_->ForgetSilent(after + 10001ms, 10s);
  EXPECT_FALSE(extents_->LastHeard(5));
  EXPECT_FALSE(extents_->LastHeard(6));
}

}  // namespace
}  // namespace ffrecord::server
