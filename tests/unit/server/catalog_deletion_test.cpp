// Goal: nothing is unlinked without a record that says so, nothing that is named or in use is, and
// a full disk can be emptied. Method: a catalog over a memory MetaStore and a real folder, closed
// and opened again like after a kill; a disk that is full, slow, or refuses to unlink.

#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <future>

#include "catalog_fixture.h"
#include "libffrecord/base/clock.h"
#include "synced_files.h"

// What each unlink of this program does first.
static std::function<void()> before_unlink;  // NOLINT
extern "C" int unlink(const char* path) noexcept {
  if (before_unlink) before_unlink();
  return static_cast<int>(::syscall(SYS_unlink, path));
}

namespace ffrecord::server {
namespace {

using test::AsBytes;
using namespace std::chrono_literals;

TEST_F(CatalogTest, RemovedExtentsGoUnlessAnotherManifestNamesThem) {
  const auto shared = Put(1, 0, "shared");
  const auto own = Put(1, 1, "own");
  ASSERT_TRUE(Publish("one", {shared, own}));
  ASSERT_TRUE(Publish("two", {shared}));

  ASSERT_TRUE(catalog_->Remove({0, "one"}));

  EXPECT_EQ(Collect(), 1U);
  EXPECT_TRUE(extents_->Find(shared.id));
  EXPECT_FALSE(extents_->Find(own.id));
  EXPECT_EQ(catalog_->Remove({0, "one"}).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(catalog_->Remove({0, "two"}));
  EXPECT_EQ(Collect(), 1U);
}

TEST_F(CatalogTest, ATombstoneOnRecordNamesOnlyWhatNobodyHolds) {
  const auto shared = Put(1, 0, "shared");
  ASSERT_TRUE(Publish("one", {shared}));
  ASSERT_TRUE(Publish("two", {shared}));
  ASSERT_TRUE(catalog_->Remove({0, "one"}));
  ASSERT_TRUE(Publish("two", {shared}, kReplace));
  EXPECT_TRUE(memory_->List("deletes/", "", 10).value().entries.empty());
}

TEST_F(CatalogTest, WhatWasPublishedAnewIsNotRemovedInPlaceOfWhatWasSeen) {
  const auto seen = Publish("name", {Put(1, 0, "old")}).value().revision;
  const auto anew = Publish("name", {Put(2, 0, "new")}, kReplace).value().revision;

  const auto removed = catalog_->Remove({seen, "name"});

  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ErrorCode::kConflict);
  EXPECT_EQ(catalog_->Resolve("name").value().revision, anew);
  EXPECT_TRUE(catalog_->Remove({anew, "name"}));
}

TEST_F(CatalogTest, AReplacedManifestKeepsWhatTheNewOneNames) {
  const auto kept = Put(1, 0, "kept");
  const auto gone = Put(1, 1, "gone");
  ASSERT_TRUE(Publish("name", {kept, gone}));
  const auto fresh = Put(2, 0, "fresh");

  ASSERT_TRUE(Publish("name", {kept, fresh}, kReplace));

  EXPECT_EQ(Collect(), 1U);
  EXPECT_TRUE(extents_->Find(kept.id));
  EXPECT_TRUE(extents_->Find(fresh.id));
}

TEST_F(CatalogTest, AnExtentInUseIsUnlinkedWhenItsLastUserIsGone) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ExtentPtr user = extents_->Find(extent.id);
  ASSERT_TRUE(catalog_->Remove({0, "name"}));

  EXPECT_EQ(Collect(), 0U);
  EXPECT_TRUE(std::filesystem::exists(extents_->disks().front()->PathOf(extent.id)));
  user.reset();
  EXPECT_EQ(Collect(), 1U);
  EXPECT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(extent.id)));
}

TEST_F(CatalogTest, AKillBetweenRemovalAndUnlinkIsMadeGoodAtTheNextStart) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(catalog_->Remove({0, "name"}));

  Open();

  EXPECT_EQ(catalog_->report().deleted_count, 1U);
  EXPECT_FALSE(extents_->Find(extent.id));
  EXPECT_EQ(Collect(), 1U);
  Open();
  EXPECT_EQ(catalog_->report().deleted_count, 0U);
}

TEST_F(CatalogTest, WhatIsUnlinkedIsGoneForGoodBeforeItsRecordIs) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(catalog_->Remove({0, "name"}));
  const test::SyncedFiles synced;
  std::vector<bool> was_synced;  // At each commit.
  store_.is_full = [&] {
    was_synced.push_back(
        synced.Contains(extents_->disks().front()->PathOf(extent.id).parent_path()));
    return false;
  };

  EXPECT_EQ(Collect(), 1U);

  EXPECT_EQ(was_synced, std::vector<bool>{true});
}

TEST_F(CatalogTest, WhatAKilledDaemonHasUnlinkedIsGoneForGoodBeforeItsRecordIs) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(catalog_->Remove({0, "name"}));
  const auto path = extents_->disks().front()->PathOf(extent.id);
  ASSERT_TRUE(std::filesystem::remove(path));
  Open();
  const test::SyncedFiles synced;
  std::vector<bool> was_synced;  // At each commit.
  store_.is_full = [&] {
    was_synced.push_back(synced.Contains(path.parent_path()));
    return false;
  };

  EXPECT_EQ(Collect(), 0U);

  EXPECT_EQ(was_synced, std::vector<bool>{true});
  EXPECT_TRUE(memory_->List("deletes/", "", 10).value().entries.empty());
}

TEST_F(CatalogTest, ADiskThatHasFailedHoldsUpNoDeletionOnAnother) {
  OpenOn({"extents", "other"}, 0);
  std::vector<ManifestExtent> put;
  for (std::uint64_t i = 0; i < 4; ++i) {
    put.push_back(Put(i + 1, 0, "data"));
    ASSERT_TRUE(Publish("name" + std::to_string(i), {put.back()}));
  }
  Disk& failed = *extents_->disks().back();
  failed.writes().Note({ErrorCode::kIo, "failed", EIO});
  for (std::uint64_t i = 0; i < 4; ++i)
    ASSERT_TRUE(catalog_->Remove({0, "name" + std::to_string(i)}));

  EXPECT_EQ(Collect(), 2U);
  EXPECT_EQ(Collect(), 0U);
  EXPECT_EQ(memory_->List("deletes/", "", 10).value().entries.size(), 2U);

  OpenOn({"extents", "other"}, 0);
  EXPECT_EQ(catalog_->report().deleted_count, 2U);
  EXPECT_EQ(Collect(), 2U);
  EXPECT_TRUE(memory_->List("deletes/", "", 10).value().entries.empty());
}

TEST_F(CatalogTest, ASealThatMeetsADeletedExtentIsNotAcknowledged) {
  const ManifestExtent extent{MakeExtentId(1, 0, 0), 4, Xxh3(AsBytes("data"))};
  const auto begin = [&] { return BeginPut({extent.id, extent.size_bytes}).value(); };
  auto first = begin();
  auto second = begin();
  ASSERT_TRUE(first->Append(AsBytes("data")) && second->Append(AsBytes("data")));
  ASSERT_TRUE(catalog_->Seal(*first, {extent.id, extent.xxh3}));
  first.reset();
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(catalog_->Remove({0, "name"}));  // Its file is still there.

  const auto sealed = catalog_->Seal(*second, {extent.id, extent.xxh3});

  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code, ErrorCode::kConflict);
  EXPECT_NE(sealed.error().message.find("is being deleted"), std::string::npos);
  EXPECT_FALSE(Publish("again", {extent}));
  EXPECT_EQ(Collect(), 0U);  // Not before the writer is gone: it could seal between.
  second.reset();
  EXPECT_EQ(BeginPut({extent.id, 4}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(Collect(), 1U);
  (void)Put(1, 0, "data");  // Once no tombstone lists it any more.
  ASSERT_TRUE(Publish("again", {extent}));
  EXPECT_EQ(Collect(61s), 0U);
  Open();
  EXPECT_TRUE(extents_->Find(extent.id));
}

TEST_F(CatalogTest, AnIdIsNotUsedAnewWhileATombstoneOnRecordNamesIt) {
  const auto unlinked = Put(1, 0, "data");
  const auto in_use = Put(1, 1, "more");
  ASSERT_TRUE(Publish("name", {unlinked, in_use}));
  const ExtentPtr user = extents_->Find(in_use.id);
  ASSERT_TRUE(catalog_->Remove({0, "name"}));
  EXPECT_EQ(Collect(), 1U);
  ASSERT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(unlinked.id)));

  // The next start would take it for what was removed.
  for (int round = 0; round < 2; ++round) {
    const auto begun = BeginPut({unlinked.id, 4});
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().code, ErrorCode::kConflict);
    Open();
  }
  EXPECT_EQ(Collect(), 1U);
  EXPECT_TRUE(BeginPut({unlinked.id, 4}));
}

TEST_F(CatalogTest, AnIdIsFreeOnceAllTombstonesOfItAreDone) {
  const auto extent = Put(1, 0, "data");
  const auto key = [&](const char* name) {
    return MetaStore::Put{name, {extent.id.begin(), extent.id.end()}};
  };
  ASSERT_TRUE(memory_->TryCommit({{}, {key("deletes/0"), key("deletes/1")}, {}}));
  Open();
  const auto stuck = extents_->disks().front()->PathOf(extent.id);
  std::filesystem::remove(stuck);
  std::filesystem::create_directory(stuck);  // unlink: EISDIR.

  EXPECT_FALSE(CollectAt(Clock::now()));  // The second one has nothing to do.

  EXPECT_EQ(BeginPut({extent.id, 4}).error().code, ErrorCode::kConflict);
  std::filesystem::remove(stuck);
  EXPECT_EQ(Collect(), 1U);
  (void)Put(1, 0, "data");
}

TEST_F(CatalogTest, AFullDiskIsEmptiedFromAReserveThatOnlyDeletionsUse) {
  const auto a = Put(1, 0, "a");
  const auto b = Put(2, 0, "b");
  const auto forgotten = Put(3, 0, "c");
  ASSERT_TRUE(Publish("a", {a}));
  ASSERT_TRUE(Publish("b", {b}));
  const auto reserved = [&] { return std::filesystem::file_size(folder_ / "reserve"); };
  ASSERT_EQ(reserved(), 64U << 10);
  store_.is_full = [&] { return reserved() > 0; };
  EXPECT_EQ(Publish("again", {a}).error().system_errno, ENOSPC);
  EXPECT_GT(reserved(), 0U);

  const auto removed = catalog_->Remove({0, "a"});

  ASSERT_TRUE(removed) << removed.error().message;
  for (const auto& refused :
       {catalog_->CheckRoom("c", 1), Result<void>(Publish("again", {b}).error()),
        Result<void>(BeginPut({MakeExtentId(9, 0, 0), 4}).error())}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().system_errno, ENOSPC) << refused.error().message;
    EXPECT_NE(refused.error().message.find("kept for deletions"), std::string::npos);
  }
  EXPECT_EQ(extents_->disks().front()->writes().report().state, WriteHealth::State::kFull);
  store_.is_full = nullptr;
  EXPECT_EQ(Collect(61s), 2U);  // Of the removed name and of the silent upload.
  EXPECT_FALSE(extents_->Find(forgotten.id));
  EXPECT_EQ(reserved(), 64U << 10);
  EXPECT_TRUE(Publish("again", {b}));
}

TEST_F(CatalogTest, NobodyWaitsForADiskThatIsSlowToUnlink) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(Publish("other", {Put(2, 0, "more")}));
  ASSERT_TRUE(catalog_->Remove({0, "name"}));
  std::promise<void> is_unlinking;
  std::promise<void> may_go_on;
  before_unlink = [&] {
    is_unlinking.set_value();
    may_go_on.get_future().wait();
  };
  auto collected = std::async(std::launch::async, [&] { return Collect(); });
  is_unlinking.get_future().wait();

  auto served = std::async(std::launch::async, [&] {
    (void)Put(3, 0, "new");
    return catalog_->Resolve("other") && catalog_->Remove({0, "other"});
  });
  const bool was_served = served.wait_for(10s) == std::future_status::ready;
  may_go_on.set_value();

  EXPECT_TRUE(was_served);
  EXPECT_EQ(collected.get(), 1U);
  before_unlink = nullptr;
  EXPECT_EQ(Collect(), 1U);
}

TEST_F(CatalogTest, AnExtentThatCannotBeUnlinkedHoldsUpNoOther) {
  ASSERT_TRUE(Publish("name", {Put(1, 0, "a"), Put(1, 1, "b"), Put(1, 2, "c")}));
  const auto stuck = extents_->disks().front()->PathOf(MakeExtentId(1, 0, 0));
  std::filesystem::remove(stuck);
  std::filesystem::create_directory(stuck);  // unlink: EISDIR.
  ASSERT_TRUE(catalog_->Remove({0, "name"}));

  EXPECT_FALSE(CollectAt(Clock::now()));

  for (const std::uint32_t i : {1U, 2U})
    EXPECT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(MakeExtentId(1, i, 0))));
  std::filesystem::remove(stuck);
  EXPECT_EQ(Collect(), 1U);
}

TEST_F(CatalogTest, ATombstoneThatNamesWhatIsPublishedIsNotBelieved) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  ASSERT_TRUE(memory_->TryCommit({{}, {{"deletes/0", {extent.id.begin(), extent.id.end()}}}, {}}));

  Open();

  EXPECT_EQ(Collect(), 0U);
  EXPECT_TRUE(extents_->Find(extent.id));
  EXPECT_TRUE(std::filesystem::exists(extents_->disks().front()->PathOf(extent.id)));
}

}  // namespace
}  // namespace ffrecord::server
