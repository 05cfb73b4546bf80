// Goal: what is uploaded below a prefix and not published never passes the quota of that prefix,
// through whichever nodes, however old the views are by which they decide; what is published or was
// given up does not count.
// Method: one node whose view is brought up to date when the test says so, and commits that rest on
// that view; then uploads as the node begins them.

#include "server/cluster/upload_quotas.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "one_node.h"
#include "seed.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr std::uint64_t kUpload = 7;

class UploadQuotasTest : public testing::Test {
 protected:
  UploadRoom Room(std::uint32_t number, std::uint64_t size_bytes, const std::string& owner = "a/",
                  std::uint64_t upload = kUpload) const {
    return RoomOf(MakeExtentId(upload, 0, number), size_bytes, owner, quotas_);
  }
  // What has come of beginning that extent: 0 or the errno of its refusal.
  int Begin(const UploadRoom& room) {
    const auto request = one_.node->BeginUpload(UploadOf(room.id), one_.now + 5s, room);
    one_.Run(6s);
    for (const auto& finished : one_.node->TakeFinished())
      if (finished.request == request)
        return finished.result ? 0 : finished.result.error().system_errno;
    return -1;
  }
  std::uint64_t Pending() const {
    std::uint64_t size_bytes = 0;
    const auto pending = one_.state.List({std::string(kPendingKeys), "", 10'000, 0});
    for (const auto& entry : pending.value().entries)
      size_bytes += PendingRecord::Decode(entry.value).value().size_bytes;
    return size_bytes;
  }
  Result<MetaStore::Commit> Plan(const UploadRoom& room, std::uint64_t turn) const {
    MetaStore::Commit commit;
    FFR_TRY(TakeRoom(one_.node->view(), room, turn, commit));
    return commit;
  }
  bool Commit(const MetaStore::Commit& commit) {
    const auto outcome = one_.state.TryCommit(commit, one_.now);
    return outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted;
  }

  OneNode one_{""};  // It leads.
  NameQuotas quotas_{{"a/", 10}};
};

TEST_F(UploadQuotasTest, WhatIsNotPublishedCountsFromItsBeginning) {
  EXPECT_EQ(Begin(Room(0, 11)), EDQUOT);
  EXPECT_EQ(Begin(Room(0, 8)), 0);
  EXPECT_EQ(Begin(Room(0, 8)), 0);  // At another node, say.
  EXPECT_EQ(Begin(Room(1, 3)), EDQUOT);
  EXPECT_EQ(Begin(Room(1, 3, "a/b/")), EDQUOT);
  EXPECT_EQ(Begin(Room(1, 2, "a/b/")), 0);
  EXPECT_EQ(Begin(Room(2, 1'000, "b/")), 0);
  EXPECT_EQ(Begin(Room(3, 1'000, "")), 0);  // Who may write anywhere is held to names only.
  EXPECT_EQ(Pending(), 10U);
}

TEST_F(UploadQuotasTest, AnExtentCountsWithItsLargestSizeAndForItsFirstOwner) {
  EXPECT_EQ(Begin(Room(0, 4)), 0);
  EXPECT_EQ(Begin(Room(0, 9)), 0);
  EXPECT_EQ(Begin(Room(0, 1, "a/b/")), 0);
  EXPECT_EQ(Pending(), 9U);
  EXPECT_EQ(Begin(Room(0, 11)), EDQUOT);
  EXPECT_EQ(Begin(Room(1, 2)), EDQUOT);
  EXPECT_EQ(Begin(Room(1, 1)), 0);
}

TEST_F(UploadQuotasTest, WhoLetsAnExtentOfOthersGrowIsHeldToTheirQuota) {
  quotas_ = {{"a/", 10}, {"b/", 10}};
  EXPECT_EQ(Begin(Room(0, 4, "b/")), 0);
  EXPECT_EQ(Begin(Room(1, 5, "b/")), 0);
  EXPECT_EQ(Begin(Room(0, 6, "a/")), EDQUOT);
  EXPECT_EQ(Begin(Room(0, 5, "a/")), 0);
  EXPECT_EQ(Begin(Room(2, 1, "b/")), EDQUOT);
  EXPECT_EQ(Begin(Room(3, 10, "a/")), 0);
}

// Shares that were dealt out before do not keep the room of the quota that they are of.
TEST_F(UploadQuotasTest, AQuotaThatIsLoweredHoldsAtOnce) {
  quotas_ = {{"a/", 1'000}};
  EXPECT_EQ(Begin(Room(0, 400)), 0);
  quotas_ = {{"a/", 700}};  // As much as the shares have, and some of that is taken.
  EXPECT_EQ(Begin(Room(1, 301)), EDQUOT);
  std::uint32_t number = 1;
  while (number < 100 && Begin(Room(number, 20)) == 0) ++number;
  EXPECT_EQ(number, 16U);
  EXPECT_EQ(Pending(), 700U);

  quotas_ = {{"a/", 1'000}};
  EXPECT_EQ(Begin(Room(100, 300)), 0);
  quotas_ = {{"a/", 300}};
  EXPECT_EQ(Begin(Room(101, 1)), EDQUOT);
}

// So many as the settings of a cluster allow: all of them are dealt out in one commit.
TEST_F(UploadQuotasTest, SixQuotasMayHoldForAnExtent) {
  quotas_ = {};
  std::string owner;
  for (std::uint64_t i = 0; i < 6; ++i) quotas_[owner += "a/"] = 20 - i;
  EXPECT_EQ(Begin(Room(0, 11, owner)), 0);
  EXPECT_EQ(Begin(Room(1, 4, owner)), 0);
  EXPECT_EQ(Begin(Room(2, 1, owner)), EDQUOT);
}

// A refusal is final, so it rests on what is published by then.
TEST_F(UploadQuotasTest, NothingIsRefusedForWhatHasBeenPublishedMeanwhile) {
  EXPECT_EQ(Begin(Room(0, 8)), 0);
  one_.is_watch_silent = true;
  one_.Publish("a/x", {{MakeExtentId(kUpload, 0, 0), 8, 1}}, 2, 99);
  one_.Put(std::string(kGenerationKey), {});
  const UploadRoom room = Room(0, 5, "a/", 8);
  one_.node->BeginUpload(UploadOf(room.id), one_.now + 20s, room);
  one_.Run(1s);
  EXPECT_TRUE(one_.node->TakeFinished().empty());

  one_.is_watch_silent = false;
  one_.Run(9s);
  const auto finished = one_.node->TakeFinished();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_TRUE(finished.front().result) << finished.front().result.error().message;
}

// Whether the pending is published under a name whose manifest is on no node cannot be told.
TEST_F(UploadQuotasTest, WhoPassesItWhileAManifestIsMissingHearsOfBoth) {
  EXPECT_EQ(Begin(Room(0, 8)), 0);
  one_.lost_bodies.insert(99);
  one_.Publish("a/lost", {{MakeExtentId(8, 0, 0), 1, 1}}, 2, 99);
  const UploadRoom room = Room(1, 5);
  one_.node->BeginUpload(UploadOf(room.id), one_.now + 10s, room);
  one_.Run(9s);

  const auto finished = one_.node->TakeFinished();
  ASSERT_EQ(finished.size(), 1U);
  const auto& result = finished.front().result;
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
  for (const char* const text : {"quota of 10", "a/lost", "start the nodes"})
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}

TEST_F(UploadQuotasTest, WhatIsPublishedOrGivenUpDoesNotCountAndItsRecordGoes) {
  EXPECT_EQ(Begin(Room(0, 8)), 0);
  EXPECT_EQ(Begin(Room(0, 5, "a/", 8)), EDQUOT);
  one_.Publish("a/x", {{MakeExtentId(kUpload, 0, 0), 8, 1}}, 2, 99);
  EXPECT_EQ(Begin(Room(0, 10, "a/", 8)), 0);
  one_.Delete(UploadKey(8));
  EXPECT_EQ(Begin(Room(0, 9, "a/", 9)), 0);
  one_.Run(5s);
  EXPECT_EQ(Pending(), 9U);
}

// Its upload is open for long, and its record may still be there, as no leader has looked since.
TEST_F(UploadQuotasTest, WhatWasPublishedAndRemovedIsNoUploadAgain) {
  EXPECT_EQ(Begin(Room(0, 8)), 0);
  const ExtentId id = MakeExtentId(kUpload, 0, 0);
  const TombstoneRecord tombstone{1h, 0, RunsOf({id})};
  one_.Put(Key(kTombstoneKeys, "x"), tombstone.Encode());
  ASSERT_EQ(Pending(), 8U);

  EXPECT_EQ(Begin(Room(0, 10, "a/", 8)), 0);
  one_.Run(5s);
  EXPECT_EQ(Pending(), 10U);
}

// Views of one time, commits one after another.
TEST_F(UploadQuotasTest, OfThoseThatPassItTogetherNotAllAreCommitted) {
  const std::uint32_t seed = test::Seed();
  std::mt19937_64 random(seed);
  quotas_ = {{"a/", 10'000}, {"a/b/", 3'000}};
  one_.Put(UploadKey(kUpload), {});
  std::uint32_t number = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<MetaStore::Commit> commits;
    for (std::uint64_t i = 0; i < 5; ++i) {
      const bool is_below = random() % 2 == 0;
      const auto plan =
          Plan(Room(number++, 1 + random() % 900, is_below ? "a/b/" : "a/"), random());
      if (plan) commits.push_back(plan.value());
    }
    for (const auto& commit : commits) Commit(commit);
    ASSERT_LE(Pending(), 10'000U) << "seed " << seed;
    one_.Run(0ms);
  }
  EXPECT_GT(Pending(), 9'000U);
}

}  // namespace
}  // namespace ffrecord::server::cluster
