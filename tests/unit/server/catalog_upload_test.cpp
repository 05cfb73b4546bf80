// Goal: an upload that falls silent is given up after its grace and not before, and stays within
// its quotas from its beginning. Method: a catalog over a memory MetaStore and a real folder,
// closed and opened again like after a kill; time given by hand.

#include <functional>
#include <thread>

#include "catalog_fixture.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::server {
namespace {

using test::AsBytes;
using namespace std::chrono_literals;

TEST_F(CatalogTest, ASilentUploadIsGivenUpAfterItsGraceAndNotBefore) {
  const auto extent = Put(1, 0, "data");
  EXPECT_EQ(Collect(59s), 0U);
  Open();  // A start does not shorten the grace.
  EXPECT_EQ(catalog_->report().unpublished_count, 1U);
  EXPECT_EQ(Collect(59s), 0U);
  EXPECT_TRUE(extents_->Find(extent.id));

  EXPECT_EQ(Collect(61s), 1U);

  EXPECT_EQ(Publish("name", {extent}).error().code, ErrorCode::kConflict);
  Open();
  EXPECT_EQ(catalog_->report().open_upload_count, 0U);
}

TEST_F(CatalogTest, WhateverIsHeardOfAnUploadBeginsItsGraceAnew) {
  const ManifestExtent extent{MakeExtentId(1, 0, 0), 4, Xxh3(AsBytes("data"))};
  auto writer = BeginPut({extent.id, 4}).value();
  ASSERT_TRUE(writer->Append(AsBytes("data")));
  const std::vector<std::function<void()>> signs_of_life{
      [&] {
        EXPECT_TRUE(BeginPut({MakeExtentId(1, 1, 0), 4}));
      },
      [&] { catalog_->NoteHeard(extent.id); },
      [&] {
        EXPECT_TRUE(catalog_->Seal(*writer, {extent.id, extent.xxh3}));
      }};

  for (const auto& live : signs_of_life) {
    std::this_thread::sleep_for(5ms);
    const auto before = Clock::now();
    live();
    EXPECT_TRUE(CollectAt(before + 60s - 1ms));  // Too late for what was heard earlier.
  }

  EXPECT_TRUE(Publish("name", {extent}));
}

// The names of a cluster in which the daemon was a node refer to it.
TEST_F(CatalogTest, NeitherARemovalNorAnUploadThatIsGivenUpTakesWhatOthersReferTo) {
  const auto removed = Put(1, 0, "removed");
  const auto silent = Put(2, 0, "silent");
  const auto own = Put(2, 1, "own");
  ASSERT_TRUE(Publish("name", {removed}));
  kept_ = {removed.id, silent.id};
  Open();

  ASSERT_TRUE(catalog_->Remove({0, "name"}));
  EXPECT_EQ(Collect(61s), 1U);

  Open();
  EXPECT_TRUE(extents_->Find(removed.id));
  EXPECT_TRUE(extents_->Find(silent.id));
  EXPECT_FALSE(extents_->Find(own.id));
  EXPECT_TRUE(catalog_->report().unexplained.empty());
}

TEST_F(CatalogTest, GivingUpAnUploadKeepsWhatWasPublishedOfIt) {
  const auto published = Put(1, 0, "published");
  const auto forgotten = Put(1, 1, "forgotten");
  ASSERT_TRUE(Publish("name", {published}));

  EXPECT_EQ(Collect(61s), 1U);

  EXPECT_TRUE(extents_->Find(published.id));
  EXPECT_FALSE(extents_->Find(forgotten.id));
  EXPECT_TRUE(catalog_->Resolve("name"));
}

TEST_F(CatalogTest, WhatIsNotPublishedCountsAgainstAQuotaFromItsBeginning) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto code = [&](std::uint32_t number, std::uint64_t size, std::string_view owner) {
    const auto begun = BeginPut({MakeExtentId(1, number, 0), size}, owner);
    return begun ? 0 : begun.error().system_errno;
  };
  EXPECT_EQ(code(0, 11, "a/"), EDQUOT);
  EXPECT_EQ(code(0, 8, "a/"), 0);
  EXPECT_EQ(code(0, 8, "a/"), 0);  // Once more, and not beside it.
  EXPECT_EQ(code(1, 3, "a/"), EDQUOT);
  EXPECT_EQ(code(1, 3, "a/b/"), EDQUOT);
  EXPECT_EQ(code(1, 2, "a/b/"), 0);
  EXPECT_EQ(code(2, 1'000, "b/"), 0);
  EXPECT_EQ(code(3, 1'000, ""), 0);  // Who may write anywhere is held to names only.

  Collect(70s);  // All were silent.
  EXPECT_EQ(code(4, 10, "a/"), 0);
  const auto published = Put(1, 4, "ten bytes!");
  ASSERT_TRUE(Publish("a/x", {published}));
  EXPECT_EQ(code(5, 10, "a/"), 0);
}

TEST_F(CatalogTest, WhatWasUploadedBeforeAStartCountsAgainstAQuotaAsWell) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto upload = [&](std::uint32_t number, std::string_view data, std::string_view owner) {
    const ExtentId id = MakeExtentId(number, 0, 0);
    auto writer = BeginPut({id, data.size()}, owner);
    if (!writer) return writer.error().system_errno;
    EXPECT_TRUE(writer.value()->Append(AsBytes(data)));
    EXPECT_TRUE(catalog_->Seal(*writer.value(), {id, Xxh3(AsBytes(data))}));
    return 0;
  };
  ASSERT_EQ(upload(1, "8 bytes!", "a/b/"), 0);
  ASSERT_EQ(upload(2, "of anybody", ""), 0);
  auto killed = BeginPut({MakeExtentId(3, 0, 0), 2}, "a/");  // Nothing is left of it.
  ASSERT_TRUE(killed);
  killed = Error{};

  Open();

  EXPECT_EQ(upload(4, "has 3", "a/"), EDQUOT);
  EXPECT_EQ(upload(4, "2!", "a/"), 0);
  Collect(70s);
  EXPECT_EQ(upload(5, "ten bytes!", "a/"), 0);
}

TEST_F(CatalogTest, AnExtentCountsWithItsLargestSizeWhoeverBeginsItAgain) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto begin = [&](std::uint32_t number, std::uint64_t size, std::string_view owner = "a/") {
    return BeginPut({MakeExtentId(1, number, 0), size}, owner);
  };
  EXPECT_TRUE(begin(9, 8, "b/"));
  EXPECT_TRUE(begin(9, 8));  // It stays b's.
  auto whole = begin(0, 10);
  ASSERT_TRUE(whole);

  // Neither a second writer nor one that is refused takes it off.
  EXPECT_TRUE(begin(0, 1));
  EXPECT_TRUE(begin(0, 1, "b/"));
  EXPECT_EQ(begin(1, 1).error().system_errno, EDQUOT);
  ASSERT_TRUE(whole.value()->Append(AsBytes("ten bytes!")));
  ASSERT_TRUE(catalog_->Seal(*whole.value(), {MakeExtentId(1, 0, 0), Xxh3(AsBytes("ten bytes!"))}));
  EXPECT_EQ(begin(0, 1).error().code, ErrorCode::kConflict);
  EXPECT_EQ(begin(1, 1).error().system_errno, EDQUOT);
}

TEST_F(CatalogTest, WhatWasNotBegunCountsAgainstNoQuota) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto begin = [&](std::uint64_t upload) {
    const auto begun = BeginPut({MakeExtentId(upload, 0, 0), 8}, "a/");
    return begun ? 0 : begun.error().system_errno;
  };

  store_.fails = true;
  EXPECT_EQ(begin(1), ENOSPC);
  store_.fails = false;

  EXPECT_EQ(begin(2), 0);
}

TEST_F(CatalogTest, NamesStayWithinTheQuotasOfTheirPrefixesAndAreToldFigures) {
  quotas_ = {{"", 1000}, {"a/", 10}};
  Open();
  const auto four = Put(1, 0, "four");
  const auto eight = Put(2, 0, "eight888");
  const auto code = [](const auto& result) { return result ? 0 : result.error().system_errno; };
  ASSERT_TRUE(Publish("a/1", {four}));
  ASSERT_TRUE(Publish("a/2", {four}));

  const auto checked = catalog_->CheckRoom("a/3", 4);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kIo);
  EXPECT_EQ(checked.error().system_errno, EDQUOT);
  for (const char* word : {"a/3 has 4 bytes", "other 8 bytes under 'a/'", "quota of 10"})
    EXPECT_NE(checked.error().message.find(word), std::string::npos) << checked.error().message;
  EXPECT_EQ(code(Publish("a/3", {four})), EDQUOT);
  EXPECT_EQ(code(Publish("a/1", {eight}, kReplace)), EDQUOT);
  EXPECT_EQ(code(catalog_->CheckRoom("b", 993)), EDQUOT);  // Eight are in use.
  EXPECT_TRUE(catalog_->CheckRoom("a/3", 2));
  EXPECT_TRUE(catalog_->CheckRoom("a/1", 6));  // In place of its four.
  EXPECT_TRUE(catalog_->CheckRoom("a", 900));

  for (int round = 0; round < 2; ++round) {
    const auto usages = catalog_->Usages();
    ASSERT_EQ(usages.size(), 2U);
    EXPECT_EQ(usages[1].prefix, "a/");
    EXPECT_EQ(usages[1].used_bytes, 8U);
    Open();  // It is known again after a start.
  }
  ASSERT_TRUE(catalog_->Remove({0, "a/2"}));
  EXPECT_EQ(catalog_->Usages()[1].used_bytes, 4U);
  EXPECT_TRUE(Publish("a/1", {eight}, kReplace));
  EXPECT_EQ(catalog_->Usages()[1].used_bytes, 8U);
}

TEST_F(CatalogTest, WhatNoDiskHasRoomForIsRefusedBeforeItIsSent) {
  const auto checked = catalog_->CheckRoom("name", std::uint64_t{1} << 60);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().system_errno, ENOSPC);
  EXPECT_TRUE(catalog_->CheckRoom("name", 1));
}

TEST_F(CatalogTest, AnExtentThatIsSealedAlreadyIsNotSentAgain) {
  const auto extent = Put(1, 0, "data");
  EXPECT_FALSE(BeginPut({extent.id, 4}).value());
  EXPECT_EQ(BeginPut({extent.id, 5}).error().code, ErrorCode::kConflict);
}

TEST_F(CatalogTest, WhatIsSealedAfterItsUploadWasGivenUpIsCollected) {
  auto writer = BeginPut({MakeExtentId(1, 0, 0), 4}).value();
  ASSERT_TRUE(writer->Append(AsBytes("data")));
  EXPECT_EQ(Collect(61s), 0U);

  const auto sealed = catalog_->Seal(*writer, {MakeExtentId(1, 0, 0), Xxh3(AsBytes("data"))});

  EXPECT_EQ(sealed.error().code, ErrorCode::kConflict);
  writer.reset();
  EXPECT_EQ(Collect(), 1U);
  Open();
  EXPECT_TRUE(catalog_->report().unexplained.empty());
}

TEST_F(CatalogTest, ASilentUploadIsGivenUpThoughTheDiskIsFull) {
  const auto forgotten = Put(1, 0, "data");
  store_.is_full = [&] { return std::filesystem::file_size(folder_ / "reserve") > 0; };

  EXPECT_EQ(Collect(61s), 1U);

  EXPECT_FALSE(extents_->Find(forgotten.id));
}

TEST_F(CatalogTest, AReserveThatNoRoomWouldHelpIsNotCalledAFullDisk) {
  std::filesystem::remove(folder_ / "reserve");
  std::filesystem::create_directory(folder_ / "reserve");
  Open();

  const auto put = BeginPut({MakeExtentId(1, 0, 0), 4});

  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().message.find("disk is full"), std::string::npos) << put.error().message;
  EXPECT_NE(put.error().message.find("Is a directory"), std::string::npos) << put.error().message;
}

TEST_F(CatalogTest, WhatIsSealedTooLateIsCollectedThoughTheDiskIsFull) {
  auto writer = BeginPut({MakeExtentId(1, 0, 0), 4}).value();
  ASSERT_TRUE(writer->Append(AsBytes("data")));
  EXPECT_EQ(Collect(61s), 0U);
  store_.fails = true;  // Not even its tombstone can be written.

  const auto sealed = catalog_->Seal(*writer, {MakeExtentId(1, 0, 0), Xxh3(AsBytes("data"))});

  EXPECT_EQ(sealed.error().code, ErrorCode::kConflict);
  writer.reset();
  EXPECT_FALSE(extents_->Find(MakeExtentId(1, 0, 0)));
  EXPECT_FALSE(home_->reserve().is_whole());
  store_.fails = false;
  EXPECT_EQ(Collect(), 1U);
  EXPECT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(MakeExtentId(1, 0, 0))));
}

TEST_F(CatalogTest, AnUploadThatIsGivenUpTwiceLeavesNothingUnexplained) {
  const auto first = Put(1, 0, "data");
  const ExtentPtr user = extents_->Find(first.id);
  EXPECT_EQ(Collect(61s), 0U);  // In use: its tombstone stays.
  (void)Put(1, 1, "more");
  EXPECT_EQ(Collect(61s), 1U);

  Open();

  EXPECT_EQ(catalog_->report().deleted_count, 1U);
  EXPECT_TRUE(catalog_->report().unexplained.empty());
  EXPECT_EQ(Collect(), 1U);
}

}  // namespace
}  // namespace ffrecord::server
