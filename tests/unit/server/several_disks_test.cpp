// Goal: of several disks one that is missing, full or failing costs its own extents, and no other;
// and an extent is known once, whichever disk has it.
// Method: an extent store over folders, of which one is taken away, made a small disk, made to fail
// its syncs, or given copies of what the other has.

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "bytes.h"
#include "new_extents.h"
#include "server/storage/extent_store.h"
#include "synced_files.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::AsBytes;
using test::TempFolder;

constexpr std::string_view kData = "some data";

class SeveralDisksTest : public testing::Test {
 protected:
  void SetUp() override { Open({"a", "b"}); }

  Result<std::unique_ptr<ExtentStore>> TryOpen(const std::vector<std::string>& names,
                                               std::size_t missing_count = 0,
                                               std::size_t missing_count_max = 0) {
    ExtentStore::Disks disks;
    disks.missing_count = missing_count;
    disks.missing_count_max = missing_count_max;
    for (const std::string& name : names)
      disks.present.push_back(FFR_TRY(Disk::Open(folder_ / name)));
    return ExtentStore::Open(std::move(disks), known_);
  }
  void Open(const std::vector<std::string>& names, std::size_t missing_count = 0) {
    auto store = TryOpen(names, missing_count, missing_count);
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(store).value();
  }

  static ExtentId Id(std::uint32_t number) { return MakeExtentId(5, 0, number); }
  Result<ExtentPtr> Put(std::uint32_t number, std::string_view data = kData) {
    auto writer = FFR_TRY(test::Create(*store_, Id(number), data.size()));
    FFR_TRY(writer.Append(AsBytes(data)));
    return writer.Seal(Xxh3(AsBytes(data)));
  }
  // Puts extents until one is on the disk called `name`.
  ExtentPtr PutOn(const std::string& name) {
    for (;;) {
      const auto put = Put(next_++);
      if (!put || NameOf(*put.value()->disk) == name) return put ? put.value() : nullptr;
    }
  }
  static std::string NameOf(const Disk& disk) { return disk.folder().filename().string(); }
  Disk& DiskOf(std::string_view name) const {
    for (const auto& disk : store_->disks())
      if (NameOf(*disk) == name) return *disk;
    std::abort();
  }
  static ManifestExtent Known(const Extent& extent) {
    return {extent.id, extent.size_bytes, extent.xxh3};
  }
  fs::path File(const std::string& disk, const ExtentId& id) const {
    return folder_ / disk / ExtentPath(id);
  }
  void Copy(const std::string& from, const std::string& to, const ExtentId& id) const {
    fs::create_directories(File(to, id).parent_path());
    fs::copy_file(File(from, id), File(to, id));
  }

  TempFolder folder_;
  std::vector<ManifestExtent> known_;
  std::unique_ptr<ExtentStore> store_;
  std::uint32_t next_ = 1000;
};

TEST_F(SeveralDisksTest, EqualDisksTakeTurnsAlsoWhileNothingIsWritten) {
  std::vector<ExtentWriter> writers;
  std::map<std::string, int> counts;
  for (std::uint32_t i = 0; i < 10; ++i)
    writers.push_back(test::Create(*store_, Id(i), 1000).value());
  writers.clear();
  for (std::uint32_t i = 0; i < 10; ++i) ++counts[NameOf(*Put(i).value()->disk)];
  EXPECT_EQ(counts["a"], 5);
  EXPECT_EQ(counts["b"], 5);
  EXPECT_EQ(DiskOf("a").totals().extent_count, 5U);
  EXPECT_EQ(DiskOf("a").totals().declared_bytes, 0U);
  EXPECT_EQ(store_->totals().extent_count, 10U);
  EXPECT_EQ(store_->totals().size_bytes, 10 * kData.size());
}

TEST_F(SeveralDisksTest, WhatIsOnEachDiskIsFoundThereAfterAStart) {
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(i));
  Open({"b", "a"});
  for (std::uint32_t i = 0; i < 4; ++i) {
    const ExtentPtr extent = store_->Find(Id(i));
    ASSERT_TRUE(extent);
    EXPECT_TRUE(ExtentStore::OpenFile(*extent));
  }
  EXPECT_EQ(store_->scan_report().extent_count, 4U);
  EXPECT_EQ(DiskOf("a").totals().extent_count, 2U);
}

TEST_F(SeveralDisksTest, WritersOfOneExtentMeetOnOneDisk) {
  auto first = test::Create(*store_, Id(1), kData.size()).value();
  auto second = test::Create(*store_, Id(1), kData.size()).value();
  for (auto* const writer : {&first, &second}) {
    ASSERT_TRUE(writer->Append(AsBytes(kData)));
    const auto sealed = writer->Seal(Xxh3(AsBytes(kData)));
    ASSERT_TRUE(sealed) << sealed.error().message;
  }
  EXPECT_EQ(store_->totals().extent_count, 1U);
  EXPECT_NE(fs::exists(File("a", Id(1))), fs::exists(File("b", Id(1))));
  EXPECT_EQ(test::Create(*store_, Id(1), kData.size()).error().code, ErrorCode::kConflict);
}

TEST_F(SeveralDisksTest, ADiskThatFailsCostsItsOwnExtentsOnly) {
  const ExtentPtr before = PutOn("a");
  const auto put_failing = [this](std::uint32_t number) {
    const test::SyncedFiles failing(File("a", Id(number)).parent_path());
    return Put(number);
  };
  auto sealed = put_failing(1);
  for (std::uint32_t i = 2; sealed && i < 5; ++i) sealed = put_failing(i);  // The other's turn.
  ASSERT_FALSE(sealed);
  // Another disk takes it: the client is to send it again.
  EXPECT_EQ(sealed.error().code, ErrorCode::kUnavailable) << sealed.error().message;
  EXPECT_EQ(DiskOf("a").writes().report().state, WriteHealth::State::kFailed);
  for (std::uint32_t i = 10; i < 20; ++i) EXPECT_EQ(NameOf(*Put(i).value()->disk), "b");
  EXPECT_TRUE(ExtentStore::OpenFile(*before));
  EXPECT_TRUE(store_->FreeBytes());

  // Its names could not be made durable.
  const ExtentPtr deleted = store_->MarkDeleted(before->id);
  EXPECT_FALSE(store_->Unlink(*deleted).value());
  EXPECT_TRUE(fs::exists(File("a", before->id)));
  DiskOf("b").writes().Note({ErrorCode::kIo, "failed", EIO});
  EXPECT_EQ(Put(30).error().code, ErrorCode::kIo);
  EXPECT_FALSE(store_->FreeBytes());
}

// Their last sync was before, or told nothing of what the failed one has lost.
TEST_F(SeveralDisksTest, AWriteThatEndsWellMakesNoGoodDiskOfOneThatHasFailed) {
  auto writer = test::Create(*store_, Id(1), kData.size()).value();
  ASSERT_TRUE(writer.Append(AsBytes(kData)));
  for (const auto& disk : store_->disks()) disk->writes().Note({ErrorCode::kIo, "failed", EIO});
  const auto sealed = writer.Seal(Xxh3(AsBytes(kData)));
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_EQ(sealed.value()->disk->writes().report().state, WriteHealth::State::kFailed);
  EXPECT_FALSE(Put(2));
}

TEST_F(SeveralDisksTest, AFolderThatCannotBeMadeSendsAnExtentToTheOtherDisk) {
  // As a file system that went read-only does, though only for one folder.
  const test::SyncedFiles failing(folder_ / "a");
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(NameOf(*Put(i).value()->disk), "b");
  EXPECT_EQ(DiskOf("a").writes().report().state, WriteHealth::State::kFailed);
}

TEST_F(SeveralDisksTest, AFolderThatIsUnmountedUnderARunningDaemonIsAFailedDisk) {
  const ExtentPtr on_a = PutOn("a");
  const ExtentPtr other_on_a = PutOn("a");
  fs::rename(folder_ / "a", folder_ / "elsewhere");
  fs::create_directory(folder_ / "a");  // Its mount point.

  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(NameOf(*Put(i).value()->disk), "b");

  EXPECT_EQ(DiskOf("a").writes().report().state, WriteHealth::State::kFailed);
  EXPECT_TRUE(fs::is_empty(folder_ / "a"));
  EXPECT_TRUE(ExtentStore::OpenFile(*on_a));  // Where it was when it was opened.
  EXPECT_FALSE(store_->Unlink(*store_->MarkDeleted(on_a->id)).value());

  // It may be the deletion that finds out.
  fs::remove(folder_ / "a");
  fs::rename(folder_ / "elsewhere", folder_ / "a");
  Open({"a", "b"});
  fs::rename(folder_ / "a", folder_ / "elsewhere");
  const ExtentPtr deleted = store_->MarkDeleted(other_on_a->id);
  EXPECT_FALSE(store_->Unlink(*deleted));
  EXPECT_EQ(DiskOf("a").writes().report().state, WriteHealth::State::kFailed);
  EXPECT_FALSE(store_->SyncNames(std::span(&deleted->id, 1)));
}

TEST_F(SeveralDisksTest, ADiskThatAnswersSlowlyOrWithErrorsIsTheLastChoice) {
  DiskOf("a").reads().NoteTime(ReadHealth::kSlow);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(NameOf(*Put(i).value()->disk), "b");
  DiskOf("b").reads().NoteError();
  EXPECT_TRUE(Put(10));
  EXPECT_TRUE(Put(11));
  EXPECT_GT(DiskOf("a").totals().extent_count, 0U);
  EXPECT_EQ(DiskOf("a").reads().slow_count(), 1U);
  EXPECT_EQ(DiskOf("b").reads().error_count(), 1U);
}

TEST_F(SeveralDisksTest, WhatMayBeOnAMissingDiskIsUnavailableAndNeverForgotten) {
  const ExtentPtr on_a = PutOn("a");
  const ExtentPtr on_b = PutOn("b");
  known_ = {Known(*on_a), Known(*on_b)};
  std::ranges::sort(known_, {}, &ManifestExtent::id);

  Open({"b"}, 1);

  EXPECT_EQ(store_->scan_report().absent_count, 1U);
  EXPECT_EQ(store_->scan_report().missing_count, 0U);
  EXPECT_TRUE(ExtentStore::OpenFile(*store_->Find(on_b->id)));
  const ExtentPtr absent = store_->Find(on_a->id);
  ASSERT_TRUE(absent);
  EXPECT_EQ(absent->disk, nullptr);
  EXPECT_EQ(ExtentStore::OpenFile(*absent).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(test::Create(*store_, on_a->id, kData.size()).error().code, ErrorCode::kConflict);
  EXPECT_FALSE(store_->Mark(*absent, true));
  EXPECT_FALSE(store_->Unlink(*store_->MarkDeleted(on_a->id)).value());
  // One that no manifest names may be there too.
  const ExtentPtr unknown = store_->MarkDeleted(Id(77));
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(store_->Unlink(*unknown).value());

  Open({"a", "b"});
  EXPECT_TRUE(ExtentStore::OpenFile(*store_->Find(on_a->id)));
  EXPECT_FALSE(store_->MarkDeleted(Id(77)));
}

TEST_F(SeveralDisksTest, ADiskThatCannotBeListedIsMissing) {
  const ExtentPtr on_a = PutOn("a");
  known_ = {Known(*on_a)};
  const test::SyncedFiles failing(folder_ / "a");
  const auto refused = TryOpen({"b", "a"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo) << refused.error().message;

  const auto store = TryOpen({"b", "a"}, 0, 1);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ(store.value()->disks().size(), 1U);
  EXPECT_EQ(store.value()->missing_disk_count(), 1U);
  EXPECT_EQ(store.value()->scan_report().unreadable_disks.size(), 1U);
  EXPECT_EQ(store.value()->Find(on_a->id)->disk, nullptr);
  EXPECT_FALSE(TryOpen({"a"}, 0, 1));  // None is left.
}

TEST_F(SeveralDisksTest, OfTwoCopiesTheWholeOneIsReadAndBothAreDeleted) {
  const ExtentPtr good = PutOn("a");
  const ExtentPtr torn = PutOn("a");
  Copy("a", "b", good->id);
  Copy("a", "b", torn->id);
  fs::resize_file(File("a", torn->id), 10);
  known_ = {Known(*good), Known(*torn)};
  std::ranges::sort(known_, {}, &ManifestExtent::id);

  Open({"a", "b"});

  EXPECT_EQ(NameOf(*store_->Find(good->id)->disk), "a");
  EXPECT_EQ(NameOf(*store_->Find(torn->id)->disk), "b");
  EXPECT_EQ(store_->scan_report().refused.size(), 2U);
  EXPECT_EQ(store_->scan_report().missing_count, 0U);
  for (const auto& id : {good->id, torn->id}) {
    EXPECT_TRUE(store_->Unlink(*store_->MarkDeleted(id)).value());
    EXPECT_FALSE(fs::exists(File("a", id)));
    EXPECT_FALSE(fs::exists(File("b", id)));
  }
}

TEST_F(SeveralDisksTest, CopiesWithOtherBytesDoNotStopAStart) {
  const ExtentPtr one = PutOn("a");
  {
    const auto other = ExtentStore::Open(folder_ / "other").value();
    auto writer = test::Create(*other, one->id, 5).value();
    ASSERT_TRUE(writer.Append(AsBytes("other")));
    ASSERT_TRUE(writer.Seal(Xxh3(AsBytes("other"))));
  }
  Copy("other", "b", one->id);

  Open({"a", "b"});
  EXPECT_EQ(store_->Find(one->id)->xxh3, one->xxh3);
  // What a manifest says decides, wherever it lies.
  known_ = {Known(*one)};
  Open({"b", "a"});
  EXPECT_EQ(NameOf(*store_->Find(one->id)->disk), "a");
}

TEST(SmallDiskTest, WhatHasNoRoomOnOneDiskGoesToAnother) {
  const TempFolder folder;
  fs::create_directory(folder / "small");
  if (::mount("tmpfs", (folder / "small").c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "tmpfs cannot be mounted here";
  {
    ExtentStore::Disks disks;
    disks.present.push_back(Disk::Open(folder / "small" / "extents").value());
    disks.present.push_back(Disk::Open(folder / "large").value());
    const auto store = ExtentStore::Open(std::move(disks)).value();
    Disk& small = *store->disks()[0];
    const std::string data(600 << 10, 'x');
    for (std::uint32_t i = 0; i < 10; ++i) {
      auto writer = test::Create(*store, MakeExtentId(1, 0, i), data.size());
      ASSERT_TRUE(writer) << writer.error().message;
      ASSERT_TRUE(writer.value().Append(AsBytes(data)));
      ASSERT_TRUE(writer.value().Seal(Xxh3(AsBytes(data))));
    }
    EXPECT_LE(small.totals().extent_count, 1U);
    EXPECT_GE(store->FreeBytes().value(), store->disks()[1]->space().free_bytes);
    // What the daemon keeps for itself is not given to extents.
    small.set_kept_bytes(900 << 10);
    EXPECT_FALSE(small.CheckTakes(200 << 10));
    EXPECT_TRUE(test::Create(*store, MakeExtentId(2, 0, 0), 4 << 20));
    const auto huge = test::Create(*store, MakeExtentId(2, 0, 1), std::uint64_t{1} << 60);
    ASSERT_FALSE(huge);
    EXPECT_EQ(huge.error().system_errno, ENOSPC);
  }
  ::umount((folder / "small").c_str());
}

}  // namespace
}  // namespace ffrecord::server
