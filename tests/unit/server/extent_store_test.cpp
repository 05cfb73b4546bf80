// Goal: an extent is on the disk whole and under its name, or it is not there; and a scan believes
// nothing that it cannot check.
// Method: golden slots; extents written, cut, flipped and moved, then scanned; a small disk.

#include "server/storage/extent_store.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <utility>

#include "bytes.h"
#include "new_extents.h"
#include "server/storage/extent_trailer.h"
#include "synced_files.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::AsBytes;
using test::TempFolder;

ExtentId FromHex(std::string_view text) {
  ExtentId id;
  for (std::size_t i = 0; i < id.size(); ++i)
    id[i] = static_cast<std::byte>(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16));
  return id;
}

TEST(ExtentTrailerTest, SlotsAreThoseOfTheSpecification) {
  EXPECT_EQ(SlotOf(FromHex("00000000000000000000000000000000")), 0x968U);
  EXPECT_EQ(SlotOf(FromHex("000102030405060708090a0b0c0d0e0f")), 0x0dbU);
  EXPECT_EQ(SlotOf(FromHex("11111111111111111111111100000000")), 0x1f8U);
  EXPECT_EQ(SlotOf(FromHex("11111111111111111111111100000001")), 0x4e0U);
  EXPECT_EQ(ExtentPath(FromHex("000102030405060708090a0b0c0d0e0f")),
            fs::path("0db/000102030405060708090a0b0c0d0e0f"));
}

TEST(ExtentTrailerTest, EveryFlippedBitIsFound) {
  const ExtentTrailer trailer{MakeExtentId(1, 2, 3), 1000, 77};
  const auto bytes = EncodeExtentTrailer(trailer);
  EXPECT_EQ(DecodeExtentTrailer(bytes, 1064).value(), trailer);
  EXPECT_FALSE(DecodeExtentTrailer(bytes, 1065));
  EXPECT_FALSE(DecodeExtentTrailer(bytes, 1063));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_FALSE(DecodeExtentTrailer(flipped, 1064)) << bit;
  }
}

class ExtentStoreTest : public testing::Test {
 protected:
  void Open() {
    auto store = ExtentStore::Open(folder_ / "extents");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(store).value();
  }
  void SetUp() override { Open(); }

  void Put(const ExtentId& id, std::string_view data) {
    auto writer = test::Create(*store_, id, data.size());
    ASSERT_TRUE(writer) << writer.error().message;
    ASSERT_TRUE(writer.value().Append(AsBytes(data)));
    const auto sealed = writer.value().Seal(Xxh3(AsBytes(data)));
    ASSERT_TRUE(sealed) << sealed.error().message;
  }
  std::size_t FileCount() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "extents"))
      count += entry.is_regular_file();
    return count;
  }

  const ExtentId id_ = MakeExtentId(5, 0, 0);
  TempFolder folder_;
  std::unique_ptr<ExtentStore> store_;
};

TEST_F(ExtentStoreTest, WhatIsSealedIsFoundNowAndAfterAScan) {
  Put(id_, "some data");
  for (int round = 0; round < 2; ++round) {
    const ExtentPtr extent = store_->Find(id_);
    ASSERT_TRUE(extent);
    EXPECT_EQ(extent->size_bytes, 9U);
    EXPECT_EQ(extent->xxh3, Xxh3(AsBytes("some data")));
    EXPECT_EQ(test::ReadFile(store_->disks().front()->PathOf(id_)).substr(0, 9), "some data");
    Open();
    EXPECT_EQ(store_->scan_report().extent_count, 1U);
    EXPECT_EQ(store_->scan_report().size_bytes, 9U);
    EXPECT_TRUE(store_->scan_report().refused.empty());
  }
}

TEST_F(ExtentStoreTest, WhatIsNotSealedLeavesNothing) {
  {
    auto writer = test::Create(*store_, id_, 100).value();
    ASSERT_TRUE(writer.Append(AsBytes("half")));
    EXPECT_EQ(writer.Append(std::vector<std::byte>(97)).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(writer.Seal(0).error().code, ErrorCode::kInvalidArgument);  // Bytes are missing.
  }
  {
    auto writer = test::Create(*store_, id_, 4).value();
    ASSERT_TRUE(writer.Append(AsBytes("data")));
    EXPECT_EQ(writer.Seal(1).error().code, ErrorCode::kCorruption);
  }
  EXPECT_FALSE(store_->Find(id_));
  EXPECT_EQ(FileCount(), 0U);
}

TEST_F(ExtentStoreTest, OfTwoWritersOfOneExtentTheSecondAgreesOrConflicts) {
  auto first = test::Create(*store_, id_, 4).value();
  auto same = test::Create(*store_, id_, 4).value();
  auto other = test::Create(*store_, id_, 4).value();
  ASSERT_TRUE(first.Append(AsBytes("data")));
  ASSERT_TRUE(same.Append(AsBytes("data")));
  ASSERT_TRUE(other.Append(AsBytes("DATA")));

  EXPECT_TRUE(first.Seal(Xxh3(AsBytes("data"))));
  EXPECT_TRUE(same.Seal(Xxh3(AsBytes("data"))));
  const auto refused = other.Seal(Xxh3(AsBytes("DATA")));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(test::ReadFile(store_->disks().front()->PathOf(id_)).substr(0, 4), "data");
}

// Its writer's thread may not have come any further.
TEST_F(ExtentStoreTest, WhatCanBeFoundCanBeRemovedThoughItsWriterIsThere) {
  auto writer = test::Create(*store_, id_, 4).value();
  ASSERT_TRUE(writer.Append(AsBytes("data")));
  ASSERT_TRUE(writer.Seal(Xxh3(AsBytes("data"))));
  EXPECT_EQ(store_->disks().front()->totals().declared_bytes, 0U);

  const ExtentPtr extent = store_->MarkDeleted(id_);
  ASSERT_NE(extent, nullptr);
  EXPECT_TRUE(store_->Unlink(*extent).value());
  store_->Release({&id_, 1});

  EXPECT_EQ(FileCount(), 0U);
  Put(id_, "anew");
}

TEST_F(ExtentStoreTest, ASealBelievesAFileInItsWayOnlyIfItsTrailerSaysTheSame) {
  const auto seal = [&](std::string_view in_the_way) {
    auto writer = test::Create(*store_, id_, 4).value();
    EXPECT_TRUE(writer.Append(AsBytes("data")));
    test::WriteFile(store_->disks().front()->PathOf(id_), std::string(in_the_way));
    const auto sealed = writer.Seal(Xxh3(AsBytes("data")));
    const std::string kept = test::ReadFile(store_->disks().front()->PathOf(id_));
    EXPECT_EQ(kept, in_the_way);
    fs::remove(store_->disks().front()->PathOf(id_));
    return sealed ? ErrorCode::kOk : sealed.error().code;
  };
  const auto sealed_elsewhere = [&](std::string_view data) {
    const auto other = ExtentStore::Open(folder_ / "other").value();
    auto writer = test::Create(*other, id_, data.size()).value();
    EXPECT_TRUE(writer.Append(AsBytes(data)) && writer.Seal(Xxh3(AsBytes(data))));
    const std::string bytes = test::ReadFile(other->disks().front()->PathOf(id_));
    fs::remove_all(folder_ / "other");
    return bytes;
  };

  EXPECT_EQ(seal("garbage"), ErrorCode::kConflict);
  EXPECT_EQ(seal(sealed_elsewhere("DATA")), ErrorCode::kConflict);
  EXPECT_FALSE(store_->Find(id_));
  EXPECT_EQ(seal(sealed_elsewhere("data")), ErrorCode::kOk);
}

TEST_F(ExtentStoreTest, DamagedAndForeignFilesAreReportedAndKept) {
  for (std::uint32_t i = 0; i < 4; ++i) Put(MakeExtentId(5, 0, i), "some data");
  const auto path = [&](std::uint32_t i) {
    return store_->disks().front()->PathOf(MakeExtentId(5, 0, i));
  };
  fs::resize_file(path(0), 40);
  std::string flipped = test::ReadFile(path(1));
  flipped[30] = static_cast<char>(flipped[30] ^ 1);
  test::WriteFile(path(1), flipped);
  const fs::path moved = folder_ / "extents" / ExtentPath(MakeExtentId(9, 9, 9));
  fs::create_directories(moved.parent_path());
  fs::rename(path(2), moved);
  test::WriteFile(path(3).parent_path() / "README", "hello");
  const std::size_t files = FileCount();

  Open();

  EXPECT_EQ(store_->scan_report().extent_count, 1U);
  EXPECT_EQ(store_->scan_report().refused.size(), 4U);
  EXPECT_TRUE(store_->Find(MakeExtentId(5, 0, 3)));
  EXPECT_FALSE(store_->Find(MakeExtentId(9, 9, 9)));
  EXPECT_EQ(FileCount(), files);
}

TEST_F(ExtentStoreTest, WhatManifestsDescribeIsBelievedIfAFileOfItsNameIsThere) {
  for (std::uint32_t i = 0; i < 3; ++i) Put(MakeExtentId(5, 0, i), "some data");
  const auto path = [&](std::uint32_t i) {
    return store_->disks().front()->PathOf(MakeExtentId(5, 0, i));
  };
  std::vector<ManifestExtent> known;
  for (std::uint32_t i = 0; i < 4; ++i) known.push_back({MakeExtentId(5, 0, i), 7, i});
  fs::resize_file(path(0), 40);
  fs::remove(path(1));
  fs::create_symlink(path(2), path(1));

  store_ = ExtentStore::Open(folder_ / "extents", std::span(known).first(2)).value();

  EXPECT_EQ(store_->Find(known[0].id)->size_bytes, 7U);
  EXPECT_FALSE(store_->Find(known[1].id));
  EXPECT_EQ(store_->scan_report().refused.size(), 1U);
  EXPECT_EQ(store_->Find(known[2].id)->size_bytes, 9U);  // Of its trailer.
  EXPECT_FALSE(store_->Find(known[3].id));
}

TEST_F(ExtentStoreTest, NoLinkLeadsOutOfTheFolderAndNothingButFilesIsOpened) {
  Put(id_, "some data");
  EXPECT_TRUE(store_->disks().front()->OpenFile(id_));
  EXPECT_EQ(store_->disks().front()->OpenFile(MakeExtentId(1, 2, 3)).error().code,
            ErrorCode::kNotFound);
  const fs::path path = store_->disks().front()->PathOf(id_);
  fs::rename(path, folder_ / "outside");

  fs::create_symlink(folder_ / "outside", path);
  EXPECT_FALSE(store_->disks().front()->OpenFile(id_));
  Open();  // Nor does a scan follow it.
  EXPECT_FALSE(store_->Find(id_));
  EXPECT_EQ(store_->scan_report().refused.size(), 1U);
  fs::remove(path);

  const fs::path slot = path.parent_path();
  fs::create_directory(folder_ / "elsewhere");
  fs::copy(folder_ / "outside", folder_ / "elsewhere" / path.filename());
  fs::remove(slot);
  fs::create_directory_symlink(folder_ / "elsewhere", slot);
  EXPECT_FALSE(store_->disks().front()->OpenFile(id_));
  fs::remove(slot);

  fs::create_directories(path);
  EXPECT_FALSE(store_->disks().front()->OpenFile(id_));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(store_->disks().front()->OpenFile(id_));
}

TEST_F(ExtentStoreTest, WhatAScanFindsIsDurableBeforeItIsBelieved) {
  Put(id_, "data");
  const test::SyncedFiles synced;
  Open();  // As after a kill before the folders were synced.
  EXPECT_TRUE(store_->Find(id_));
  EXPECT_TRUE(synced.Contains(store_->disks().front()->PathOf(id_).parent_path()));
  EXPECT_TRUE(synced.Contains(store_->disks().front()->folder()));
  EXPECT_TRUE(synced.Contains(store_->disks().front()->folder().parent_path()));
}

TEST_F(ExtentStoreTest, AFolderThatCannotBeSyncedHoldsNothingThatIsSealed) {
  Put(id_, "data");
  const fs::path slot = store_->disks().front()->PathOf(id_).parent_path();
  {
    const test::SyncedFiles failing(slot);
    Open();
    EXPECT_FALSE(store_->Find(id_));
    EXPECT_EQ(store_->scan_report().refused.size(), 1U);
  }
  fs::remove_all(slot);
  Open();
  const test::SyncedFiles failing(slot);
  auto writer = test::Create(*store_, id_, 4).value();
  ASSERT_TRUE(writer.Append(AsBytes("data")));
  EXPECT_FALSE(writer.Seal(Xxh3(AsBytes("data"))));
  EXPECT_FALSE(store_->Find(id_));
  EXPECT_EQ(store_->disks().front()->writes().report().state, WriteHealth::State::kFailed);
}

TEST_F(ExtentStoreTest, AnotherWritersFolderIsDurableBeforeASeal) {
  fs::create_directory(store_->disks().front()->PathOf(id_).parent_path());  // And not synced.
  const test::SyncedFiles synced;
  Put(id_, "data");
  EXPECT_TRUE(synced.Contains(store_->disks().front()->PathOf(id_).parent_path()));
  EXPECT_TRUE(synced.Contains(store_->disks().front()->folder()));
}

TEST_F(ExtentStoreTest, AnotherWritersFileIsDurableBeforeASeal) {
  const auto other = ExtentStore::Open(folder_ / "extents").value();
  auto second = test::Create(*other, id_, 4).value();
  ASSERT_TRUE(second.Append(AsBytes("data")));
  Put(id_, "data");
  const test::SyncedFiles synced;
  ASSERT_TRUE(second.Seal(Xxh3(AsBytes("data"))));
  EXPECT_TRUE(synced.Contains(store_->disks().front()->PathOf(id_).parent_path()));
}

TEST_F(ExtentStoreTest, AnExtentThatIsMarkedDeletedIsNotFoundAndItsFileStaysUntilUnlinked) {
  Put(id_, "some data");

  const ExtentPtr extent = store_->MarkDeleted(id_);

  ASSERT_TRUE(extent);
  EXPECT_TRUE(extent->is_deleted);
  EXPECT_FALSE(store_->Find(id_));
  EXPECT_FALSE(store_->MarkDeleted(id_));
  EXPECT_EQ(FileCount(), 1U);
  EXPECT_TRUE(store_->Unlink(*extent));
  EXPECT_EQ(FileCount(), 0U);
}

TEST_F(ExtentStoreTest, ADeletionThatIsTakenBackLeavesAllAsItWas) {
  Put(id_, "some data");
  EXPECT_TRUE(store_->Mark(*store_->Find(id_), true));
  const auto totals = [&] {
    const Disk::Totals& now = store_->disks().front()->totals();
    return std::tuple(now.extent_count.load(), now.size_bytes.load(), now.bad_count.load());
  };
  const auto before = totals();

  const ExtentPtr deleted = store_->MarkDeleted(id_);
  store_->TakeBack(*deleted);

  const ExtentPtr found = store_->Find(id_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size_bytes, 9U);
  EXPECT_EQ(found->xxh3, Xxh3(AsBytes("some data")));
  EXPECT_TRUE(found->is_bad);
  EXPECT_FALSE(found->is_deleted);
  EXPECT_EQ(totals(), before);
  EXPECT_TRUE(store_->InMotion().empty());
}

TEST_F(ExtentStoreTest, WhatIsDeletedOnceMoreStaysDeleted) {
  Put(id_, "some data");
  const ExtentPtr deleted = store_->MarkDeleted(id_);
  EXPECT_FALSE(store_->MarkDeleted(id_));

  store_->TakeBack(*deleted);

  EXPECT_FALSE(store_->Find(id_));
  EXPECT_FALSE(test::Create(*store_, id_, 9));
}

TEST_F(ExtentStoreTest, EachChangeOfWhatIsHereIsCounted) {
  std::uint64_t before = store_->change_count();
  const auto has_changed = [&] {
    return std::exchange(before, store_->change_count()) != store_->change_count();
  };
  Put(id_, "data");
  EXPECT_TRUE(has_changed());
  EXPECT_TRUE(store_->Mark(*store_->Find(id_), true));
  EXPECT_TRUE(has_changed());
  EXPECT_FALSE(store_->Mark(*store_->Find(id_), true));
  EXPECT_FALSE(has_changed());
  EXPECT_TRUE(store_->Mark(*store_->Find(id_), false));
  EXPECT_TRUE(has_changed());
  EXPECT_TRUE(store_->MarkDeleted(id_));
  EXPECT_TRUE(has_changed());
}

TEST(ExtentStoreOnAFullDiskTest, RefusesAtTheStartAndLeavesNothing) {
  const TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "tmpfs cannot be mounted here";
  {
    auto store = ExtentStore::Open(folder / "extents").value();
    const auto writer = test::Create(*store, MakeExtentId(1, 0, 0), 4 << 20);
    ASSERT_FALSE(writer);
    EXPECT_EQ(writer.error().code, ErrorCode::kIo);
    EXPECT_EQ(writer.error().system_errno, ENOSPC) << writer.error().message;
    // What was declared and not sent takes no room.
    const auto declared = test::Create(*store, MakeExtentId(1, 0, 0), 600 << 10);
    EXPECT_TRUE(declared);
    EXPECT_TRUE(test::Create(*store, MakeExtentId(1, 0, 1), 600 << 10));
  }
  ::umount(folder.path().c_str());
}

}  // namespace
}  // namespace ffrecord::server
