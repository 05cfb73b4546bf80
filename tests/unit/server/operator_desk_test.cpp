// Goal: an operator's change is refused with its reason, or is made once, or says that it may have
// been made; and the operator hears in time.
// Method: the rooms of one node, stepped by a clock of the test.

#include "server/service/cluster/operator_desk.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "node_rooms.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using cluster::MemberRecord;

class OperatorDeskTest : public testing::Test {
 protected:
  static ClusterOptions Options() {
    ClusterOptions options;
    options.node = options.domain = "n1";
    options.replicas = 1;
    options.lease = 10min;  // It ends in no test.
    return options;
  }
  template <class T>
  auto Done() {
    return [this](const Result<T>& result) {
      ++answered_;
      error_ = result ? std::nullopt : std::optional(result.error());
    };
  }
  void Join() {
    rooms_.RunFor(2s);
    ASSERT_TRUE(rooms_.machines().view().mirror.was_listed()) << rooms_.machines().Trouble();
    rooms_.Put("members/n2", MemberRecord{}.Encode());
    rooms_.RunFor(1s);
  }
  void Set(net::MemberState state, const std::string& node = "n2") {
    rooms_.operators().SetMember({state, node}, Done<void>());
  }
  MemberRecord::State StateOf(const std::string& node) const {
    return MemberRecord::Decode(rooms_.Get("members/" + node)->value).value().state;
  }
  void ExpectRefused(ErrorCode code, const std::string& why) {
    ASSERT_EQ(answered_, 1);
    ASSERT_TRUE(error_);
    EXPECT_EQ(error_->code, code) << error_->message;
    EXPECT_NE(error_->message.find(why), std::string::npos) << error_->message;
  }
  void ExpectMade() {
    ASSERT_EQ(answered_, 1);
    EXPECT_FALSE(error_) << error_->message;
  }

  int answered_ = 0;
  std::optional<Error> error_;
  test::NodeRooms rooms_{Options()};  // Last: its answers may come as it ends.
};

TEST_F(OperatorDeskTest, ANodeThatDoesNotTakePartRefusesAtOnce) {
  rooms_.way().Cut();
  Set(net::MemberState::kOut);
  rooms_.RunFor(50ms);
  ExpectRefused(ErrorCode::kUnavailable, "does not take part in its cluster");
}

TEST_F(OperatorDeskTest, AMemberIsCountedOutOnce) {
  Join();
  Set(net::MemberState::kOut);
  rooms_.RunFor(1s);
  ExpectMade();
  EXPECT_EQ(StateOf("n2"), MemberRecord::State::kOut);
  const auto revision = rooms_.Get("members/n2")->mod_revision;

  Set(net::MemberState::kOut);

  rooms_.RunFor(1s);
  EXPECT_EQ(answered_, 2);
  EXPECT_FALSE(error_);
  EXPECT_EQ(rooms_.Get("members/n2")->mod_revision, revision);
}

TEST_F(OperatorDeskTest, ANodeThatIsNoMemberIsNotFound) {
  Join();
  Set(net::MemberState::kOut, "n9");
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kNotFound, "no member n9");
}

TEST_F(OperatorDeskTest, ANodeWithoutAnotherDomainIsNotDrained) {
  Join();
  Set(net::MemberState::kDraining);
  rooms_.RunFor(1s);
  // This one is of another domain, and up.
  ExpectMade();
  answered_ = 0;
  Set(net::MemberState::kDraining, "n1");
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kConflict, "n1 cannot be drained: 0 other failure domains are up");
}

// Nothing that is not known yet is known not to be.
TEST_F(OperatorDeskTest, BeforeTheMetadataWasReadAChangeWaitsAndThenSaysWhy) {
  rooms_.way().CutLists();
  rooms_.RunFor(2s);
  ASSERT_TRUE(rooms_.machines().is_enrolled()) << rooms_.machines().Trouble();
  Set(net::MemberState::kOut);
  rooms_.RunFor(7900ms);
  EXPECT_EQ(answered_, 0);
  rooms_.RunFor(200ms);
  ExpectRefused(ErrorCode::kUnavailable, "has not read the metadata");
}

TEST_F(OperatorDeskTest, AChangeBeginsOnceTheMetadataIsRead) {
  rooms_.way().CutLists();
  rooms_.RunFor(2s);
  rooms_.Put("members/n2", MemberRecord{}.Encode());
  Set(net::MemberState::kOut);
  rooms_.RunFor(1s);
  EXPECT_EQ(answered_, 0);

  rooms_.way().MendLists();

  rooms_.RunFor(5s);
  ExpectMade();
  EXPECT_EQ(StateOf("n2"), MemberRecord::State::kOut);
}

// It may have been made by one of the tries.
TEST_F(OperatorDeskTest, AChangeWhoseAnswersAreLostIsTriedUntilItsTimeIsOverAndMayBeMade) {
  Join();
  int tries = 0;
  rooms_.way().LoseCommits("members/n2", [&] { ++tries; });
  Set(net::MemberState::kOut);
  rooms_.RunFor(7900ms);
  EXPECT_EQ(answered_, 0);
  EXPECT_GT(tries, 10);
  rooms_.RunFor(500ms);
  ASSERT_EQ(answered_, 1);
  ASSERT_TRUE(error_);
  EXPECT_NE(error_->message.find("may still take effect"), std::string::npos) << error_->message;
}

TEST_F(OperatorDeskTest, AChangeThatAnotherOperatorOvertakesIsDecidedAnew) {
  Join();
  rooms_.way().HoldCommits();
  Set(net::MemberState::kDraining);
  rooms_.RunFor(50ms);
  MemberRecord out;
  out.state = MemberRecord::State::kOut;
  rooms_.Put("members/n2", out.Encode());

  rooms_.way().ReleaseCommits();

  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kConflict, "nothing to drain");
}

TEST_F(OperatorDeskTest, TheLevelIsNeverLowered) {
  Join();
  ASSERT_GT(rooms_.machines().node().level(), 1U);
  rooms_.operators().RaiseLevel(1, Done<std::uint32_t>());
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kInvalidArgument, "a level is never lowered");
}

TEST_F(OperatorDeskTest, AnOperatorWhoWaitsIsAnsweredWhenTheDaemonStops) {
  Join();
  rooms_.way().HoldNews();
  Set(net::MemberState::kOut);
  rooms_.RunFor(1s);
  EXPECT_EQ(answered_, 0);  // It is made, and not shown yet.

  rooms_.End();

  ExpectMade();
}

}  // namespace
}  // namespace ffrecord::server
