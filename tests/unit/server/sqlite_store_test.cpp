// Goal: the store in a file keeps what was committed and nothing of leases that ended with their
// process; operations keep their deadlines while the disk hangs.
// Method: the store is closed and opened again; syncs are held, or fail.

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "held_syncs.h"
#include "libffrecord/base/clock.h"
#include "server/metadata/blocking_store.h"
#include "temp_folder.h"
#include "tested_store.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using test::Await;
using test::TestedWatch;
using test::Value;
using Fate = MetaStore::Outcome::Fate;
using Kind = MetaStore::News::Kind;

class SqliteMetaStoreTest : public testing::Test {
 protected:
  Result<MetaStore::Outcome> TryPut(const std::string& key, MetaStore::LeaseId lease = 0,
                                    std::chrono::milliseconds timeout = 30s) {
    const MetaStore::Commit commit{{}, {{key, Value("x"), lease}}, {}};
    return Await<MetaStore::Outcome>(tested_, [&](auto done) {
      tested_.store().TryCommit(commit, Clock::now() + timeout, std::move(done));
    });
  }
  std::uint64_t Put(const std::string& key, MetaStore::LeaseId lease = 0) {
    const auto outcome = TryPut(key, lease);
    EXPECT_EQ(outcome.value().fate, Fate::kCommitted);
    return outcome.value().revision;
  }
  Result<std::optional<MetaStore::KeyValue>> TryGet(const std::string& key,
                                                    std::chrono::milliseconds timeout) {
    return Await<std::optional<MetaStore::KeyValue>>(tested_, [&](auto done) {
      tested_.store().Get(key, Clock::now() + timeout, std::move(done));
    });
  }
  MetaStore::Page List() {
    return Await<MetaStore::Page>(tested_,
                                  [&](auto done) {
                                    tested_.store().List({}, MetaStore::TimePoint::max(),
                                                         std::move(done));
                                  })
        .value();
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    for (const auto& entry : List().entries) keys.push_back(entry.key);
    return keys;
  }
  MetaStore::LeaseId Grant(std::chrono::milliseconds ttl) {
    return Await<MetaStore::Lease>(tested_,
                                   [&](auto done) {
                                     tested_.store().GrantLease(ttl, MetaStore::TimePoint::max(),
                                                                std::move(done));
                                   })
        .value()
        .id;
  }

  test::TempFolder folder_;
  test::TestedSqliteStore tested_{folder_ / "metadata.sqlite"};
};

TEST_F(SqliteMetaStoreTest, ARestartEndsAllLeasesWithTheirKeys) {
  const auto lease = Grant(1h);
  Put("leased", lease);
  Put("freed", lease);
  Put("freed");
  const std::uint64_t last = Put("plain");

  tested_.Close();
  tested_.Open();

  EXPECT_EQ(Keys(), (std::vector<std::string>{"freed", "plain"}));
  EXPECT_EQ(List().revision, last);
}

// Another process may know the revision of a change that ended with this one.
TEST_F(SqliteMetaStoreTest, ARestartTakesNoRevisionASecondTime) {
  Put("plain");
  const auto lease = Grant(1h);
  std::uint64_t last = Put("plain", lease);
  const auto expect_last = [&] {
    tested_.Close();
    tested_.Open();
    EXPECT_EQ(Keys(), std::vector<std::string>{});
    EXPECT_EQ(List().revision, last);
  };
  expect_last();

  const auto revoked = Grant(1h);
  last = Put("leased", revoked) + 1;
  ASSERT_TRUE(Await<void>(tested_, [&](auto done) {
    tested_.store().RevokeLease(revoked, Clock::now() + 30s, std::move(done));
  }));
  expect_last();
  EXPECT_EQ(Put("next"), last + 1);
}

TEST_F(SqliteMetaStoreTest, ChangesFromBeforeTheStartAreCompacted) {
  const std::uint64_t last = Put("key");
  tested_.Close();
  tested_.Open();

  TestedWatch behind(tested_, "", last);
  EXPECT_EQ(behind.End().kind, Kind::kCompacted);
  TestedWatch watch(tested_, "", last + 1);
  Put("next");
  EXPECT_EQ(watch.Events(1)[0].key, "next");
  EXPECT_EQ(behind.batch_sizes().size(), 1U);
}

TEST_F(SqliteMetaStoreTest, OperationsKeepTheirDeadlinesWhileTheDiskHangs) {
  Put("key");
  test::HeldSyncs held;

  const auto commit = TryPut("held", 0, 100ms);
  const auto queued = TryGet("key", 100ms);

  EXPECT_EQ(commit.value().fate, Fate::kUnknown);
  EXPECT_EQ(commit.value().why->code, ErrorCode::kDeadlineExceeded);
  // Who has been told that looks for what the commit may still put.
  ASSERT_FALSE(queued);
  EXPECT_EQ(queued.error().code, ErrorCode::kDeadlineExceeded);
  held.Release();
  EXPECT_EQ(Keys(), (std::vector<std::string>{"held", "key"}));
}

TEST_F(SqliteMetaStoreTest, ReadsAndLeasesDoNotWaitForACommit) {
  Put("key");
  const auto lease = Grant(1h);
  std::optional<Result<MetaStore::Outcome>> outcome;
  test::HeldSyncs held;
  tested_.store().TryCommit({{}, {{"key2", Value("x"), 0}}, {}}, MetaStore::TimePoint::max(),
                            [&](auto result) { tested_.Note([&] { outcome = result; }); });
  held.AwaitSync();

  EXPECT_TRUE(TryGet("key", 30s).value());
  EXPECT_EQ(Keys(), std::vector<std::string>{"key"});  // It shows what the disk has.
  const auto kept = Await<std::optional<std::chrono::milliseconds>>(tested_, [&](auto done) {
    tested_.store().KeepLease(lease, Clock::now() + 30s, std::move(done));
  });
  EXPECT_EQ(kept.value(), 1h);
  EXPECT_NE(Grant(1h), lease);
  EXPECT_FALSE(outcome);
  held.Release();
  ASSERT_TRUE(tested_.WaitFor([&] { return outcome.has_value(); }, 60s));
  EXPECT_EQ(Keys(), (std::vector<std::string>{"key", "key2"}));
}

// A daemon alone answers by what was committed while its disk hangs, and after it has failed.
TEST_F(SqliteMetaStoreTest, WhoBlocksForCommitsReadsWithoutWaiting) {
  const auto store = OpenBlockingStore(folder_ / "blocking.sqlite").value();
  ASSERT_TRUE(store->TryCommit({{}, {{"key", Value("old")}}, {}}));
  const auto expect_old = [&] {
    EXPECT_EQ(store->Get("key").value()->value, Value("old"));
    EXPECT_EQ(store->List("", "", 10).value().entries.size(), 1U);
  };
  const MetaStore::Commit replace{{}, {{"key", Value("new")}, {"more", {}}}, {}};
  {
    test::HeldSyncs held;
    std::thread committing([&] { EXPECT_FALSE(store->TryCommit(replace)); });
    held.AwaitSync();
    expect_old();
    test::HeldSyncs::are_failing = true;
    held.Release();
    committing.join();
  }
  expect_old();
  EXPECT_EQ(store->TryCommit({{}, {{"more", {}}}, {}}).error().code, ErrorCode::kIo);
  test::HeldSyncs::are_failing = false;

  ASSERT_TRUE(store->TryCommit({{{"key", 1}}, {{"key", Value("new")}}, {}}).value().committed);
  EXPECT_EQ(store->Get("key").value()->mod_revision, 2U);
  EXPECT_FALSE(store->Get("more").value());
}

// SQLite takes back a commit whose sync has failed, and leaves it in its log: one that is killed
// then would bring it back at the next start.
TEST_F(SqliteMetaStoreTest, WhatIsReadBackAfterAFailedSyncHoldsAfterAKillToo) {
  Put("before");
  test::HeldSyncs::are_failing = true;
  const auto unknown = TryPut("unknown");
  EXPECT_EQ(unknown.value().fate, Fate::kUnknown);
  const auto unsettled = TryGet("unknown", 1min);
  EXPECT_EQ(unsettled.error().code, ErrorCode::kIo);  // It cannot be told yet.
  const auto refused = TryPut("refused");
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);  // For sure: it was not begun.
  test::HeldSyncs::are_failing = false;

  const auto keys = Keys();
  const std::filesystem::path killed = folder_ / "killed";
  std::filesystem::create_directory(killed);
  for (const char* name : {"metadata.sqlite", "metadata.sqlite-wal"})
    std::filesystem::copy(folder_ / name, killed / name);
  test::TestedSqliteStore again(killed / "metadata.sqlite");
  const auto found = Await<MetaStore::Page>(again, [&](auto done) {
    again.store().List({}, MetaStore::TimePoint::max(), std::move(done));
  });
  std::vector<std::string> found_keys;
  for (const auto& entry : found.value().entries) found_keys.push_back(entry.key);
  EXPECT_EQ(found_keys, keys);
  EXPECT_EQ(TryPut("after").value().fate, Fate::kCommitted);
}

// The files of the store, and what an operator or a script does to them while the daemon runs.
struct Meddling {
  std::string what;
  std::function<void(const std::filesystem::path& folder)> act;
  bool is_rescued = true;
};

std::vector<Meddling> Meddlings() {
  namespace fs = std::filesystem;
  std::vector<Meddling> all;
  for (const std::string name : {"metadata.sqlite", "metadata.sqlite-wal"}) {
    all.push_back({"removed " + name, [name](const fs::path& at) { fs::remove(at / name); }});
    all.push_back({"replaced " + name, [name](const fs::path& at) {
                     fs::copy(at / name, at / "copy");
                     fs::rename(at / "copy", at / name);
                   }});
    const auto write = [name](const fs::path& at, std::ios::openmode mode) {
      std::ofstream(at / name, mode | std::ios::binary) << "x";
      // Clocks of file systems tick every few milliseconds.
      fs::last_write_time(at / name, fs::last_write_time(at / name) + 1s);
    };
    all.push_back(
        {"cut " + name, [write](const fs::path& at) { write(at, std::ios::trunc); }, false});
    all.push_back({"overwrote " + name,
                   [write](const fs::path& at) { write(at, std::ios::in | std::ios::out); },
                   false});
  }
  return all;
}

// SQLite goes on writing to files that nobody will find again.
TEST_F(SqliteMetaStoreTest, NothingIsCommittedToFilesThatAreNotTheirsAnyMore) {
  const auto path = folder_ / "metadata.sqlite";
  for (const Meddling& meddling : Meddlings()) {
    SCOPED_TRACE(meddling.what);
    tested_.Close();
    for (const char* end : {"", "-wal", ".rescued"}) std::filesystem::remove(path.string() + end);
    tested_.Open();
    Put("acknowledged");
    meddling.act(folder_.path());

    const auto refused = TryPut("refused");

    ASSERT_FALSE(refused);  // It had no effect and will have none.
    EXPECT_EQ(refused.error().code, ErrorCode::kIo);
    EXPECT_EQ(refused.error().system_errno, ESTALE);
    const std::string& words = refused.error().message;
    EXPECT_NE(words.find(path.string()), std::string::npos) << words;
    EXPECT_NE(words.find("stop the daemon"), std::string::npos) << words;
    EXPECT_EQ(std::filesystem::exists(path.string() + ".rescued"), meddling.is_rescued) << words;
    EXPECT_EQ(TryPut("again").error().system_errno, ESTALE);
    tested_.Close();
    if (!meddling.is_rescued) continue;
    for (const char* end : {"", "-wal"}) std::filesystem::remove(path.string() + end);
    std::filesystem::rename(path.string() + ".rescued", path);
    tested_.Open();
    EXPECT_EQ(Keys(), std::vector<std::string>{"acknowledged"});
  }
  tested_.Close();
  for (const char* end : {"", "-wal"}) std::filesystem::remove(path.string() + end);
  tested_.Open();
}

TEST_F(SqliteMetaStoreTest, ACommitWhoseFileIsRemovedMeanwhileIsUnknownAndRescued) {
  const auto path = folder_ / "metadata.sqlite";
  Put("before");
  std::optional<Result<MetaStore::Outcome>> outcome;
  {
    test::HeldSyncs held;
    tested_.store().TryCommit({{}, {{"meanwhile", Value("x"), 0}}, {}}, MetaStore::TimePoint::max(),
                              [&](auto result) { tested_.Note([&] { outcome = result; }); });
    held.AwaitSync();
    std::filesystem::rename(path, folder_ / "moved");
  }
  ASSERT_TRUE(tested_.WaitFor([&] { return outcome.has_value(); }, 60s));

  ASSERT_EQ(outcome->value().fate, Fate::kUnknown);
  EXPECT_EQ(outcome->value().why->system_errno, ESTALE);
  const auto read = Await<MetaStore::Page>(tested_, [&](auto done) {
    tested_.store().List({}, MetaStore::TimePoint::max(), std::move(done));
  });
  EXPECT_EQ(read.error().system_errno, ESTALE);  // It cannot be told.
  tested_.Close();
  test::TestedSqliteStore rescued(path.string() + ".rescued");
  const auto found = Await<MetaStore::Page>(rescued, [&](auto done) {
    rescued.store().List({}, MetaStore::TimePoint::max(), std::move(done));
  });
  EXPECT_EQ(found.value().entries.size(), 2U);
  tested_.Open();
}

// It was made, and cannot be taken for undone because its file is there again.
TEST_F(SqliteMetaStoreTest, ACommitWhoseFileWasAwayMeanwhileStaysUnknownUntilTheNextStart) {
  const auto path = folder_ / "metadata.sqlite";
  Put("before");
  std::optional<Result<MetaStore::Outcome>> outcome;
  {
    test::HeldSyncs held;
    tested_.store().TryCommit({{}, {{"meanwhile", Value("x"), 0}}, {}}, MetaStore::TimePoint::max(),
                              [&](auto result) { tested_.Note([&] { outcome = result; }); });
    held.AwaitSync();
    std::filesystem::rename(path, folder_ / "moved");
  }
  ASSERT_TRUE(tested_.WaitFor([&] { return outcome.has_value(); }, 60s));
  ASSERT_EQ(outcome->value().fate, Fate::kUnknown);
  std::filesystem::rename(folder_ / "moved", path);

  const auto after = TryPut("after");
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().system_errno, ESTALE);
  const auto read = TryGet("meanwhile", 1min);
  ASSERT_FALSE(read);  // It cannot be told.
  EXPECT_EQ(read.error().system_errno, ESTALE);
  tested_.Close();
  tested_.Open();
  EXPECT_EQ(Keys(), (std::vector<std::string>{"before", "meanwhile"}));
}

// A key stands in the table and in its index: one that says otherwise than the other would be found
// under neither name, or in lists alone.
TEST_F(SqliteMetaStoreTest, ABitThatFlippedInAKeyIsFoundAtTheStart) {
  Put("datasets/runs/step1");
  Put("datasets/runs/step2");
  tested_.Close();
  const auto path = folder_ / "metadata.sqlite";
  const std::string good = test::ReadFile(path);
  int count = 0;
  for (auto at = good.find("step2"); at != std::string::npos; at = good.find("step2", at + 1)) {
    std::string damaged = good;
    damaged[at] ^= 1;
    test::WriteFile(path, damaged);
    const auto opened = OpenSqliteStore(path);
    ASSERT_FALSE(opened) << at;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorruption);
    EXPECT_NE(opened.error().message.find("restore it from a copy"), std::string::npos);
    ++count;
  }
  EXPECT_EQ(count, 2);
  test::WriteFile(path, good);
  tested_.Open();
  EXPECT_EQ(Keys().size(), 2U);
}

TEST_F(SqliteMetaStoreTest, ACommitWhoseTurnComesTooLateIsNotMade) {
  Put("key");
  test::HeldSyncs held;
  (void)TryPut("held", 0, 50ms);
  const auto late = TryPut("late", 0, 50ms);
  EXPECT_EQ(late.value().fate, Fate::kUnknown);
  held.Release();
  EXPECT_EQ(Keys(), (std::vector<std::string>{"held", "key"}));
}

TEST_F(SqliteMetaStoreTest, WhatIsUnderWayCompletesWhenTheStoreIsClosed) {
  Put("key");
  test::HeldSyncs held;
  (void)TryPut("held", 0, 50ms);
  std::optional<Result<MetaStore::Page>> page;
  tested_.store().List({}, MetaStore::TimePoint::max(),
                       [&](auto result) { page.emplace(std::move(result)); });
  std::thread closing([&] { tested_.Close(); });
  held.Release();
  closing.join();
  ASSERT_TRUE(page);  // Carried out, or given up: it depends on which came first.
  if (!*page) {
    EXPECT_EQ(page->error().code, ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace ffrecord::server
