// Goal: publishing is one step that one writer wins, and nothing is unlinked without a record that
// says so.
// Method: a catalog over a memory MetaStore and a real folder, closed and opened again like after
// a kill; metadata taken away or damaged; time given by hand.

#include "server/service/catalog/catalog.h"

#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "bytes.h"
#include "memory_store.h"
#include "synced_files.h"
#include "temp_folder.h"

// What each unlink of this program does first.
static std::function<void()> before_unlink;  // NOLINT
extern "C" int unlink(const char* path) noexcept {
  if (before_unlink) before_unlink();
  return static_cast<int>(::syscall(SYS_unlink, path));
}

namespace ffrecord::server {
namespace {

using test::AsBytes;
using test::TempFolder;
using namespace std::chrono_literals;

// A MetaStore whose next commits fail as a disk that is full does, or that is slow to answer.
class FailingStore final : public MetaStore {
 public:
  explicit FailingStore(MetaStore& store) : store_(store) {}
  Result<std::optional<KeyValue>> Get(std::string_view key) override { return store_.Get(key); }
  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    return store_.List(prefix, after, limit);
  }
  Result<Outcome> TryCommit(const Commit& commit) override {
    if (fails || (is_full && is_full())) return Error{ErrorCode::kIo, "no space", ENOSPC};
    auto outcome = store_.TryCommit(commit);
    if (loses_reply) return Error{ErrorCode::kIo, "no answer", EIO};
    return outcome;
  }
  bool fails = false;
  std::function<bool()> is_full;
  bool loses_reply = false;

 private:
  MetaStore& store_;
};

class CatalogTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() { OpenOn({"extents"}, 0); }

  void OpenOn(const std::vector<std::string>& disk_names, std::size_t missing_count) {
    catalog_.reset();
    auto published = ReadPublishedNames(store_).value();
    ExtentStore::Disks disks;
    disks.missing_count = missing_count;
    for (const std::string& name : disk_names)
      disks.present.push_back(Disk::Open(folder_ / name).value());
    extents_ = ExtentStore::Open(std::move(disks), published.Extents()).value();
    reserve_.emplace(folder_ / "reserve", 64 << 10);
    auto catalog =
        Catalog::Open(store_, *extents_, {60s, quotas_, &*reserve_}, std::move(published));
    ASSERT_TRUE(catalog) << catalog.error().message;
    catalog_ = std::move(catalog).value();
  }

  // An extent of upload `upload`, sealed; what a manifest says of it.
  ManifestExtent Put(std::uint64_t upload, std::uint32_t number, std::string_view data) {
    const ManifestExtent extent{MakeExtentId(upload, number, 0), data.size(), Xxh3(AsBytes(data))};
    auto writer = catalog_->BeginPut({extent.id, extent.size_bytes});
    EXPECT_TRUE(writer) << writer.error().message;
    EXPECT_TRUE(writer.value());
    EXPECT_TRUE(writer.value()->Append(AsBytes(data)));
    const auto sealed = catalog_->Seal(*writer.value(), {extent.id, extent.xxh3});
    EXPECT_TRUE(sealed) << sealed.error().message;
    return extent;
  }

  static std::vector<std::byte> ManifestOf(const std::vector<ManifestExtent>& extents) {
    DatasetManifest manifest;
    for (const auto& extent : extents)
      manifest.files.push_back(
          {"file-" + std::to_string(manifest.files.size()), extent.size_bytes, {extent}});
    return EncodeDatasetManifest(manifest).value();
  }

  Result<net::RevisionReply> Publish(const std::string& name,
                                     const std::vector<ManifestExtent>& extents,
                                     net::Publish::Mode mode = net::Publish::Mode::kCreate,
                                     std::uint64_t expected = 0, std::uint64_t attempt = 0) {
    return catalog_->Publish({mode, attempt == 0 ? next_attempt_++ : attempt, expected, name},
                             ManifestOf(extents));
  }

  std::uint64_t Collect(std::chrono::seconds later = 0s) {
    const auto collected = catalog_->Collect(Catalog::Clock::now() + later);
    EXPECT_TRUE(collected) << collected.error().message;
    return collected.value();
  }

  static constexpr auto kCreate = net::Publish::Mode::kCreate;
  static constexpr auto kReplace = net::Publish::Mode::kReplace;
  static constexpr auto kSwap = net::Publish::Mode::kSwap;

  std::map<std::string, std::uint64_t> quotas_;
  TempFolder folder_;
  std::unique_ptr<MetaStore> memory_ = test::MakeMemoryStore();
  FailingStore store_{*memory_};
  std::unique_ptr<ExtentStore> extents_;
  std::optional<DiskReserve> reserve_;
  std::unique_ptr<Catalog> catalog_;
  std::uint64_t next_attempt_ = 100;
};

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
  auto writer = catalog_->BeginPut({extent.id, 4}).value();
  ASSERT_TRUE(writer->Append(AsBytes("data")));
  const std::vector<std::function<void()>> signs_of_life{
      [&] {
        EXPECT_TRUE(catalog_->BeginPut({MakeExtentId(1, 1, 0), 4}));
      },
      [&] { catalog_->NoteHeard(extent.id); },
      [&] {
        EXPECT_TRUE(catalog_->Seal(*writer, {extent.id, extent.xxh3}));
      }};

  for (const auto& live : signs_of_life) {
    std::this_thread::sleep_for(5ms);
    const auto before = Catalog::Clock::now();
    live();
    EXPECT_TRUE(catalog_->Collect(before + 60s - 1ms));  // Too late for what was heard earlier.
  }

  EXPECT_TRUE(Publish("name", {extent}));
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

TEST_F(CatalogTest, ExtentsThatNoRecordExplainsAreReportedAndKept) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  memory_ = test::MakeMemoryStore();  // All metadata is lost.
  FailingStore empty(*memory_);
  catalog_.reset();
  extents_ = ExtentStore::Open(folder_ / "extents").value();
  catalog_ = Catalog::Open(empty, *extents_, {60s}, {}).value();

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
  EXPECT_EQ(catalog_->BeginPut({kept.id, kept.size_bytes}).error().code, ErrorCode::kConflict);
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
  EXPECT_EQ(memory_->List("deletes/", "", 10).value().entries.size(), 4U);

  OpenOn({"extents", "other"}, 0);
  EXPECT_EQ(catalog_->report().deleted_count, 2U);
  EXPECT_EQ(Collect(), 2U);
  EXPECT_TRUE(memory_->List("deletes/", "", 10).value().entries.empty());
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

TEST_F(CatalogTest, WhatIsNotPublishedCountsAgainstAQuotaFromItsBeginning) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto code = [&](std::uint32_t number, std::uint64_t size, std::string_view owner) {
    const auto begun = catalog_->BeginPut({MakeExtentId(1, number, 0), size}, owner);
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

TEST_F(CatalogTest, AnExtentCountsWithItsLargestSizeWhoeverBeginsItAgain) {
  quotas_ = {{"a/", 10}};
  Open();
  const auto begin = [&](std::uint32_t number, std::uint64_t size, std::string_view owner = "a/") {
    return catalog_->BeginPut({MakeExtentId(1, number, 0), size}, owner);
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
    const auto begun = catalog_->BeginPut({MakeExtentId(upload, 0, 0), 8}, "a/");
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
  EXPECT_TRUE(refused(catalog_->BeginPut({MakeExtentId(9, 0, 0), 4})));
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

TEST_F(CatalogTest, AnExtentThatIsSealedAlreadyIsNotSentAgain) {
  const auto extent = Put(1, 0, "data");
  EXPECT_FALSE(catalog_->BeginPut({extent.id, 4}).value());
  EXPECT_EQ(catalog_->BeginPut({extent.id, 5}).error().code, ErrorCode::kConflict);
}

TEST_F(CatalogTest, ASealThatMeetsADeletedExtentIsNotAcknowledged) {
  const ManifestExtent extent{MakeExtentId(1, 0, 0), 4, Xxh3(AsBytes("data"))};
  const auto begin = [&] { return catalog_->BeginPut({extent.id, extent.size_bytes}).value(); };
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
  EXPECT_EQ(catalog_->BeginPut({extent.id, 4}).error().code, ErrorCode::kConflict);
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
    const auto begun = catalog_->BeginPut({unlinked.id, 4});
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().code, ErrorCode::kConflict);
    Open();
  }
  EXPECT_EQ(Collect(), 1U);
  EXPECT_TRUE(catalog_->BeginPut({unlinked.id, 4}));
}

TEST_F(CatalogTest, WhatIsSealedAfterItsUploadWasGivenUpIsCollected) {
  auto writer = catalog_->BeginPut({MakeExtentId(1, 0, 0), 4}).value();
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

  const auto put = catalog_->BeginPut({MakeExtentId(1, 0, 0), 4});

  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().message.find("disk is full"), std::string::npos) << put.error().message;
  EXPECT_NE(put.error().message.find("Is a directory"), std::string::npos) << put.error().message;
}

TEST_F(CatalogTest, WhatIsSealedTooLateIsCollectedThoughTheDiskIsFull) {
  auto writer = catalog_->BeginPut({MakeExtentId(1, 0, 0), 4}).value();
  ASSERT_TRUE(writer->Append(AsBytes("data")));
  EXPECT_EQ(Collect(61s), 0U);
  store_.fails = true;  // Not even its tombstone can be written.

  const auto sealed = catalog_->Seal(*writer, {MakeExtentId(1, 0, 0), Xxh3(AsBytes("data"))});

  EXPECT_EQ(sealed.error().code, ErrorCode::kConflict);
  writer.reset();
  EXPECT_FALSE(extents_->Find(MakeExtentId(1, 0, 0)));
  EXPECT_FALSE(reserve_->is_whole());
  store_.fails = false;
  EXPECT_EQ(Collect(), 1U);
  EXPECT_FALSE(std::filesystem::exists(extents_->disks().front()->PathOf(MakeExtentId(1, 0, 0))));
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

  EXPECT_FALSE(catalog_->Collect(Catalog::Clock::now()));  // The second one has nothing to do.

  EXPECT_EQ(catalog_->BeginPut({extent.id, 4}).error().code, ErrorCode::kConflict);
  std::filesystem::remove(stuck);
  EXPECT_EQ(Collect(), 1U);
  (void)Put(1, 0, "data");
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

TEST_F(CatalogTest, WhatIsPublishedAndLostIsNotFilledWithOtherBytes) {
  const auto extent = Put(1, 0, "data");
  ASSERT_TRUE(Publish("name", {extent}));
  std::filesystem::remove(extents_->disks().front()->PathOf(extent.id));
  Open();
  ASSERT_EQ(catalog_->report().missing.size(), 1U);

  const auto begun = catalog_->BeginPut({extent.id, extent.size_bytes});

  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ErrorCode::kConflict);
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
        Result<void>(catalog_->BeginPut({MakeExtentId(9, 0, 0), 4}).error())}) {
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

  EXPECT_FALSE(catalog_->Collect(Catalog::Clock::now()));

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

TEST_F(CatalogTest, TheReserveIsTakenBackWhereAsMuchIsLeftToOthers) {
  constexpr std::uint64_t kSize = 64 << 10;
  EXPECT_TRUE(reserve_->Release());
  EXPECT_FALSE(reserve_->Release());
  EXPECT_EQ(std::filesystem::file_size(folder_ / "reserve"), 0U);

  reserve_->Restore(2 * kSize - 1);
  EXPECT_FALSE(reserve_->is_whole());
  reserve_->Restore(2 * kSize);

  EXPECT_TRUE(reserve_->is_whole());
  EXPECT_EQ(std::filesystem::file_size(folder_ / "reserve"), kSize);
}

}  // namespace
}  // namespace ffrecord::server
