// Goal: a disk is emptied without an extent being unreadable, lost or found twice meanwhile.
// Method: extent stores over two folders, of which one is drained, while its extents are read,
// deleted, damaged, or have no room elsewhere; and starts in the middle of it.

#include "server/storage/disk_drain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/io/file.h"
#include "new_extents.h"
#include "server/storage/open_extents.h"
#include "synced_files.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::AsBytes;
using test::Eventually;

class DiskDrainTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kCount = 12;

  void SetUp() override {
    Open();
    for (std::uint32_t i = 0; i < kCount; ++i) {
      auto writer = test::Create(*store_, Id(i), Text(i).size()).value();
      ASSERT_TRUE(writer.Append(AsBytes(Text(i))));
      ASSERT_TRUE(writer.Seal(Xxh3(AsBytes(Text(i)))));
    }
    ASSERT_GT(OldCount(), 0U);
  }

  void Open() {
    drain_ = nullptr;
    store_ = nullptr;
    ExtentStore::Disks disks;
    for (const std::string& name : disk_names_)
      disks.present.push_back(Disk::Open(folder_ / name).value());
    store_ = ExtentStore::Open(std::move(disks)).value();
  }
  void Drain() {
    drain_ = std::make_unique<DiskDrain>(
        *store_, Old(), DiskDrain::Options{.look_again = 1ms, .try_again = 20ms},
        DiskDrain::Told{[this](const Extent&, const Error&) { ++not_moved_count_; },
                        [this](const Disk& disk) {
                          EXPECT_EQ(&disk, &Old());
                          ++drained_count_;
                        }});
  }

  static ExtentId Id(std::uint32_t number) { return MakeExtentId(5, 0, number); }
  static std::string Text(std::uint32_t number) {
    return std::string(3'000'000 + number * 1000, static_cast<char>('a' + number));
  }
  Disk& Old() const { return *store_->disks()[0]; }
  Disk& New() const { return *store_->disks()[1]; }
  std::uint64_t OldCount() const { return Old().totals().extent_count; }
  static std::size_t FilesOn(const Disk& disk) {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(disk.folder()))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  }
  ExtentPtr OneOnOld() const {
    return store_->FindAll([this](const Extent& one) { return one.disk == &Old(); }).front();
  }
  static std::string ReadAll(const Extent& extent) {
    const auto fd = ExtentStore::OpenFile(extent);
    if (!fd) return "";
    std::string text(extent.size_bytes, '\0');
    const auto bytes = std::as_writable_bytes(std::span(text));
    return ReadExactly(fd.value().get(), "extent", 0, bytes) ? text : "";
  }
  void ExpectAllThere() const {
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const ExtentPtr extent = store_->Find(Id(i));
      ASSERT_TRUE(extent) << i;
      EXPECT_EQ(ReadAll(*extent), Text(i)) << i;
    }
  }

  test::TempFolder folder_;
  std::vector<std::string> disk_names_{"old", "new"};
  std::unique_ptr<ExtentStore> store_;
  std::atomic<int> not_moved_count_ = 0;
  std::atomic<int> drained_count_ = 0;
  std::unique_ptr<DiskDrain> drain_;
};

TEST_F(DiskDrainTest, AllIsMovedAndNothingNewComes) {
  Drain();
  for (std::uint32_t i = 0; i < 6; ++i) {
    auto writer = test::Create(*store_, Id(100 + i), 3).value();
    ASSERT_TRUE(writer.Append(AsBytes(std::string_view("new"))));
    EXPECT_EQ(writer.Seal(Xxh3(AsBytes(std::string_view("new")))).value()->disk, &New());
  }
  ASSERT_TRUE(Eventually([&] { return drained_count_ == 1; }));
  EXPECT_EQ(Old().drain(), Disk::Drain::kDrained);
  EXPECT_EQ(FilesOn(Old()), 0U);
  EXPECT_EQ(FilesOn(New()), kCount + 6);
  EXPECT_EQ(New().totals().extent_count, kCount + 6);
  EXPECT_EQ(not_moved_count_, 0);
  ExpectAllThere();
  Open();
  EXPECT_TRUE(store_->scan_report().refused.empty());
  ExpectAllThere();
}

TEST_F(DiskDrainTest, WhoHoldsAnExtentReadsItsOldFile) {
  const ExtentPtr held = OneOnOld();
  const std::string before = ReadAll(*held);
  OpenExtents files(10, 10);
  const auto get = [&](const ExtentPtr& extent) {
    const OpenExtentPtr open = files.Find(extent);
    return open ? open : files.Add(OpenExtents::Open(extent, true).value());
  };
  const int old_fd = get(held)->fd.get();
  Drain();
  ASSERT_TRUE(Eventually([&] { return OldCount() == 0 && FilesOn(Old()) == 1; }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(drained_count_, 0);
  EXPECT_EQ(ReadAll(*held), before);

  // A cache of open files takes each for what it is: they are on different disks.
  const ExtentPtr now = store_->Find(held->id);
  ASSERT_NE(now, held);
  EXPECT_EQ(now->disk, &New());
  EXPECT_EQ(get(now)->extent, now);
  EXPECT_EQ(files.Find(held), nullptr);
  EXPECT_EQ(get(held)->extent, held);
  EXPECT_GE(old_fd, 0);
}

TEST_F(DiskDrainTest, TheOldFileGoesWhenItsLastReaderHasLetGo) {
  ExtentPtr held = OneOnOld();
  Drain();
  ASSERT_TRUE(Eventually([&] { return OldCount() == 0 && FilesOn(Old()) == 1; }));
  EXPECT_EQ(drained_count_, 0);
  held = nullptr;
  ASSERT_TRUE(Eventually([&] { return drained_count_ == 1; }));
  EXPECT_EQ(FilesOn(Old()), 0U);
}

TEST_F(DiskDrainTest, WhatIsDeletedWhileItIsMovedIsLeftOnNoDisk) {
  const ExtentPtr extent = OneOnOld();
  auto writer = store_->BeginMove(*extent).value();
  ASSERT_TRUE(writer.Append(AsBytes(ReadAll(*extent))));
  const ExtentPtr deleted = store_->MarkDeleted(extent->id);
  EXPECT_FALSE(store_->Unlink(*deleted).value());  // Somebody writes it.

  const auto moved = store_->EndMove(extent, writer);

  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, ErrorCode::kConflict);
  { const ExtentWriter gone = std::move(writer); }
  EXPECT_TRUE(store_->Unlink(*deleted).value());
  EXPECT_FALSE(fs::exists(Old().PathOf(extent->id)));
  EXPECT_FALSE(fs::exists(New().PathOf(extent->id)));
}

TEST_F(DiskDrainTest, WhatIsDeletedAfterItWasMovedIsLeftOnNoDisk) {
  const ExtentPtr extent = OneOnOld();
  {
    auto writer = store_->BeginMove(*extent).value();
    ASSERT_TRUE(writer.Append(AsBytes(ReadAll(*extent))));
    ASSERT_TRUE(store_->EndMove(extent, writer));
  }
  const ExtentPtr deleted = store_->MarkDeleted(extent->id);
  EXPECT_TRUE(store_->Unlink(*deleted).value());
  EXPECT_FALSE(fs::exists(Old().PathOf(extent->id)));
  EXPECT_FALSE(fs::exists(New().PathOf(extent->id)));
  EXPECT_TRUE(store_->RemoveMoved(*extent));
}

TEST_F(DiskDrainTest, BytesThatAreBadStayAndAreTold) {
  const ExtentPtr extent = OneOnOld();
  const ExtentId id = extent->id;
  {
    std::fstream file(Old().PathOf(id), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1234);
    file.put('?');
  }
  Drain();
  ASSERT_TRUE(Eventually([&] { return not_moved_count_ > 1 && OldCount() == 1; }));
  EXPECT_EQ(store_->Find(id)->disk, &Old());
  EXPECT_FALSE(fs::exists(New().PathOf(id)));
  EXPECT_EQ(drained_count_, 0);
}

TEST_F(DiskDrainTest, AKillBetweenTheTwoFilesIsExplainedByTheNextStart) {
  const ExtentPtr extent = OneOnOld();
  const ExtentId id = extent->id;
  {
    auto writer = store_->BeginMove(*extent).value();
    ASSERT_TRUE(writer.Append(AsBytes(ReadAll(*extent))));
    ASSERT_TRUE(store_->EndMove(extent, writer));
  }
  ASSERT_TRUE(fs::exists(Old().PathOf(id)));
  Open();
  EXPECT_EQ(store_->scan_report().extent_count, kCount);
  Drain();
  ASSERT_TRUE(Eventually([&] { return drained_count_ == 1; }));
  EXPECT_EQ(FilesOn(Old()), 0U);
  ExpectAllThere();
}

// A kill may have come before the copy's name was durable; the power may go once the old is gone.
TEST_F(DiskDrainTest, ACopyIsDurableBeforeTheOldFileGoes) {
  const ExtentPtr extent = OneOnOld();
  const ExtentId id = extent->id;
  const fs::path copy = New().PathOf(id);
  fs::create_directories(copy.parent_path());
  fs::copy_file(Old().PathOf(id), copy);
  Open();
  ASSERT_EQ(store_->Find(id)->disk, &Old());
  const test::SyncedFiles synced;

  EXPECT_TRUE(store_->MoveToCopy(store_->Find(id)).value());

  EXPECT_EQ(store_->Find(id)->disk, &New());
  EXPECT_TRUE(synced.Contains(copy));
  EXPECT_TRUE(synced.Contains(copy.parent_path()));
}

// A copy that a start has found on the other disk.
class FoundCopyTest : public DiskDrainTest {
 protected:
  void SetUp() override {
    DiskDrainTest::SetUp();
    id_ = OneOnOld()->id;
    fs::create_directories(New().PathOf(id_).parent_path());
    fs::copy_file(Old().PathOf(id_), New().PathOf(id_));
    Open();
    ASSERT_EQ(store_->Find(id_)->disk, &Old());
  }
  ExtentId id_{};
};

TEST_F(FoundCopyTest, OneOnADiskThatHasFailedIsNotTrusted) {
  New().writes().Note({ErrorCode::kIo, "the disk fails", EIO});
  EXPECT_FALSE(store_->MoveToCopy(store_->Find(id_)).value());
  EXPECT_EQ(store_->Find(id_)->disk, &Old());
}

TEST_F(FoundCopyTest, OneThatCanNeitherBeReadNorRemovedIsNoPlaceToMoveTo) {
  fs::remove(New().PathOf(id_));
  fs::create_symlink(Old().PathOf(id_), New().PathOf(id_));  // It is never followed.
  EXPECT_FALSE(store_->MoveToCopy(store_->Find(id_)).value());
  const auto begun = store_->BeginMove(*store_->Find(id_));
  ASSERT_FALSE(begun);
  EXPECT_NE(begun.error().message.find("no disk"), std::string::npos) << begun.error().message;
  EXPECT_EQ(store_->Find(id_)->disk, &Old());
}

// Three disks, and the second is gone when the first is to be drained.
class LostTargetTest : public DiskDrainTest {
 protected:
  LostTargetTest() { disk_names_ = {"old", "new", "third"}; }
  Disk& Third() const { return *store_->disks()[2]; }
};

TEST_F(LostTargetTest, ADiskThatIsLostMeanwhileSendsExtentsToTheThird) {
  const std::uint64_t lost_count = New().totals().extent_count;
  fs::rename(folder_ / "new", folder_ / "elsewhere");
  Drain();
  ASSERT_TRUE(Eventually([&] { return drained_count_ == 1; })) << OldCount();
  EXPECT_EQ(FilesOn(Old()), 0U);
  EXPECT_EQ(Third().totals().extent_count, kCount - lost_count);
}

TEST_F(LostTargetTest, ACopyThatCannotBeReadSendsItsExtentToTheThird) {
  const ExtentPtr extent = OneOnOld();
  {
    auto writer = store_->BeginMove(*extent).value();
    ASSERT_TRUE(writer.Append(AsBytes(ReadAll(*extent))));
    ASSERT_TRUE(writer.Seal(extent->xxh3));  // And then it was not to be found there yet.
  }
  Disk& target = fs::exists(New().PathOf(extent->id)) ? New() : Third();
  target.writes().Note({ErrorCode::kIo, "the disk fails", EIO});
  fs::remove(target.PathOf(extent->id));
  fs::create_directory(target.PathOf(extent->id));  // No file that could be opened, or unlinked.
  const ExtentId id = extent->id;
  Drain();
  ASSERT_TRUE(Eventually([&] { return OldCount() == 0; }));
  EXPECT_NE(store_->Find(id)->disk, &target);
  EXPECT_NE(store_->Find(id)->disk, &Old());
}

TEST_F(DiskDrainTest, AnEndInTheMiddleLeavesEachExtentOnce) {
  Drain();
  drain_ = nullptr;
  ExpectAllThere();
  Open();
  EXPECT_TRUE(store_->scan_report().refused.size() <= 1);
  ExpectAllThere();
}

}  // namespace
}  // namespace ffrecord::server
