// Goal: publishing is one step that one writer wins, and what is published is what is there.
// Method: a catalog over a memory MetaStore and a real folder, closed and opened again like after
// a kill; metadata taken away or damaged, disks that are missing or fail.

#include "catalog_fixture.h"

namespace ffrecord::server {
namespace {

using test::AsBytes;
using namespace std::chrono_literals;

TEST_F(CatalogTest, WhatIsPublishedIsResolvedAlsoAfterAStart) {
  const auto extent = Put(1, 0, "data");
  const auto revision = Publish("name", {extent}).value().revision;
  for (int round = 0; round < 2; ++round) {
    const auto resolved = catalog_->Resolve("name");
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(resolved.value().manifest, ManifestOf({extent}));
    EXPECT_EQ(resolved.value().revision, revision);
    Open();
    EXPECT_EQ(catalog_->report().name_count, 1U);
    EXPECT_TRUE(catalog_->report().unexplained.empty());
  }
}

TEST_F(CatalogTest, ModesDecideWhoMayPublish) {
  const auto a = Put(1, 0, "a");
  const auto first = Publish("name", {a});
  ASSERT_TRUE(first) << first.error().message;
  const auto code = [](const auto& result) {
    return result ? ErrorCode::kOk : result.error().code;
  };
  EXPECT_EQ(code(Publish("name", {a})), ErrorCode::kConflict);
  EXPECT_EQ(code(Publish("other", {a}, kSwap, 1)), ErrorCode::kConflict);
  EXPECT_EQ(code(Publish("name", {a}, kSwap, first.value().revision + 1)), ErrorCode::kConflict);
  const auto swapped = Publish("name", {a}, kSwap, first.value().revision);
  ASSERT_EQ(code(swapped), ErrorCode::kOk);
  EXPECT_EQ(code(Publish("name", {a}, kSwap, first.value().revision)), ErrorCode::kConflict);
  EXPECT_EQ(code(Publish("name", {a}, kReplace)), ErrorCode::kOk);
}

// Also by a client that may not look for them. Readers would get the name instead of a version.
TEST_F(CatalogTest, ANameThatHasVersionsIsNotPublishedItself) {
  const auto a = Put(1, 0, "a");
  ASSERT_TRUE(Publish("set/.versions/1", {a}));
  ASSERT_TRUE(Publish("set/.catalogue/step-00000000000000000000", {a}));
  for (const auto mode : {kCreate, kReplace}) {
    const auto refused = Publish("set", {a}, mode);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_NE(refused.error().message.find("has versions"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_TRUE(Publish("set2", {a}));
  EXPECT_TRUE(Publish("set/.versions/2", {a}));
}

TEST_F(CatalogTest, ARepeatedAttemptHasOneEffect) {
  const auto a = Put(1, 0, "a");
  const auto first = Publish("name", {a}, kCreate, 0, 7).value().revision;

  EXPECT_EQ(Publish("name", {a}, kCreate, 0, 7).value().revision, first);

  EXPECT_EQ(Publish("name", {a}, kCreate, 0, 8).error().code, ErrorCode::kConflict);
}

TEST_F(CatalogTest, ACommitWhoseReplyWasLostIsFoundByItsAttempt) {
  const auto a = Put(1, 0, "a");
  store_.loses_reply = true;
  EXPECT_FALSE(Publish("name", {a}, kCreate, 0, 7));
  store_.loses_reply = false;
  Open();
  EXPECT_TRUE(Publish("name", {a}, kCreate, 0, 7));
}

TEST_F(CatalogTest, AFullDiskLeavesTheOldManifest) {
  const auto a = Put(1, 0, "a");
  const auto b = Put(2, 0, "b");
  ASSERT_TRUE(Publish("name", {a}));
  store_.fails = true;
  const auto failed = Publish("name", {b}, kReplace);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().system_errno, ENOSPC);
  store_.fails = false;

  EXPECT_EQ(catalog_->Resolve("name").value().manifest, ManifestOf({a}));
  EXPECT_EQ(Collect(), 0U);
  EXPECT_TRUE(Publish("name", {b}, kReplace));
}

TEST_F(CatalogTest, AManifestMustFitTheExtentsThatAreHere) {
  auto extent = Put(1, 0, "data");
  const ManifestExtent missing{MakeExtentId(2, 0, 0), 4, 5};
  EXPECT_EQ(Publish("name", {missing}).error().code, ErrorCode::kConflict);
  extent.xxh3 ^= 1;
  EXPECT_EQ(Publish("name", {extent}).error().code, ErrorCode::kInvalidArgument);
  const auto garbage = catalog_->Publish({kCreate, 5, 0, "name"}, AsBytes("garbage"));
  EXPECT_EQ(garbage.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(catalog_->Resolve("name").error().code, ErrorCode::kNotFound);
}

TEST_F(CatalogTest, NothingIsPublishedWhoseUploadIsOffTheRecord) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(memory_->TryCommit({{}, {}, {NumberKey("uploads/", 1)}}));
  EXPECT_EQ(Publish("name", {extent}).error().code, ErrorCode::kConflict);
}

TEST_F(CatalogTest, ExtentsThatNoRecordExplainsAreReportedAndKept) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  memory_ = test::MakeMemoryStore();  // All metadata is lost.
  FailingStore empty(*memory_);
  catalog_.reset();
  extents_ = ExtentStore::Open(folder_ / "extents").value();
  home_->BeOneWith(*extents_->disks().front());
  catalog_ = Catalog::Open(empty, *extents_, *home_, {60s}, {}).value();

  EXPECT_EQ(catalog_->report().unexplained.size(), 1U);
  EXPECT_EQ(Collect(24h), 0U);
  EXPECT_TRUE(extents_->Find(extent.id));
  catalog_.reset();
}

TEST_F(CatalogTest, WhatIsOnAMissingDiskIsNeitherForgottenNorPublishedAgain) {
  const auto kept = Put(1, 0, "a");
  const auto removed = Put(2, 0, "b");
  const auto unpublished = Put(3, 0, "c");
  ASSERT_TRUE(Publish("kept", {kept}));
  ASSERT_TRUE(Publish("removed", {removed}));

  OpenOn({"other"}, 1);

  EXPECT_TRUE(catalog_->report().missing.empty());
  EXPECT_TRUE(catalog_->Resolve("kept"));
  EXPECT_EQ(Publish("again", {kept}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(BeginPut({kept.id, kept.size_bytes}).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(catalog_->Remove({0, "removed"}));
  const auto fresh = Put(4, 0, "d");
  EXPECT_EQ(Collect(1h), 1U);  // The fresh one, which nobody published.
  EXPECT_FALSE(extents_->Find(fresh.id));
  OpenOn({"other"}, 1);  // Once more: what waits for the disk goes on waiting.
  EXPECT_EQ(Collect(1h), 0U);

  OpenOn({"extents", "other"}, 0);

  EXPECT_TRUE(catalog_->report().unexplained.empty());
  EXPECT_TRUE(catalog_->report().missing.empty());
  EXPECT_EQ(catalog_->report().unpublished_count, 1U);
  EXPECT_EQ(catalog_->report().deleted_count, 1U);
  EXPECT_EQ(Collect(), 1U);
  EXPECT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(removed.id)));
  EXPECT_TRUE(extents_->Find(unpublished.id));
  EXPECT_EQ(Collect(1h), 1U);
  EXPECT_TRUE(extents_->Find(kept.id)->disk);
}

TEST_F(CatalogTest, WhileAManifestIsDamagedNothingIsUnlinked) {
  const auto a = Put(1, 0, "a");
  const auto b = Put(2, 0, "b");
  ASSERT_TRUE(Publish("damaged", {a}));
  ASSERT_TRUE(Publish("other", {b}));
  const auto page = memory_->List("manifests/", "", 10).value();
  ASSERT_TRUE(memory_->TryCommit({{}, {{page.entries[0].key, {}}}, {}}));
  Open();

  EXPECT_EQ(catalog_->report().damaged.size(), 1U);
  ASSERT_TRUE(catalog_->Remove({0, "other"}));
  EXPECT_EQ(Collect(24h), 0U);
  EXPECT_TRUE(std::filesystem::exists(extents_->disks().front()->PathOf(a.id)));
  EXPECT_TRUE(std::filesystem::exists(extents_->disks().front()->PathOf(b.id)));
}

TEST_F(CatalogTest, AMissingExtentIsReported) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  std::filesystem::remove(extents_->disks().front()->PathOf(extent.id));
  Open();
  EXPECT_EQ(catalog_->report().missing.size(), 1U);
}

TEST_F(CatalogTest, ADamagedExtentThatIsPublishedIsServedAndNoOtherIsBelieved) {
  const auto published = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {published}));
  const auto sealed = Put(2, 0, "DATA");
  for (const auto& extent : {published, sealed}) {
    const auto path = extents_->disks().front()->PathOf(extent.id);
    std::string bytes = test::ReadFile(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);  // Of the trailer.
    test::WriteFile(path, bytes);
  }

  Open();

  EXPECT_TRUE(catalog_->report().missing.empty());
  EXPECT_TRUE(extents_->Find(published.id));
  EXPECT_FALSE(extents_->Find(sealed.id));
  EXPECT_EQ(extents_->scan_report().refused.size(), 1U);
}

TEST_F(CatalogTest, ADiskThatFailedIsWrittenNoMoreAndStillRead) {
  const auto a = Put(1, 0, "a");
  ASSERT_TRUE(Publish("name", {a}));
  store_.loses_reply = true;  // EIO.
  EXPECT_FALSE(Publish("other", {a}));
  store_.loses_reply = false;

  const auto refused = [](const auto& result) {
    return !result && result.error().system_errno == EIO &&
           result.error().message.find("read-only") != std::string::npos;
  };
  EXPECT_TRUE(refused(Publish("third", {a})));
  EXPECT_TRUE(refused(catalog_->CheckRoom("third", 1)));
  EXPECT_TRUE(refused(BeginPut({MakeExtentId(9, 0, 0), 4})));
  EXPECT_TRUE(refused(catalog_->Remove({0, "name"})));
  EXPECT_EQ(catalog_->Resolve("name").value().manifest, ManifestOf({a}));
  EXPECT_TRUE(catalog_->List({100, "", ""}));
  EXPECT_TRUE(extents_->disks().front()->OpenFile(a.id));
  Open();
  EXPECT_TRUE(Publish("third", {a}));
}

TEST_F(CatalogTest, ABadExtentIsNotPublishedAgain) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(extents_->Mark(*extents_->Find(extent.id), true));
  const auto published = Publish("name", {extent});
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().code, ErrorCode::kCorruption);
  EXPECT_NE(published.error().message.find("upload it again"), std::string::npos);
}

TEST_F(CatalogTest, WhatIsPublishedAndLostIsNotFilledWithOtherBytes) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  std::filesystem::remove(extents_->disks().front()->PathOf(extent.id));
  Open();
  ASSERT_EQ(catalog_->report().missing.size(), 1U);

  const auto begun = BeginPut({extent.id, extent.size_bytes});

  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace ffrecord::server
