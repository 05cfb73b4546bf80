// Goal: every BlockingStore commits all or nothing, and tells which.
// Method: the same calls on each form; for the one on disk also closed, opened again, damaged, and
// held twice.

#include "server/metadata/blocking_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "bytes.h"
#include "memory_store.h"
#include "seed.h"
#include "synced_files.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::TempFolder;

std::vector<std::byte> Value(std::string_view text) {
  const auto bytes = test::AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

struct StoreUnderTest {
  std::string name;
  std::function<std::unique_ptr<BlockingStore>(const TempFolder&)> make;
};

class BlockingStoreConformance : public testing::TestWithParam<StoreUnderTest> {
 protected:
  BlockingStoreConformance() : store_(GetParam().make(folder_)) {}

  std::uint64_t Put(const std::string& key, std::string_view value) {
    const auto outcome = store_->TryCommit({{}, {{key, Value(value)}}, {}});
    EXPECT_TRUE(outcome) << outcome.error().message;
    EXPECT_TRUE(outcome.value().committed);
    return outcome.value().revision;
  }
  std::string Get(const std::string& key) {
    const auto entry = store_->Get(key).value();
    return entry ? test::AsString(entry->value) : "(none)";
  }
  std::vector<std::string> Keys(std::string_view prefix, std::string_view after = "",
                                std::uint32_t limit = 1000) {
    std::vector<std::string> keys;
    const auto page = store_->List(prefix, after, limit).value();
    for (const auto& entry : page.entries) keys.push_back(entry.key);
    return keys;
  }

  TempFolder folder_;
  std::unique_ptr<BlockingStore> store_;
};

TEST_P(BlockingStoreConformance, WhatWasPutIsThereWithItsRevision) {
  EXPECT_FALSE(store_->Get("key").value());

  const std::uint64_t first = Put("key", "one");
  const std::uint64_t second = Put("other", std::string_view("\0\xFF\0", 3));
  const std::uint64_t third = Put("key", "two");

  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_EQ(*store_->Get("key").value(), (MetaStore::KeyValue{"key", Value("two"), third}));
  EXPECT_EQ(*store_->Get("other").value(),
            (MetaStore::KeyValue{"other", Value(std::string_view("\0\xFF\0", 3)), second}));
  Put("empty", "");
  EXPECT_EQ(Get("empty"), "");
}

TEST_P(BlockingStoreConformance, AComparisonThatDoesNotHoldLosesAndChangesNothing) {
  const std::uint64_t revision = Put("key", "old");
  const MetaStore::Commit attempts[] = {
      {{{"key", 0}}, {{"key", Value("new")}, {"more", Value("x")}}, {"key2"}},
      {{{"key", revision + 1}}, {{"key", Value("new")}}, {}},
      {{{"missing", 1}}, {{"key", Value("new")}}, {}},
      {{{"key", revision}, {"missing", 7}}, {}, {"key"}},
  };
  for (const auto& attempt : attempts) {
    const auto outcome = store_->TryCommit(attempt);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_FALSE(outcome.value().committed);
    EXPECT_EQ(outcome.value().revision, revision);
    EXPECT_EQ(Get("key"), "old");
    EXPECT_EQ(Get("more"), "(none)");
  }
}

TEST_P(BlockingStoreConformance, ComparisonsThatHoldCommitEverythingAtOneRevision) {
  const std::uint64_t revision = Put("key", "old");
  Put("gone", "x");

  const auto outcome = store_->TryCommit({{{"key", revision}, {"fresh", 0}},
                                          {{"key", Value("new")}, {"fresh", Value("y")}},
                                          {"gone", "never was"}});

  ASSERT_TRUE(outcome.value().committed);
  EXPECT_EQ(store_->Get("key").value()->mod_revision, outcome.value().revision);
  EXPECT_EQ(store_->Get("fresh").value()->mod_revision, outcome.value().revision);
  EXPECT_EQ(Get("gone"), "(none)");
}

TEST_P(BlockingStoreConformance, ADeletedKeyIsAbsentForComparisons) {
  const std::uint64_t revision = Put("key", "x");
  ASSERT_TRUE(store_->TryCommit({{{"key", revision}}, {}, {"key"}}).value().committed);
  EXPECT_FALSE(store_->TryCommit({{{"key", revision}}, {{"a", {}}}, {}}).value().committed);
  EXPECT_TRUE(store_->TryCommit({{{"key", 0}}, {{"a", {}}}, {}}).value().committed);
}

TEST_P(BlockingStoreConformance, ListsPagesInByteOrder) {
  for (const char* key : {"a", "a/", "a/b", "a/b/c", "a/c", "a0", "b", "a/B"}) Put(key, key);

  EXPECT_EQ(Keys("a/"), (std::vector<std::string>{"a/", "a/B", "a/b", "a/b/c", "a/c"}));
  EXPECT_EQ(Keys("a/", "a/B"), (std::vector<std::string>{"a/b", "a/b/c", "a/c"}));
  EXPECT_EQ(Keys("a/b"), (std::vector<std::string>{"a/b", "a/b/c"}));
  EXPECT_EQ(Keys("a/", "A"), Keys("a/"));
  EXPECT_EQ(Keys("a/", "z"), std::vector<std::string>{});
  EXPECT_EQ(Keys("").size(), 8U);
  const auto page = store_->List("a/", "", 2).value();
  EXPECT_TRUE(page.more);
  EXPECT_EQ(page.entries.size(), 2U);
  EXPECT_FALSE(store_->List("a/", "", 5).value().more);
  EXPECT_EQ(test::AsString(page.entries[1].value), "a/B");
}

TEST_P(BlockingStoreConformance, AgreesWithAModelOnRandomCommits) {
  std::mt19937 random(test::Seed());
  std::map<std::string, std::pair<std::string, std::uint64_t>> model;
  const auto key = [&] { return "k/" + std::to_string(random() % 12); };
  for (int round = 0; round < 300; ++round) {
    MetaStore::Commit commit;
    bool should_commit = true;
    for (auto i = random() % 3; i > 0; --i) {
      const std::string compared = key();
      const auto found = model.find(compared);
      const std::uint64_t actual = found == model.end() ? 0 : found->second.second;
      const std::uint64_t claimed = random() % 4 == 0 ? random() % 50 : actual;
      commit.compares.push_back({compared, claimed});
      should_commit = should_commit && claimed == actual;
    }
    const std::string put = key();
    commit.puts.push_back({put, Value(std::to_string(round))});
    const std::string deleted = key();
    if (deleted != put) commit.deletes.push_back(deleted);

    const auto outcome = store_->TryCommit(commit).value();

    ASSERT_EQ(outcome.committed, should_commit);
    if (should_commit) {
      model.erase(deleted);
      model[put] = {std::to_string(round), outcome.revision};
    }
    const auto page = store_->List("k/", "", 100).value();
    ASSERT_EQ(page.entries.size(), model.size());
    for (const auto& entry : page.entries) {
      ASSERT_EQ(test::AsString(entry.value), model.at(entry.key).first);
      ASSERT_EQ(entry.mod_revision, model.at(entry.key).second);
    }
  }
}

TEST_P(BlockingStoreConformance, OfManyWritersThatSwapOneKeyEachTimeOneWins) {
  Put("counter", "0");
  std::atomic<int> wins{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int won = 0; won < 20;) {
        const auto entry = store_->Get("counter").value();
        const int next = std::stoi(test::AsString(entry->value)) + 1;
        const auto outcome = store_->TryCommit(
            {{{"counter", entry->mod_revision}}, {{"counter", Value(std::to_string(next))}}, {}});
        if (!outcome.value().committed) continue;
        ++won;
        ++wins;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wins, 80);
  EXPECT_EQ(Get("counter"), "80");
}

std::unique_ptr<BlockingStore> OpenSqlite(const TempFolder& folder) {
  auto store = OpenBlockingStore(folder / "metadata.sqlite");
  EXPECT_TRUE(store) << store.error().message;
  return std::move(store).value();
}

INSTANTIATE_TEST_SUITE_P(AllStores, BlockingStoreConformance,
                         testing::Values(StoreUnderTest{"memory",
                                                        [](const TempFolder&) {
                                                          return test::MakeMemoryStore();
                                                        }},
                                         StoreUnderTest{"sqlite", OpenSqlite}),
                         [](const auto& instance) { return instance.param.name; });

// --- What only a file can do ---------------------------------------------------------------------

TEST(SqliteStoreTest, KeepsEverythingWhenItIsOpenedAgain) {
  const TempFolder folder;
  std::uint64_t revision = 0;
  {
    const auto store = OpenSqlite(folder);
    revision = store->TryCommit({{}, {{"key", Value("value")}}, {}}).value().revision;
  }
  const auto store = OpenSqlite(folder);
  EXPECT_EQ(*store->Get("key").value(), (MetaStore::KeyValue{"key", Value("value"), revision}));
  EXPECT_GT(store->TryCommit({{}, {{"key", {}}}, {}}).value().revision, revision);
}

TEST(SqliteStoreTest, ACommitIsSyncedBeforeItIsReported) {
  const TempFolder folder;
  const auto store = OpenSqlite(folder);
  ASSERT_TRUE(store->TryCommit({{}, {{"key", Value("old")}}, {}}));
  {
    const test::SyncedFiles synced;
    ASSERT_TRUE(store->TryCommit({{}, {{"key", Value("new")}}, {}}));
    EXPECT_TRUE(synced.Contains(folder / "metadata.sqlite-wal"));
  }
  {
    const test::SyncedFiles failing(folder / "metadata.sqlite-wal");
    const auto lost = store->TryCommit({{}, {{"key", Value("lost")}}, {}});
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code, ErrorCode::kIo);
    EXPECT_EQ(lost.error().system_errno, EIO);
    EXPECT_EQ(test::AsString(store->Get("key").value()->value), "new");
  }
  EXPECT_EQ(test::AsString(store->Get("key").value()->value), "new");
}

TEST(SqliteStoreTest, WhatAKillLeftInTheLogIsDurableBeforeItIsBelieved) {
  const TempFolder before;
  const TempFolder after;
  const auto killed = OpenSqlite(before);
  ASSERT_TRUE(killed->TryCommit({{}, {{"key", Value("value")}}, {}}));
  for (const char* file : {"metadata.sqlite", "metadata.sqlite-wal"})
    std::filesystem::copy_file(before / file, after / file);

  const test::SyncedFiles synced;
  const auto store = OpenSqlite(after);

  EXPECT_TRUE(store->Get("key").value());
  EXPECT_TRUE(synced.Contains(after / "metadata.sqlite"));
  EXPECT_TRUE(synced.Contains(after / "metadata.sqlite-wal"));
  EXPECT_TRUE(synced.Contains((after / "metadata.sqlite").parent_path()));
}

TEST(SqliteStoreTest, IsHeldByOneAtATime) {
  const TempFolder folder;
  const auto store = OpenSqlite(folder);
  const auto second = OpenSqliteStore(folder / "metadata.sqlite");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict) << second.error().message;
}

TEST(SqliteStoreTest, RefusesWhatIsNotItsOwn) {
  const TempFolder folder;
  test::WriteFile(folder / "metadata.sqlite", std::string(8192, 'x'));
  const auto store = OpenSqliteStore(folder / "metadata.sqlite");
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, ErrorCode::kCorruption) << store.error().message;
}

TEST(SqliteStoreTest, ADamagedFileIsRefusedOrGivesWhatWasPut) {
  const TempFolder folder;
  {
    const auto store = OpenSqlite(folder);
    for (int i = 0; i < 200; ++i)
      ASSERT_TRUE(store->TryCommit({{}, {{"key" + std::to_string(i), Value("v")}}, {}}));
  }
  const std::string content = test::ReadFile(folder / "metadata.sqlite");
  std::mt19937 random(test::Seed());
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = content;
    for (int i = 0; i < 64; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    test::WriteFile(folder / "metadata.sqlite", damaged);
    const auto store = OpenSqliteStore(folder / "metadata.sqlite");
    if (!store) ++refused;
  }
  EXPECT_GT(refused, 30);
}

}  // namespace
}  // namespace ffrecord::server
