// Goal: every MetaStore keeps its contract: commits all or nothing, leases, watches, compaction.
// Method: the same calls on each form. The one in memory runs in virtual time.

#include "server/metadata/meta_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "etcd.h"
#include "seed.h"
#include "temp_folder.h"
#include "tested_store.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using test::Await;
using test::TestedStore;
using test::TestedWatch;
using test::Value;
using Fate = MetaStore::Outcome::Fate;
using Kind = MetaStore::News::Kind;

struct StoreUnderTest {
  std::string name;
  std::function<std::unique_ptr<TestedStore>(const test::TempFolder&)> make;  // Null: not here.

  friend void PrintTo(const StoreUnderTest& store, std::ostream* stream) { *stream << store.name; }
};

class MetaStoreConformance : public testing::TestWithParam<StoreUnderTest> {
 protected:
  void SetUp() override {
    tested_ = GetParam().make(folder_);
    if (!tested_) GTEST_SKIP() << GetParam().name << " is not on this machine";
    base_ = Put("begin", "");
  }

  MetaStore& store() { return tested_->store(); }
  MetaStore::TimePoint Soon() const { return tested_->now() + 30s; }

  Result<MetaStore::Outcome> TryCommit(const MetaStore::Commit& commit) {
    return Await<MetaStore::Outcome>(
        *tested_, [&](auto done) { store().TryCommit(commit, Soon(), std::move(done)); });
  }
  std::uint64_t Commit(const MetaStore::Commit& commit) {
    const auto outcome = TryCommit(commit);
    EXPECT_TRUE(outcome) << outcome.error().message;
    if (!outcome) return 0;
    EXPECT_EQ(outcome.value().fate, Fate::kCommitted);
    return outcome.value().revision;
  }
  std::uint64_t Put(const std::string& key, std::string_view value, MetaStore::LeaseId lease = 0) {
    return Commit({{}, {{key, Value(value), lease}}, {}});
  }
  std::uint64_t Delete(const std::string& key) { return Commit({{}, {}, {key}}); }

  std::optional<MetaStore::KeyValue> Find(const std::string& key) {
    const auto got = Await<std::optional<MetaStore::KeyValue>>(
        *tested_, [&](auto done) { store().Get(key, Soon(), std::move(done)); });
    EXPECT_TRUE(got) << got.error().message;
    return got ? got.value() : std::nullopt;
  }
  std::string Get(const std::string& key) {
    const auto entry = Find(key);
    return entry ? test::AsString(entry->value) : "(none)";
  }
  Result<MetaStore::Page> TryList(const MetaStore::ListRequest& request) {
    return Await<MetaStore::Page>(
        *tested_, [&](auto done) { store().List(request, Soon(), std::move(done)); });
  }
  MetaStore::Page List(const MetaStore::ListRequest& request) {
    auto page = TryList(request);
    EXPECT_TRUE(page) << page.error().message;
    return page ? std::move(page).value() : MetaStore::Page{};
  }
  std::vector<std::string> Keys(std::string_view prefix, std::string_view after = "",
                                std::uint64_t revision = 0) {
    std::vector<std::string> keys;
    for (const auto& entry : List({std::string(prefix), std::string(after), 100, revision}).entries)
      keys.push_back(entry.key);
    return keys;
  }
  MetaStore::Lease Grant(std::chrono::milliseconds ttl) {
    const auto lease = Await<MetaStore::Lease>(
        *tested_, [&](auto done) { store().GrantLease(ttl, Soon(), std::move(done)); });
    EXPECT_TRUE(lease) << lease.error().message;
    return lease ? lease.value() : MetaStore::Lease{};
  }
  std::optional<std::chrono::milliseconds> Keep(MetaStore::LeaseId lease) {
    const auto kept = Await<std::optional<std::chrono::milliseconds>>(
        *tested_, [&](auto done) { store().KeepLease(lease, Soon(), std::move(done)); });
    EXPECT_TRUE(kept) << kept.error().message;
    return kept ? kept.value() : std::nullopt;
  }
  void Revoke(MetaStore::LeaseId lease) {
    const auto revoked = Await<void>(
        *tested_, [&](auto done) { store().RevokeLease(lease, Soon(), std::move(done)); });
    EXPECT_TRUE(revoked) << revoked.error().message;
  }
  static MetaStore::Event Was(const std::string& key, std::string_view value,
                              std::uint64_t revision) {
    return {key, Value(value), revision};
  }
  static MetaStore::Event Gone(const std::string& key, std::uint64_t revision) {
    return {key, std::nullopt, revision};
  }

  test::TempFolder folder_;
  std::unique_ptr<TestedStore> tested_;
  std::uint64_t base_ = 0;  // The revision at which the test begins.
};

// --- Commits and reads ---------------------------------------------------------------------------

TEST_P(MetaStoreConformance, AKeyHasTheValueAndRevisionOfItsLastPut) {
  EXPECT_FALSE(Find("key"));

  const std::uint64_t first = Put("key", "one");
  const std::uint64_t second = Put("other", std::string_view("\0\xFF\0", 3));
  const std::uint64_t third = Put("key", "two");

  EXPECT_EQ(first, base_ + 1);
  EXPECT_EQ(second, base_ + 2);
  EXPECT_EQ(third, base_ + 3);
  EXPECT_EQ(*Find("key"), (MetaStore::KeyValue{"key", Value("two"), third}));
  EXPECT_EQ(*Find("other"),
            (MetaStore::KeyValue{"other", Value(std::string_view("\0\xFF\0", 3)), second}));
  Put("empty", "");
  EXPECT_EQ(Get("empty"), "");
}

TEST_P(MetaStoreConformance, ValuesOfEverySizeAreKept) {
  std::mt19937_64 random(test::Seed());
  for (const std::size_t size : {1U, 2U, 3U, 4U, 57U, 4096U, 500'001U}) {
    const std::string value = test::RandomText(size, random);
    Put("key", value);
    EXPECT_EQ(Get("key"), value) << size;
  }
}

TEST_P(MetaStoreConformance, ACompareThatDoesNotHoldLosesAndChangesNothing) {
  const std::uint64_t revision = Put("key", "old");
  const MetaStore::Commit attempts[] = {
      {{{"key", 0}}, {{"key", Value("new")}, {"more", Value("x")}}, {"key2"}},
      {{{"key", revision + 1}}, {{"key", Value("new")}}, {}},
      {{{"missing", 1}}, {{"key", Value("new")}}, {}},
      {{{"key", revision}, {"missing", 7}}, {}, {"key"}},
  };
  for (const auto& attempt : attempts) {
    const auto outcome = TryCommit(attempt);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(outcome.value().fate, Fate::kLost);
    EXPECT_EQ(outcome.value().revision, revision);
    EXPECT_EQ(Get("key"), "old");
    EXPECT_EQ(Get("more"), "(none)");
  }
}

TEST_P(MetaStoreConformance, ComparesThatHoldCommitEverythingAtOneRevision) {
  const std::uint64_t revision = Put("key", "old");
  Put("gone", "x");

  const std::uint64_t committed = Commit({{{"key", revision}, {"fresh", 0}},
                                          {{"key", Value("new")}, {"fresh", Value("y")}},
                                          {"gone", "never was"}});

  EXPECT_EQ(committed, revision + 2);
  EXPECT_EQ(Find("key")->mod_revision, committed);
  EXPECT_EQ(Find("fresh")->mod_revision, committed);
  EXPECT_EQ(Get("gone"), "(none)");
}

TEST_P(MetaStoreConformance, ADeletedKeyIsAbsentForCompares) {
  const std::uint64_t revision = Put("key", "x");
  Commit({{{"key", revision}}, {}, {"key"}});
  EXPECT_EQ(TryCommit({{{"key", revision}}, {{"a", {}}}, {}}).value().fate, Fate::kLost);
  Commit({{{"key", 0}}, {{"a", {}}}, {}});
}

TEST_P(MetaStoreConformance, ACommitThatChangesNothingTakesNoRevision) {
  EXPECT_EQ(Delete("absent"), base_);
  EXPECT_EQ(Commit({{{"begin", base_}}, {}, {}}), base_);
  EXPECT_EQ(Put("key", ""), base_ + 1);
}

TEST_P(MetaStoreConformance, ListsPagesInByteOrder) {
  for (const char* key : {"a", "a/", "a/b", "a/b/c", "a/c", "a0", "b", "a/B"}) Put(key, key);

  EXPECT_EQ(Keys("a/"), (std::vector<std::string>{"a/", "a/B", "a/b", "a/b/c", "a/c"}));
  EXPECT_EQ(Keys("a/", "a/B"), (std::vector<std::string>{"a/b", "a/b/c", "a/c"}));
  EXPECT_EQ(Keys("a/b"), (std::vector<std::string>{"a/b", "a/b/c"}));
  EXPECT_EQ(Keys("a/", "A"), Keys("a/"));
  EXPECT_EQ(Keys("a/", "z"), std::vector<std::string>{});
  EXPECT_EQ(Keys("").size(), 9U);
  const auto page = List({"a/", "", 2, 0});
  EXPECT_TRUE(page.more);
  EXPECT_EQ(page.revision, base_ + 8);
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(test::AsString(page.entries[1].value), "a/B");
  EXPECT_FALSE(List({"a/", "", 5, 0}).more);
}

TEST_P(MetaStoreConformance, ListsTheMapAsItWas) {
  Put("k/deleted", "1");
  Put("k/replaced", "old");
  const std::uint64_t then = Put("k/same", "3");
  const std::uint64_t replaced = Put("k/replaced", "new");
  Delete("k/deleted");
  Put("k/fresh", "4");

  const auto page = List({"k/", "", 2, then});

  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[0].key, "k/deleted");
  EXPECT_EQ(page.entries[1], (MetaStore::KeyValue{"k/replaced", Value("old"), then - 1}));
  EXPECT_TRUE(page.more);
  EXPECT_EQ(page.revision, then);
  EXPECT_EQ(Keys("k/", "k/replaced", then), std::vector<std::string>{"k/same"});
  EXPECT_EQ(Keys("k/", "", replaced).size(), 3U);
  EXPECT_EQ(Keys("k/"), (std::vector<std::string>{"k/fresh", "k/replaced", "k/same"}));
  const auto future = TryList({"k/", "", 2, replaced + 100});
  ASSERT_FALSE(future);
  EXPECT_EQ(future.error().code, ErrorCode::kInvalidArgument) << future.error().message;
}

TEST_P(MetaStoreConformance, CommitsUpToTheLimitsAreTakenAndThoseBeyondAreRefused) {
  MetaStore::Commit widest;
  for (std::size_t i = 0; i < MetaStore::kCommitOperationCountMax; ++i) {
    widest.puts.push_back({"key" + std::to_string(i), Value("v")});
    widest.compares.push_back({"key" + std::to_string(i), 0});
  }
  EXPECT_EQ(Commit(widest), base_ + 1);
  EXPECT_EQ(Keys("key").size(), 100U);
  EXPECT_EQ(Put("big", std::string(MetaStore::kCommitSizeMax - 3, 'b')), base_ + 2);

  const MetaStore::Commit twice{{}, {{"key", Value("1")}}, {"key"}};
  const auto refused = TryCommit(twice);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
}

TEST_P(MetaStoreConformance, AgreesWithAModelOnRandomCommits) {
  std::mt19937 random(test::Seed());
  std::map<std::string, std::pair<std::string, std::uint64_t>> model;
  const auto key = [&] { return "k/" + std::to_string(random() % 12); };
  TestedWatch watch(*tested_, "k/", base_ + 1);
  std::vector<MetaStore::Event> expected;
  for (int round = 0; round < 150; ++round) {
    MetaStore::Commit commit;
    bool should_commit = true;
    for (auto i = random() % 3; i > 0; --i) {
      const std::string compared = key();
      const auto found = model.find(compared);
      const std::uint64_t actual = found == model.end() ? 0 : found->second.second;
      const std::uint64_t claimed = random() % 4 == 0 ? actual + 1 + random() % 50 : actual;
      commit.compares.push_back({compared, claimed});
      should_commit = should_commit && claimed == actual;
    }
    const std::string put = key();
    commit.puts.push_back({put, Value(std::to_string(round))});
    const std::string deleted = key();
    if (deleted != put) commit.deletes.push_back(deleted);

    const auto outcome = TryCommit(commit).value();

    ASSERT_EQ(outcome.fate == Fate::kCommitted, should_commit);
    if (should_commit) {
      if (deleted != put && model.erase(deleted) == 1)
        expected.push_back(Gone(deleted, outcome.revision));
      model[put] = {std::to_string(round), outcome.revision};
      expected.push_back(Was(put, std::to_string(round), outcome.revision));
    }
    const auto page = List({"k/", "", 100, 0});
    ASSERT_EQ(page.entries.size(), model.size());
    for (const auto& entry : page.entries) {
      ASSERT_EQ(test::AsString(entry.value), model.at(entry.key).first);
      ASSERT_EQ(entry.mod_revision, model.at(entry.key).second);
    }
  }
  auto told = watch.Events(expected.size());
  const auto by_revision_and_key = [](const auto& one, const auto& other) {
    return std::pair(one.revision, one.key) < std::pair(other.revision, other.key);
  };
  EXPECT_TRUE(std::ranges::is_sorted(told, {}, &MetaStore::Event::revision));
  std::ranges::sort(told, by_revision_and_key);
  std::ranges::sort(expected, by_revision_and_key);
  EXPECT_EQ(told, expected);
}

TEST_P(MetaStoreConformance, OneOfManyCommitsUnderWayThatSwapOneKeyWins) {
  constexpr int kCommitCount = 16;
  int answered = 0;
  std::vector<std::uint64_t> won;
  for (int i = 0; i < kCommitCount; ++i)
    store().TryCommit({{{"name", 0}}, {{"name", Value(std::to_string(i))}}, {}}, Soon(),
                      [&](Result<MetaStore::Outcome> outcome) {
                        tested_->Note([&] {
                          ++answered;
                          ASSERT_TRUE(outcome) << outcome.error().message;
                          if (outcome.value().fate == Fate::kCommitted)
                            won.push_back(outcome.value().revision);
                        });
                      });
  ASSERT_TRUE(tested_->WaitFor([&] { return answered == kCommitCount; }, 60s));
  EXPECT_EQ(won, std::vector<std::uint64_t>{Find("name")->mod_revision});
}

TEST_P(MetaStoreConformance, CallbacksRunOnOneThreadAfterTheCallAndMayCallTheStore) {
  std::vector<std::thread::id> threads;
  bool has_returned = false;
  bool is_done = false;
  const auto note = [&] { threads.push_back(std::this_thread::get_id()); };
  TestedWatch watch(*tested_, "", base_ + 1);
  {
    const std::unique_lock lock(tested_->mutex());  // A callback inside the call would hang here.
    store().Get("begin", Soon(), [&](auto first) {
      tested_->Note([&] {
        EXPECT_TRUE(first);
        EXPECT_TRUE(has_returned);
        note();
      });
      store().TryCommit({{}, {{"next", {}}}, {}}, Soon(), [&](auto second) {
        tested_->Note([&] {
          EXPECT_TRUE(second);
          note();
        });
        store().StopWatch(watch.id());
        store().StopWatch(watch.id());
        tested_->Note([&] { is_done = true; });
      });
    });
    has_returned = true;
  }
  ASSERT_TRUE(tested_->WaitFor([&] { return is_done; }, 30s));
  EXPECT_EQ(threads[0], threads[1]);
}

TEST_P(MetaStoreConformance, AnOperationPastItsDeadlineCompletesWithoutEffect) {
  const auto late = Await<std::optional<MetaStore::KeyValue>>(
      *tested_, [&](auto done) { store().Get("begin", tested_->now() - 1s, std::move(done)); });
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
}

// --- Leases --------------------------------------------------------------------------------------

TEST_P(MetaStoreConformance, TheKeysOfALeaseThatEndsAreDeletedAtOneRevision) {
  const auto lease = Grant(1s);
  EXPECT_GE(lease.ttl, 1s);
  Put("mine/1", "x", lease.id);
  Put("mine/2", "y", lease.id);
  const std::uint64_t last = Put("other", "z");
  TestedWatch watch(*tested_, "mine/", last + 1);

  auto events = watch.Events(2);  // With no other call: time alone ends it.

  std::ranges::sort(events, {}, &MetaStore::Event::key);
  EXPECT_EQ(events, (std::vector{Gone("mine/1", last + 1), Gone("mine/2", last + 1)}));
  EXPECT_EQ(watch.batch_sizes(), std::vector<std::size_t>{2});
  EXPECT_EQ(Keys("mine/"), std::vector<std::string>{});
  EXPECT_EQ(Get("other"), "z");
  EXPECT_FALSE(Keep(lease.id));
}

TEST_P(MetaStoreConformance, ALeaseThatIsKeptDoesNotEnd) {
  const auto kept = Grant(2s);
  const auto left = Grant(2s);
  Put("kept", "x", kept.id);
  const std::uint64_t last = Put("left", "x", left.id);
  TestedWatch watch(*tested_, "left", last + 1);
  const auto begin = tested_->now();
  while (tested_->now() < begin + 3 * kept.ttl / 2) {
    const auto ttl = Keep(kept.id);
    ASSERT_TRUE(ttl);
    EXPECT_EQ(*ttl, kept.ttl);
    const auto next = tested_->now() + kept.ttl / 8;
    tested_->WaitFor([&] { return tested_->now() >= next; }, 10s);
  }
  watch.Events(1);
  EXPECT_EQ(Get("kept"), "x");
}

TEST_P(MetaStoreConformance, ARevokedLeaseEndsAtOnceAndOnceOnly) {
  const auto lease = Grant(60s);
  const std::uint64_t last = Put("mine", "x", lease.id);
  Revoke(lease.id);
  EXPECT_EQ(Get("mine"), "(none)");
  EXPECT_EQ(Put("other", ""), last + 2);
  Revoke(lease.id);
  EXPECT_FALSE(Keep(lease.id));
  EXPECT_FALSE(Keep(12345));
}

TEST_P(MetaStoreConformance, ALeaseWithoutKeysEndsWithoutARevision) {
  Revoke(Grant(60s).id);
  EXPECT_EQ(Put("key", ""), base_ + 1);
}

TEST_P(MetaStoreConformance, APutWithAnEndedLeaseFailsAndALostOneLoses) {
  const auto lease = Grant(60s);
  Revoke(lease.id);

  const auto failed = TryCommit({{}, {{"other", {}}, {"mine", {}, lease.id}}, {"begin"}});

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound) << failed.error().message;
  EXPECT_EQ(Keys(""), std::vector<std::string>{"begin"});
  const auto lost = TryCommit({{{"begin", 0}}, {{"mine", {}, lease.id}}, {}});
  ASSERT_TRUE(lost) << lost.error().message;
  EXPECT_EQ(lost.value().fate, Fate::kLost);
}

TEST_P(MetaStoreConformance, AKeyBelongsToTheLeaseOfItsLastPut) {
  const auto first = Grant(60s);
  const auto second = Grant(60s);
  Put("freed", "x", first.id);
  Put("moved", "x", first.id);
  Put("deleted", "x", first.id);
  Put("freed", "y");
  Put("moved", "y", second.id);
  Delete("deleted");
  Put("deleted", "again");
  Revoke(first.id);
  EXPECT_EQ(Keys(""), (std::vector<std::string>{"begin", "deleted", "freed", "moved"}));
  Revoke(second.id);
  EXPECT_EQ(Keys(""), (std::vector<std::string>{"begin", "deleted", "freed"}));
}

// --- Watches -------------------------------------------------------------------------------------

TEST_P(MetaStoreConformance, AWatchTellsPutsAndDeletesOfItsPrefixInOrder) {
  TestedWatch before(*tested_, "k/", base_ + 1);
  const std::uint64_t first = Put("k/a", "1");
  Put("kk", "other");
  Put("j", "other");
  const std::uint64_t second = Put("k/a", "2");
  const std::uint64_t third = Delete("k/a");
  const std::uint64_t fourth = Put("k/", "");
  const std::vector expected = {Was("k/a", "1", first), Was("k/a", "2", second), Gone("k/a", third),
                                Was("k/", "", fourth)};

  EXPECT_EQ(before.Events(4), expected);
  TestedWatch afterwards(*tested_, "k/", base_ + 1);
  EXPECT_EQ(afterwards.Events(4), expected);
  TestedWatch from_the_middle(*tested_, "k/", third);
  EXPECT_EQ(from_the_middle.Events(2), std::vector(expected.begin() + 2, expected.end()));
  TestedWatch of_all(*tested_, "", base_ + 1);
  EXPECT_EQ(of_all.Events(6).size(), 6U);
}

TEST_P(MetaStoreConformance, AWatchFromAFutureRevisionTellsNothingBefore) {
  TestedWatch watch(*tested_, "", base_ + 3);
  Put("a", "");
  Put("b", "");
  const std::uint64_t third = Put("c", "");
  EXPECT_EQ(watch.Events(1), std::vector{Was("c", "", third)});
}

TEST_P(MetaStoreConformance, AllChangesOfOneCommitComeTogether) {
  MetaStore::Commit commit;
  for (std::size_t i = 0; i < 100; ++i)
    commit.puts.push_back({"key" + std::to_string(i), Value(std::string(10'000, 'v'))});
  TestedWatch watch(*tested_, "key", base_ + 1);
  Commit(commit);
  Commit(commit);
  watch.Events(200);
  TestedWatch afterwards(*tested_, "key", base_ + 1);
  afterwards.Events(200);
  for (auto* each : {&watch, &afterwards})
    for (const std::size_t size : each->batch_sizes()) EXPECT_EQ(size % 100, 0U);
}

TEST_P(MetaStoreConformance, AStoppedWatchTellsNothing) {
  TestedWatch stopped(*tested_, "", base_ + 1);
  TestedWatch other(*tested_, "", base_ + 1);
  Put("a", "");
  stopped.Events(1);
  store().StopWatch(stopped.id());
  Put("b", "");
  other.Events(2);
  Put("c", "");
  other.Events(3);
  EXPECT_EQ(stopped.batch_sizes().size(), 1U);
}

TEST_P(MetaStoreConformance, CompactedChangesAreToldAsThat) {
  Put("a", "1");
  const std::uint64_t last = tested_->Compact(Put("a", "2"));

  TestedWatch behind(*tested_, "", base_ + 1);
  EXPECT_EQ(behind.End().kind, Kind::kCompacted);
  const auto past = TryList({"", "", 10, base_ + 1});
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, ErrorCode::kConflict) << past.error().message;

  EXPECT_EQ(Keys("a", "", last), std::vector<std::string>{"a"});
  TestedWatch from_there(*tested_, "", last + 1);
  const std::uint64_t next = Put("a", "3");
  EXPECT_EQ(from_there.Events(1), std::vector{Was("a", "3", next)});
}

std::unique_ptr<TestedStore> MakeMemory(const test::TempFolder&) {
  return std::make_unique<test::TestedMemoryStore>();
}
std::unique_ptr<TestedStore> MakeSqlite(const test::TempFolder& folder) {
  return std::make_unique<test::TestedSqliteStore>(folder / "metadata.sqlite");
}

// One cluster serves all tests; each has keys of its own. Its revisions are one counter: tests
// expect the numbers of theirs alone, and run one after another.
std::unique_ptr<TestedStore> MakeEtcd(std::size_t member_count) {
  if (!test::HasEtcd()) return nullptr;
  static std::map<std::size_t, std::unique_ptr<test::EtcdCluster>> clusters;
  auto& cluster = clusters[member_count];
  if (!cluster) {
    cluster = std::make_unique<test::EtcdCluster>(member_count);
    cluster->WaitForLeader();
  }
  return std::make_unique<test::TestedEtcdStore>(*cluster, EtcdOptions{});
}

INSTANTIATE_TEST_SUITE_P(
    AllStores, MetaStoreConformance,
    testing::Values(StoreUnderTest{"memory", MakeMemory}, StoreUnderTest{"sqlite", MakeSqlite},
                    StoreUnderTest{"etcd", [](auto&) { return MakeEtcd(1); }},
                    StoreUnderTest{"three_etcds", [](auto&) { return MakeEtcd(3); }}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord::server
