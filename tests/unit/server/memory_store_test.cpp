// Goal: the memory store shows every fault of a connection, in virtual time, the same each time.
// Method: requests and answers that are late, lost or refused as the test says; the state tells
// what took effect.

#include "server/metadata/memory_store.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "seed.h"
#include "tested_store.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using test::TestedMemoryStore;
using test::TestedWatch;
using test::Value;
using Fate = MetaStore::Outcome::Fate;
using Kind = MetaStore::News::Kind;
using Trip = MemoryMetaStore::Trip;

class MemoryStoreTest : public testing::Test {
 protected:
  std::optional<Result<MetaStore::Outcome>> Put(const std::string& key,
                                                std::chrono::milliseconds timeout = 1s) {
    std::optional<Result<MetaStore::Outcome>> result;
    Begin(key, timeout, result);
    store().Run(now_ += timeout);
    return result;
  }
  void Begin(const std::string& key, std::chrono::milliseconds timeout,
             std::optional<Result<MetaStore::Outcome>>& result) {
    store().TryCommit({{}, {{key, Value("x")}}, {}}, now_ + timeout,
                      [&result](auto outcome) { result.emplace(std::move(outcome)); });
  }
  MemoryMetaStore& store() { return tested_.memory(); }

  Trip trip_;
  TestedMemoryStore tested_{[this] { return trip_; }};
  MetaStore::TimePoint now_{};
};

TEST_F(MemoryStoreTest, AnswersComeWhenTheTripIsOver) {
  trip_ = {.there = 20ms, .back = 30ms};
  std::optional<Result<MetaStore::Outcome>> result;
  Begin("key", 1s, result);

  EXPECT_EQ(store().next(), now_ + 20ms);
  store().Run(now_ + 19ms);
  EXPECT_FALSE(tested_.state.Get("key"));
  store().Run(now_ + 20ms);
  EXPECT_TRUE(tested_.state.Get("key"));
  store().Run(now_ + 49ms);
  EXPECT_FALSE(result);
  store().Run(now_ + 50ms);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->value().fate, Fate::kCommitted);
  EXPECT_FALSE(store().next());
}

TEST_F(MemoryStoreTest, ACommitWhoseRequestIsLostIsUnknownAndHasNoEffect) {
  trip_ = {.loses_request = true};
  const auto result = Put("key");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->value().fate, Fate::kUnknown);
  EXPECT_EQ(result->value().why->code, ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(tested_.state.Get("key"));
}

TEST_F(MemoryStoreTest, ACommitWhoseAnswerIsLostIsUnknownAndTookEffect) {
  trip_ = {.loses_answer = true};
  const auto result = Put("key");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->value().fate, Fate::kUnknown);
  EXPECT_TRUE(tested_.state.Get("key"));
}

TEST_F(MemoryStoreTest, AnUnknownCommitMayTakeEffectAfterItsDeadline) {
  trip_ = {.there = 3s};
  const auto result = Put("key", 1s);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->value().fate, Fate::kUnknown);
  EXPECT_FALSE(tested_.state.Get("key"));
  store().Run(now_ += 2s);
  EXPECT_TRUE(tested_.state.Get("key"));
}

TEST_F(MemoryStoreTest, ARefusedCommitFailsForSure) {
  trip_ = {.is_refused = true};
  const auto result = Put("key");
  ASSERT_TRUE(result);
  ASSERT_FALSE(*result);
  EXPECT_EQ(result->error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(tested_.state.Get("key"));
}

TEST_F(MemoryStoreTest, ACommitBeyondTheLimitsIsRefused) {
  const MetaStore::Compare compare{"key", 0};
  const MetaStore::Commit refused[] = {
      {{}, {{"k", Value(std::string(MetaStore::kCommitSizeMax, 'x'))}}, {}},
      {std::vector(MetaStore::kCommitOperationCountMax + 1, compare), {}, {}},
  };
  for (const auto& commit : refused) {
    const auto outcome = test::Await<MetaStore::Outcome>(
        tested_, [&](auto done) { store().TryCommit(commit, now_ + 1h, std::move(done)); });
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(tested_.state.revision(), 0U);
}

TEST_F(MemoryStoreTest, ALeaseThatEndsBeforeARequestArrivesIsEndedForIt) {
  const auto lease = tested_.state.GrantLease(100ms, now_);
  trip_ = {.there = 150ms};
  std::optional<Result<std::optional<std::chrono::milliseconds>>> kept;
  store().KeepLease(lease.id, now_ + 10s, [&](auto result) { kept.emplace(std::move(result)); });
  store().Run(now_ += 10s);  // In one step: the lease must end before the request is carried out.
  ASSERT_TRUE(kept);
  EXPECT_FALSE(kept->value());
}

TEST_F(MemoryStoreTest, AReadThatArrivesAfterALeaseHasEndedSeesNoKeyOfIt) {
  const auto lease = tested_.state.GrantLease(100ms, now_);
  ASSERT_TRUE(tested_.state.TryCommit({{}, {{"mine", {}, lease.id}}, {}}, now_));
  trip_ = {.there = 150ms};
  std::optional<Result<std::optional<MetaStore::KeyValue>>> got;
  store().Get("mine", now_ + 10s, [&](auto result) { got.emplace(std::move(result)); });
  store().Run(now_ += 10s);
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->value());
}

TEST_F(MemoryStoreTest, ALeaseWhoseTimeIsOverCannotBeKeptThoughItsKeysAreStillThere) {
  LeaseTable leases;
  const auto lease = leases.Grant(100ms, now_);
  leases.Attach("key", lease);
  EXPECT_TRUE(leases.Keep(lease, now_ + 99ms));
  EXPECT_FALSE(leases.Keep(lease, now_ + 199ms));
  EXPECT_EQ(leases.FindExpired(now_ + 199ms), lease);
  EXPECT_EQ(leases.KeysOf(lease), std::vector<std::string>{"key"});
}

TEST_F(MemoryStoreTest, ClientsOfOneStateSeeEachOther) {
  MemoryMetaStore other(tested_.state, {});
  std::vector<std::string> keys;
  other.Watch("k", 1, [&](MetaStore::News news) {
    for (const auto& event : news.events) keys.push_back(event.key);
  });
  Put("key");
  EXPECT_TRUE(other.next());
  other.Run(now_);
  EXPECT_EQ(keys, std::vector<std::string>{"key"});
  EXPECT_FALSE(other.next());
}

TEST_F(MemoryStoreTest, NewsComeInOrderHoweverTheyTravel) {
  TestedWatch watch(tested_, "", 1);
  trip_ = {.back = 100ms};
  Put("first", 0ms);
  trip_ = {};
  Put("second", 0ms);
  store().Run(now_ += 1s);
  const auto events = watch.Events(2);
  EXPECT_EQ(events[0].key, "first");
  EXPECT_EQ(events[1].key, "second");
}

TEST_F(MemoryStoreTest, AWatchWhoseNewsAreLostBreaksAndGoesOnFromTheLastRevision) {
  TestedWatch watch(tested_, "", 1);
  Put("a");
  trip_ = {.loses_answer = true};
  Put("b");
  trip_ = {};
  Put("c");
  EXPECT_EQ(watch.End().kind, Kind::kBroken);
  const auto told = watch.Events(1);

  TestedWatch next(tested_, "", told.back().revision + 1);
  store().Run(now_);
  EXPECT_EQ(next.Events(2)[0].key, "b");
  store().BreakWatches();
  store().Run(now_);
  EXPECT_EQ(next.End().kind, Kind::kBroken);
  Put("d");
  EXPECT_EQ(next.Events(2).size(), 2U);
}

TEST_F(MemoryStoreTest, AWatchBehindACompactionIsToldSo) {
  TestedWatch watch(tested_, "", 1);
  tested_.state.TryCommit({{}, {{"a", {}}}, {}}, now_).value();
  tested_.state.TryCommit({{}, {{"b", {}}}, {}}, now_).value();
  tested_.state.CompactTo(1);
  store().Run(now_);
  EXPECT_EQ(watch.End().kind, Kind::kCompacted);
}

TEST_F(MemoryStoreTest, OldChangesAreCompactedByThemselves) {
  MetaState state({.change_count_max = 10, .size_bytes_max = 1000});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(state.TryCommit({{}, {{"key", Value("x")}}, {}}, now_));
  EXPECT_FALSE(state.EventsSince("", 10));
  EXPECT_EQ(state.EventsSince("", 11)->size(), 10U);
  ASSERT_TRUE(state.TryCommit({{}, {{"key", Value(std::string(995, 'x'))}}, {}}, now_));
  EXPECT_FALSE(state.EventsSince("", 20));
  EXPECT_EQ(state.EventsSince("", 21)->size(), 1U);
  ASSERT_TRUE(state.TryCommit({{}, {{"key", Value(std::string(2000, 'x'))}}, {}}, now_));
  EXPECT_FALSE(state.EventsSince("", 22));
  EXPECT_EQ(test::AsString(state.Get("key")->value).size(), 2000U);
}

TEST_F(MemoryStoreTest, WhatIsUnderWayCompletesWhenTheStoreIsClosed) {
  trip_ = {.there = 10s};
  std::optional<Result<MetaStore::Outcome>> commit;
  std::optional<Result<MetaStore::Page>> page;
  Begin("key", 1h, commit);
  store().List({}, now_ + 1h, [&](auto result) { page.emplace(std::move(result)); });

  tested_.Close();

  ASSERT_TRUE(commit && page);
  EXPECT_EQ(commit->value().fate, Fate::kUnknown);
  EXPECT_EQ(commit->value().why->code, ErrorCode::kUnavailable);
  EXPECT_EQ(page->error().code, ErrorCode::kUnavailable);
}

// What two clients with faulty connections see of each other.
std::string Trace(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto next_trip = [&random] {
    Trip trip{std::chrono::milliseconds(random() % 50), std::chrono::milliseconds(random() % 50)};
    trip.is_refused = random() % 20 == 0;
    trip.loses_request = random() % 10 == 0;
    trip.loses_answer = random() % 10 == 0;
    return trip;
  };
  std::ostringstream trace;  // The stores tell it how their last calls end.
  MetaState state;
  MemoryMetaStore one(state, {next_trip, {}});
  MemoryMetaStore two(state, {next_trip, {}});
  one.Watch("", 1, [&](MetaStore::News news) { trace << "news " << news.events.size() << '\n'; });
  MetaStore::TimePoint now;
  for (int step = 0; step < 200; ++step) {
    const MetaStore::Commit commit{{{"key", random() % 20}}, {{"key", Value("x")}}, {}};
    (step % 2 == 0 ? one : two).TryCommit(commit, now + 100ms, [&, step](auto outcome) {
      trace << step << ' ' << (outcome ? static_cast<int>(outcome.value().fate) : -1) << '\n';
    });
    now += 10ms;
    one.Run(now);
    two.Run(now);
  }
  trace << state.revision();
  return trace.str();
}

TEST(MemoryStoreReplayTest, TheSameFaultsGiveTheSameTrace) {
  const std::uint32_t seed = test::Seed();
  EXPECT_EQ(Trace(seed), Trace(seed));
  EXPECT_NE(Trace(seed), Trace(seed + 1));
}

}  // namespace
}  // namespace ffrecord::server
