// Goal: publications through any nodes never pass a quota together, however old the views are from
// which they are made; they meet each other only where little is left of it.
// Method: one node whose view is brought up to date when the test says so, and commits that rest on
// that view.

#include "server/cluster/quota_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "one_node.h"
#include "seed.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

class QuotaSharesTest : public testing::Test {
 protected:
  // A commit as a publication makes it by what the node shows now.
  Result<MetaStore::Commit> Plan(const std::string& name, std::uint64_t size_bytes,
                                 std::uint64_t turn = 0) {
    const std::string key = Key(kDatasetKeys, name);
    const NameTable::Name* const shown = one_.node->view().names.Find(name);
    MetaStore::Commit commit;
    commit.compares.push_back({key, shown == nullptr ? 0 : shown->revision});
    DatasetRecord record;
    record.attempt = 1;
    record.size_bytes = size_bytes;
    commit.puts.push_back({key, record.Encode()});
    FFR_TRY(TakeQuotas(quotas_, one_.node->view(), name, size_bytes, turn, commit));
    return commit;
  }
  bool Commit(const MetaStore::Commit& commit) {
    const auto outcome = one_.state.TryCommit(commit, one_.now);
    return outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted;
  }
  bool Publish(const std::string& name, std::uint64_t size_bytes, std::uint64_t turn = 0) {
    const auto commit = Plan(name, size_bytes, turn);
    const bool is_done = commit && Commit(commit.value());
    one_.Run(0ms);
    return is_done;
  }
  void Remove(const std::string& name) { one_.Delete(Key(kDatasetKeys, name)); }
  // By the store itself.
  std::uint64_t SizeBelow(const std::string& prefix) const {
    std::uint64_t size_bytes = 0;
    const auto names = one_.state.List({Key(kDatasetKeys, prefix), "", 10'000, 0});
    for (const auto& entry : names.value().entries)
      size_bytes += DatasetRecord::Decode(entry.value).value().size_bytes;
    return size_bytes;
  }

  OneNode one_;
  NameQuotas quotas_{{"a/", 16'000}};
};

TEST_F(QuotaSharesTest, PublicationsAtTheSameTimeDoNotMeetWhereMuchIsLeft) {
  ASSERT_TRUE(Publish("a/first", 1));  // Deals the shares out.
  std::vector<MetaStore::Commit> commits;
  for (std::uint64_t i = 0; i < kShareCount; ++i)
    commits.push_back(Plan("a/" + std::to_string(i), 100, i).value());
  for (const auto& commit : commits) EXPECT_TRUE(Commit(commit));
}

TEST_F(QuotaSharesTest, NamesOfNoQuotaAndNamesThatDoNotGrowTakeNothing) {
  ASSERT_TRUE(Publish("a/1", 16'000));
  EXPECT_EQ(Plan("b/1", 99'000).value().puts.size(), 1U);
  EXPECT_EQ(Plan("a/1", 16'000).value().puts.size(), 1U);
  quotas_["a/"] = 10;  // Lowered below what is there.
  EXPECT_TRUE(Publish("a/1", 15'000));
  EXPECT_FALSE(Publish("a/1", 15'001));
}

TEST_F(QuotaSharesTest, OfTwoThatPassItTogetherOneIsCommitted) {
  for (const bool are_dealt : {false, true}) {
    if (are_dealt) {
      ASSERT_TRUE(Publish("a/first", 1));
    }
    const auto one = Plan("a/1", 9'000, 1).value();
    const auto other = Plan("a/2", 9'000, 2).value();
    EXPECT_TRUE(Commit(one));
    EXPECT_FALSE(Commit(other));
    one_.Run(0ms);

    const auto refused = Plan("a/2", 9'000, 2);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().system_errno, EDQUOT);
    Remove("a/1");
  }
}

TEST_F(QuotaSharesTest, AllOfItCanBeUsedThoughNoShareHasSoMuch) {
  ASSERT_TRUE(Publish("a/1", 1));
  EXPECT_TRUE(Publish("a/2", 9'000));
  EXPECT_TRUE(Publish("a/3", 6'999));
  EXPECT_FALSE(Publish("a/4", 1));
  EXPECT_EQ(SizeBelow("a/"), 16'000U);
}

TEST_F(QuotaSharesTest, WhatARemovalLeavesIsUsedAgain) {
  ASSERT_TRUE(Publish("a/1", 16'000));
  Remove("a/1");
  EXPECT_TRUE(Publish("a/2", 16'000));
}

TEST_F(QuotaSharesTest, AQuotaThatWasLoweredHoldsAtOnce) {
  ASSERT_TRUE(Publish("a/1", 1'000));  // The shares have the 15,000 that are left.
  quotas_["a/"] = 3'000;
  const auto one = Plan("a/2", 900, 1).value();
  const auto other = Plan("a/3", 900, 2).value();
  const auto third = Plan("a/4", 900, 3).value();
  EXPECT_TRUE(Commit(one));
  EXPECT_FALSE(Commit(other));
  EXPECT_FALSE(Commit(third));
}

TEST_F(QuotaSharesTest, SharesThatCannotBeReadGiveNothing) {
  ASSERT_TRUE(Publish("a/1", 1'000));
  for (std::uint32_t i = 0; i < kShareCount; ++i)
    one_.Put(ShareKeys{kQuotaKeys, "a/"}.KeyOf(i), OneNode::Bytes("rubbish"));
  const auto one = Plan("a/2", 10'000, 1).value();
  const auto other = Plan("a/3", 10'000, 2).value();
  EXPECT_TRUE(Commit(one));
  EXPECT_FALSE(Commit(other));
}

// A rebuild brings it back, and its bytes have been on the disks all the time.
TEST_F(QuotaSharesTest, ANameThatAnOlderStateOfTheStoreLacksCounts) {
  one_.Run(5s);
  const MetaState older = one_.state;
  ASSERT_TRUE(Publish("a/1", 12'000));
  one_.Run(5s);
  one_.PutBack(older);
  one_.Run(5s);
  ASSERT_EQ(one_.node->view().names.Find("a/1"), nullptr);

  const auto passing = Plan("a/2", 5'000);
  ASSERT_FALSE(passing);
  EXPECT_EQ(passing.error().system_errno, EDQUOT);
  EXPECT_TRUE(Publish("a/2", 4'000));
  EXPECT_FALSE(Plan("a/3", 1));
  EXPECT_TRUE(Publish("a/1", 12'000));  // It replaces the one that is away.

  auto history = HistoryRecord::Decode(one_.state.Get(kHistoryKey)->value).value();
  history.Confirm(one_.RevisionOf(std::string(kHistoryKey)));
  one_.Put(std::string(kHistoryKey), history.Encode());
  Remove("a/1");
  one_.Run(5s);
  EXPECT_TRUE(Publish("a/3", 12'000));  // Nothing comes back any more.
}

TEST_F(QuotaSharesTest, NoQuotaIsEverPassed) {
  quotas_ = {{"a/", 4'000}, {"a/b/", 1'500}};
  const auto seed = test::Seed();
  std::mt19937_64 random(seed);
  std::uint64_t most_bytes = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<MetaStore::Commit> commits;
    for (int i = 0; i < 4; ++i) {
      const std::string name = (random() % 2 ? "a/" : "a/b/") + std::to_string(random() % 8);
      if (random() % 4 == 0) {
        MetaStore::Commit removal;
        removal.deletes.push_back(Key(kDatasetKeys, name));
        commits.push_back(removal);
      } else if (auto plan = Plan(name, random() % 900, random())) {
        commits.push_back(std::move(plan).value());
      }
    }
    for (const auto& commit : commits) {
      (void)Commit(commit);
      ASSERT_LE(SizeBelow("a/"), 4'000U) << "seed " << seed;
      ASSERT_LE(SizeBelow("a/b/"), 1'500U) << "seed " << seed;
    }
    most_bytes = std::max(most_bytes, SizeBelow("a/"));
    if (random() % 3 != 0) one_.Run(0ms);  // Else the next round rests on an older view.
  }
  EXPECT_GT(most_bytes, 3'000U) << "seed " << seed;  // It was a limit.
}

}  // namespace
}  // namespace ffrecord::server::cluster
