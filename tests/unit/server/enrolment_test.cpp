// Goal: a node takes part only once it is known to be of this cluster and has been let in.
// Method: the machine alone, over a store in the test's hands.

#include "server/service/cluster/enrolment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "server/metadata/meta_state.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using cluster::MemberRecord;
using cluster::WaitingRecord;
using State = MemberRecord::State;

class EnrolmentTest : public testing::Test {
 protected:
  void Run(Enrolment& node, std::chrono::milliseconds time = 3s) {
    for (const auto end = now_ + time; now_ < end; now_ += 100ms) {
      node.Step(now_, out_);
      for (auto& action : out_.Take()) {
        const auto* const get = std::get_if<cluster::GetKey>(&action.call);
        if (get != nullptr)
          (void)node.Take(
              now_, {action.id, Result<std::optional<MetaStore::KeyValue>>(store_.Get(get->key))});
        else
          (void)node.Take(
              now_, {action.id, store_.TryCommit(std::get<MetaStore::Commit>(action.call), now_)});
      }
    }
  }
  std::optional<MemberRecord> Member(const std::string& node) const {
    const auto found = store_.Get(cluster::Key(cluster::kMemberKeys, node));
    return found ? std::optional(MemberRecord::Decode(found->value).value()) : std::nullopt;
  }
  std::optional<WaitingRecord> Waiting(const std::string& node) const {
    const auto found = store_.Get(cluster::Key(cluster::kWaitingKeys, node));
    return found ? std::optional(WaitingRecord::Decode(found->value).value()) : std::nullopt;
  }
  void Set(const std::string& node, State state) {
    MemberRecord record = *Member(node);
    record.state = state;
    (void)store_.TryCommit({{}, {{cluster::Key(cluster::kMemberKeys, node), record.Encode()}}, {}},
                           now_);
  }

  cluster::TimePoint now_{1'000s};
  MetaState store_;
  cluster::Outbox out_;
};

TEST_F(EnrolmentTest, TheFounderLetsItselfInByTheCommitThatFounds) {
  Enrolment founder({"n1", "r1", 5, std::nullopt});
  Run(founder);
  EXPECT_TRUE(founder.is_done());
  EXPECT_EQ(Member("n1"), (MemberRecord{State::kIn, 5, "r1"}));
  EXPECT_EQ(store_.Get(std::string(cluster::kClusterKey))->mod_revision,
            store_.Get("members/n1")->mod_revision);
}

TEST_F(EnrolmentTest, ALaterOneWaitsUntilItIsLetIn) {
  Enrolment founder({"n1", "r1", 1, std::nullopt});
  Run(founder);
  Enrolment later({"n2", "r2", 1, std::nullopt});
  Run(later, 20s);
  EXPECT_FALSE(later.is_done());
  EXPECT_NE(later.trouble().find("cluster approve"), std::string::npos) << later.trouble();
  EXPECT_EQ(Member("n2"), (MemberRecord{State::kWaiting, 1, "r2"}));

  Set("n2", State::kIn);
  Run(later);
  EXPECT_TRUE(later.is_done());
  EXPECT_EQ(later.trouble(), "");
}

// An operator decides by it.
TEST_F(EnrolmentTest, OneThatWaitsSaysSinceWhenAndWhichDaemonItIs) {
  Enrolment founder({"n1", "r1", 1, std::nullopt});
  Run(founder);
  EXPECT_EQ(Waiting("n1"), std::nullopt);
  Enrolment first({"n2", "r2", 1, {}, cluster::kFeatureLevel, {1'000, "host2:1", "d2"}});
  Run(first, 20s);
  EXPECT_EQ(Waiting("n2"), (WaitingRecord{1'000, "host2:1", "d2"}));
  // The same daemon, started again at another address, has waited since then; another one has not.
  Enrolment again({"n2", "r2", 1, {}, cluster::kFeatureLevel, {2'000, "host3:1", "d2"}});
  Run(again, 20s);
  EXPECT_EQ(Waiting("n2"), (WaitingRecord{1'000, "host3:1", "d2"}));
  Enrolment other({"n2", "r2", 1, {}, cluster::kFeatureLevel, {3'000, "host4:1", "d4"}});
  Run(other, 20s);
  EXPECT_EQ(Waiting("n2"), (WaitingRecord{3'000, "host4:1", "d4"}));
  EXPECT_NE(other.trouble().find("cluster approve"), std::string::npos) << other.trouble();

  Set("n2", State::kIn);
  Run(other);
  EXPECT_TRUE(other.is_done());
}

TEST_F(EnrolmentTest, WhatItIsToldOfItselfChangesAndWhatOperatorsSaidStays) {
  Enrolment founder({"n1", "r1", 1, std::nullopt});
  Run(founder);
  for (const State state : {State::kDraining, State::kWaiting}) {
    Set("n1", state);
    const auto weight = static_cast<std::uint32_t>(state) + 7;
    Enrolment again({"n1", "r9", weight, founder.cluster()});
    Run(again);
    EXPECT_EQ(again.is_done(), state != State::kWaiting);
    EXPECT_EQ(Member("n1"), (MemberRecord{state, weight, "r9"}));
  }
}

TEST_F(EnrolmentTest, OfTwoThatFoundAtTheSameTimeOneDoes) {
  Enrolment one({"n1", "r1", 1, std::nullopt});
  Enrolment other({"n2", "r2", 1, std::nullopt});
  for (int i = 0; i < 50; ++i) {
    Run(one, 100ms);
    Run(other, 100ms);
  }
  EXPECT_TRUE(one.is_done());
  EXPECT_FALSE(other.is_done());
  EXPECT_EQ(one.cluster(), other.cluster());
  const auto id = store_.Get(std::string(cluster::kClusterKey))->value;
  EXPECT_TRUE(std::ranges::equal(id, *one.cluster()));
  EXPECT_EQ(Member("n1")->state, State::kIn);
  EXPECT_EQ(Member("n2")->state, State::kWaiting);
}

TEST_F(EnrolmentTest, WhatOperatorsSayMeanwhileIsNotWrittenOver) {
  Enrolment founder({"n1", "r1", 1, std::nullopt});
  Run(founder);
  Enrolment again({"n1", "r1", 8, founder.cluster()});
  Run(again, 300ms);  // It has looked at the cluster, at the level and at its member.
  EXPECT_EQ(Member("n1")->weight, 1U);
  Set("n1", State::kOut);
  Run(again);
  EXPECT_TRUE(again.is_done());
  EXPECT_EQ(Member("n1"), (MemberRecord{State::kOut, 8, "r1"}));
}

TEST_F(EnrolmentTest, TheFounderRecordsTheLevelThatItKnows) {
  Enrolment founder({"n1", "r1", 1, std::nullopt, 4});
  Run(founder);
  const auto level = store_.Get(std::string(cluster::kLevelKey));
  ASSERT_TRUE(level);
  EXPECT_EQ(cluster::LevelRecord::Decode(level->value).value().level, 4U);
}

TEST_F(EnrolmentTest, ADamagedIdOfTheClusterIsNotBelieved) {
  (void)store_.TryCommit({{}, {{std::string(cluster::kClusterKey), {std::byte{1}}}}, {}}, now_);
  for (const auto& known : {std::optional<net::ClusterId>(), std::optional(net::ClusterId{})}) {
    Enrolment node({"n1", "r1", 1, known});
    Run(node);
    EXPECT_FALSE(node.is_done());
    EXPECT_NE(node.trouble().find("is damaged"), std::string::npos) << node.trouble();
  }
}

TEST_F(EnrolmentTest, AStoreThatHasLostTheClusterIsLeftEmptyUntilAnOperatorWantsIt) {
  const net::ClusterId id{std::byte{9}};
  Enrolment node({"n1", "r1", 1, id});
  Run(node, 10s);
  EXPECT_FALSE(node.is_done());
  EXPECT_TRUE(node.finds_nothing());
  EXPECT_TRUE(store_.List({}).value().entries.empty());

  MetaStore::Commit keys;
  keys.puts.push_back({std::string(cluster::kLevelKey), cluster::LevelRecord{1}.Encode()});
  node.BeginAnew(keys);
  Run(node);
  EXPECT_TRUE(node.is_done());
  EXPECT_EQ(node.cluster(), id);
  EXPECT_EQ(Member("n1")->state, State::kIn);
}

// Else a restore that goes on at the same time would be founded as if it were whole.
TEST_F(EnrolmentTest, ItIsFoundedAgainOnceAndOnlyAsTheOperatorHasSeenIt) {
  const net::ClusterId id{std::byte{9}};
  Enrolment node({"n1", "r1", 1, id});
  Run(node);
  MetaStore::Commit keys;
  keys.compares.push_back({"restore", 7});
  node.BeginAnew(keys);
  Run(node, 10s);
  EXPECT_FALSE(node.is_done());

  (void)store_.TryCommit({{}, {{"restore", {}}}, {}}, now_);
  keys.compares.front().mod_revision = store_.revision();
  Run(node, 10s);  // Nobody has asked again.
  EXPECT_FALSE(node.is_done());
  node.BeginAnew(keys);
  Run(node);
  EXPECT_TRUE(node.is_done());
}

TEST_F(EnrolmentTest, AClusterAboveItsLevelIsNotEntered) {
  Enrolment founder({"n1", "r1", 1, std::nullopt, 4});
  Run(founder);
  Enrolment older({"n2", "r2", 1, std::nullopt, 3});
  Run(older);
  EXPECT_FALSE(older.is_done());
  EXPECT_NE(older.trouble().find("level 4"), std::string::npos) << older.trouble();
  EXPECT_FALSE(Member("n2"));
}

TEST_F(EnrolmentTest, DataOfAnotherClusterIsNotBroughtIn) {
  Enrolment founder({"n1", "r1", 1, std::nullopt});
  Run(founder);
  Enrolment stray({"n2", "r2", 1, net::ClusterId{std::byte{9}}});
  Run(stray, 10s);
  EXPECT_FALSE(stray.is_done());
  EXPECT_NE(stray.trouble().find("belongs to"), std::string::npos) << stray.trouble();
  EXPECT_FALSE(Member("n2"));
}

}  // namespace
}  // namespace ffrecord::server
