// Goal: a node believes in its lease for less time than the store does, and knows all keys.
// Method: the two machines alone; the test answers each of their calls.

#include <gtest/gtest.h>

#include "server/cluster/key_mirror.h"
#include "server/cluster/lease_keeper.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using Fate = MetaStore::Outcome::Fate;

constexpr TimePoint kStart{1'000s};

class LeaseKeeperTest : public testing::Test {
 protected:
  LeaseKeeperTest() : keeper_(MakeOptions()) {}

  static LeaseKeeper::Options MakeOptions() {
    LeaseKeeper::Options options;
    options.node = "n1";
    options.record.epoch = 7;
    options.ttl = 16s;
    return options;
  }
  // What it asks for now.
  template <class T>
  T Asked(TimePoint now) {
    keeper_.Step(now, out_);
    return Last<T>();
  }
  // What it has asked for in answer to something.
  template <class T>
  T Last() {
    auto actions = out_.Take();
    EXPECT_EQ(actions.size(), 1U);
    call_ = actions.at(0).id;
    return std::get<T>(actions.at(0).call);
  }
  void Answer(TimePoint now, Reply reply) {
    EXPECT_TRUE(keeper_.Take(now, {call_, std::move(reply)}, out_));
  }
  void Grant(TimePoint asked, TimePoint answered, MetaStore::LeaseId lease) {
    (void)Asked<GrantLease>(asked);
    Answer(answered, Result<MetaStore::Lease>(MetaStore::Lease{lease, 16s}));
  }
  // The key is put.
  void Name(TimePoint now, Fate fate) {
    (void)Last<MetaStore::Commit>();
    Answer(now, Result<MetaStore::Outcome>(MetaStore::Outcome{fate, 5, std::nullopt}));
  }

  LeaseKeeper keeper_;
  Outbox out_;
  CallId call_ = 0;
};

TEST_F(LeaseKeeperTest, AStoreThatWentBackIsAskedForTheKeyThoughTheLeaseGoesOn) {
  Grant(kStart, kStart, 9);
  Name(kStart, Fate::kCommitted);
  (void)out_.Take();
  ASSERT_TRUE(keeper_.IsLeased(kStart + 1s));

  keeper_.LookAgain(kStart + 1s);

  EXPECT_FALSE(keeper_.IsLeased(kStart + 1s));
  (void)Asked<GetKey>(kStart + 1s);
  Answer(kStart + 1s, Result<std::optional<MetaStore::KeyValue>>(std::nullopt));
  Name(kStart + 1s, Fate::kCommitted);
  EXPECT_TRUE(keeper_.IsLeased(kStart + 2s));
}

TEST_F(LeaseKeeperTest, ItCountsFromWhenItAskedAndLeavesOutASixteenth) {
  Grant(kStart, kStart + 2s, 3);
  Name(kStart + 3s, Fate::kCommitted);

  EXPECT_TRUE(keeper_.IsLeased(kStart + 15s - 1ms));
  EXPECT_FALSE(keeper_.IsLeased(kStart + 15s));
  EXPECT_TRUE(keeper_.MayWrite(kStart + 7s));
  EXPECT_FALSE(keeper_.MayWrite(kStart + 7s + 1ms));
}

TEST_F(LeaseKeeperTest, ARenewalCountsFromWhenItWasAskedFor) {
  Grant(kStart, kStart, 3);
  Name(kStart, Fate::kCommitted);

  EXPECT_EQ(Asked<KeepLease>(kStart + 6s).lease, 3U);
  Answer(kStart + 8s, Result<std::optional<std::chrono::milliseconds>>(16s));

  EXPECT_TRUE(keeper_.IsLeased(kStart + 21s - 1ms));
  EXPECT_FALSE(keeper_.IsLeased(kStart + 21s));
}

TEST_F(LeaseKeeperTest, ARenewalWithoutAnAnswerChangesNothing) {
  Grant(kStart, kStart, 3);
  Name(kStart, Fate::kCommitted);

  (void)Asked<KeepLease>(kStart + 6s);
  Answer(kStart + 8s, Result<std::optional<std::chrono::milliseconds>>(
                          Error{ErrorCode::kDeadlineExceeded, "no answer"}));

  EXPECT_TRUE(keeper_.IsLeased(kStart + 15s - 1ms));
  EXPECT_FALSE(keeper_.IsLeased(kStart + 15s));
}

TEST_F(LeaseKeeperTest, ALeaseThatHasEndedIsForgottenAtOnce) {
  Grant(kStart, kStart, 3);
  Name(kStart, Fate::kCommitted);

  (void)Asked<KeepLease>(kStart + 6s);
  Answer(kStart + 6s, Result<std::optional<std::chrono::milliseconds>>(std::nullopt));

  EXPECT_FALSE(keeper_.IsLeased(kStart + 6s));
  EXPECT_EQ(Last<GrantLease>().ttl, 16s);
}

// Nodes of both versions run while a cluster is upgraded.
TEST(NodeRecordTest, WhatItMayFetchIsReadAndItsAbsenceTooAndLaterFieldsAreSkipped) {
  const NodeRecord record{7, 3, "host1:9400", 2, 5};
  EXPECT_EQ(NodeRecord::Decode(record.Encode()).value(), record);
  const NodeRecord earlier{7, 3, "host1:9400", 2};
  EXPECT_EQ(NodeRecord::Decode(earlier.Encode()).value(), earlier);
  auto later = record.Encode();
  later.resize(later.size() + 4);
  EXPECT_EQ(NodeRecord::Decode(later).value(), record);
}

TEST_F(LeaseKeeperTest, TheKeyOfAnotherStartHasToEndByItself) {
  Grant(kStart, kStart, 3);
  Name(kStart, Fate::kLost);
  EXPECT_EQ(Last<GetKey>().key, "nodes/n1");
  const MetaStore::KeyValue other{"nodes/n1", NodeRecord{8, 2, "host2:9400"}.Encode(), 4};

  Answer(kStart, Result<std::optional<MetaStore::KeyValue>>(other));

  EXPECT_FALSE(keeper_.IsLeased(kStart));
  EXPECT_EQ(keeper_.rival(), "host2:9400");
  EXPECT_EQ(Asked<GetKey>(kStart + 1s).key, "nodes/n1");  // Looks again, and again.
  Answer(kStart + 1s, Result<std::optional<MetaStore::KeyValue>>(std::nullopt));
  Name(kStart + 1s, Fate::kCommitted);
  EXPECT_TRUE(keeper_.IsLeased(kStart + 1s));
  EXPECT_EQ(keeper_.rival(), "");
}

TEST_F(LeaseKeeperTest, ACommitWhoseAnswerWasLostIsLookedUp) {
  Grant(kStart, kStart, 3);
  Name(kStart, Fate::kUnknown);
  EXPECT_FALSE(keeper_.IsLeased(kStart));
  (void)Last<GetKey>();

  const MetaStore::KeyValue own{"nodes/n1", NodeRecord{7, 3, ""}.Encode(), 4};
  Answer(kStart, Result<std::optional<MetaStore::KeyValue>>(own));

  EXPECT_TRUE(keeper_.IsLeased(kStart));
}

class KeyMirrorTest : public testing::Test {
 protected:
  KeyMirrorTest() : mirror_({}, [this](const auto& keys) { changed_ = keys; }) {}

  template <class T>
  T Asked(TimePoint now) {
    mirror_.Step(now, out_);
    auto actions = out_.Take();
    EXPECT_EQ(actions.size(), 1U);
    call_ = actions.at(0).id;
    return std::get<T>(actions.at(0).call);
  }
  void Answer(Reply reply) { EXPECT_TRUE(mirror_.Take(kStart, {call_, std::move(reply)}, out_)); }
  void List(std::vector<MetaStore::KeyValue> entries, std::uint64_t revision) {
    Answer(Result<MetaStore::Page>(MetaStore::Page{std::move(entries), false, revision}));
  }
  // The store says what it is after a break, and what its revision is.
  static MetaStore::KeyValue Entry(const std::string& key, std::uint64_t revision) {
    return {key, {}, revision};
  }

  KeyMirror mirror_;
  Outbox out_;
  CallId call_ = 0;
  std::set<std::string> changed_;
};

TEST_F(KeyMirrorTest, AfterABreakItGoesOnBehindTheLastChange) {
  EXPECT_EQ(Asked<MetaStore::ListRequest>(kStart).revision, 0U);
  List({Entry("a", 3)}, 5);
  EXPECT_EQ(Asked<WatchKeys>(kStart).from_revision, 6U);
  Answer(MetaStore::News{
      MetaStore::News::Kind::kEvents, {{"b", std::vector<std::byte>{}, 8}}, std::nullopt});
  Answer(MetaStore::News{MetaStore::News::Kind::kBroken, {}, std::nullopt});

  EXPECT_EQ(Asked<WatchKeys>(kStart + 1s).from_revision, 9U);
  EXPECT_TRUE(mirror_.was_listed());
  EXPECT_NE(mirror_.Find("a"), nullptr);
  EXPECT_EQ(mirror_.Find("b")->mod_revision, 8U);
}

TEST_F(KeyMirrorTest, AfterACompactionItTellsWhatDiffers) {
  (void)Asked<MetaStore::ListRequest>(kStart);
  List({Entry("gone", 1), Entry("new", 2), Entry("same", 3)}, 5);
  (void)Asked<WatchKeys>(kStart);
  Answer(MetaStore::News{MetaStore::News::Kind::kCompacted, {}, std::nullopt});

  (void)Asked<MetaStore::ListRequest>(kStart + 1s);
  List({Entry("another", 9), Entry("new", 8), Entry("same", 3)}, 9);

  EXPECT_EQ(changed_, (std::set<std::string>{"another", "gone", "new"}));
  EXPECT_EQ(mirror_.Find("gone"), nullptr);
  EXPECT_EQ(mirror_.revision(), 9U);
}

TEST_F(KeyMirrorTest, AllPagesAreOfOneRevisionAndShownTogether) {
  (void)Asked<MetaStore::ListRequest>(kStart);
  Answer(Result<MetaStore::Page>(MetaStore::Page{{Entry("a", 1)}, true, 5}));
  EXPECT_FALSE(mirror_.was_listed());

  auto actions = out_.Take();
  const auto& next = std::get<MetaStore::ListRequest>(actions.at(0).call);
  EXPECT_EQ(next.after, "a");
  EXPECT_EQ(next.revision, 5U);
  call_ = actions.at(0).id;
  Answer(Result<MetaStore::Page>(Error{ErrorCode::kConflict, "compacted"}));

  EXPECT_EQ(Asked<MetaStore::ListRequest>(kStart + 1s).revision, 0U);  // From the beginning.
  EXPECT_EQ(mirror_.Find("a"), nullptr);
}

}  // namespace
}  // namespace ffrecord::server::cluster
