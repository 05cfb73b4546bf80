// Goal: a change of a name has one effect however often it is sent, and takes nothing away that was
// published after its client looked.
// Method: a daemon that is a script: it has one name, which others change, and loses answers.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/dataset/catalog.h"
#include "fake_daemon.h"
#include "libffrecord/net/protocol/begun_request.h"
#include "libffrecord/net/rpc/session.h"
#include "one_daemon.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using Mode = net::Publish::Mode;
using net::FrameType;
using test::FakeDaemon;
using test::OneFile;

net::Deadline Soon() { return net::Clock::now() + 60s; }

// "name" is at a revision, or is not there: 0.
class NameChangesTest : public testing::Test {
 protected:
  Catalog catalog() const { return Catalog(test::OneDaemon(daemon_.address())); }
  Result<void> Remove() const { return catalog().Remove("name", Soon()); }
  Result<std::uint64_t> Replace() const {
    return catalog().Publish("name", OneFile(10), Mode::kReplace, 0, Soon());
  }
  static Result<void> WithoutValue(const Result<std::uint64_t>& result) {
    return result ? Result<void>() : result.error();
  }
  void OthersPublish() { revision_ = ++last_; }

  std::uint64_t revision_ = 0, last_ = 10;
  std::function<void()> before_ = [] {};  // Of the next change, once.
  std::function<void()> after_;           // Likewise; its answer is lost.
  std::function<void()> late_;            // Likewise; the daemon gives it up before it is done.
  ErrorCode look_ = ErrorCode::kOk;       // Of questions for the name.
  ErrorCode refusal_ = ErrorCode::kOk;    // Of changes that the name would allow.
  int busy_ = 0;                          // So many changes are not begun.
  std::vector<net::Publish> publications_;
  std::vector<net::Delete> removals_;

 private:
  bool Answer(FakeDaemon::Request& request) {
    if (request.header.type == FrameType::kList) return Look(request);
    if (busy_ > 0) {
      --busy_;
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{5}.Encode());
      return true;
    }
    std::exchange(before_, [] {})();
    const ErrorCode done = request.header.type == FrameType::kDelete
                               ? Remove(net::Delete::Decode(request.body).value())
                               : Publish(net::Publish::Decode(request.body).value());
    if (after_) {
      std::exchange(after_, nullptr)();
      return false;
    }
    if (late_) {
      std::exchange(late_, nullptr)();
      FakeDaemon::SendError(request, ErrorCode::kUnavailable, net::kBegunErrno);
      return true;
    }
    if (done != ErrorCode::kOk)
      FakeDaemon::SendError(request, done);
    else if (request.header.type == FrameType::kDelete)
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kDelete), {});
    else
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPublish),
                       net::RevisionReply{revision_}.Encode());
    return true;
  }
  bool Look(FakeDaemon::Request& request) {
    net::ListReply reply;
    if (revision_ != 0) reply.entries.push_back({"name", revision_, 10, 1});
    if (look_ == ErrorCode::kOk)
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kList), reply.Encode());
    else
      FakeDaemon::SendError(request, look_);
    return true;
  }
  // As the daemon's catalog does.
  ErrorCode Remove(const net::Delete& request) {
    removals_.push_back(request);
    if (revision_ == 0) return ErrorCode::kNotFound;
    if (request.expected_revision != 0 && request.expected_revision != revision_)
      return ErrorCode::kConflict;
    revision_ = 0;
    return ErrorCode::kOk;
  }
  ErrorCode Publish(const net::Publish& request) {
    const bool is_ours = !publications_.empty() && request.attempt == ours_;
    publications_.push_back(request);
    if (is_ours && revision_ == our_revision_) return ErrorCode::kOk;
    if (refusal_ != ErrorCode::kOk) return refusal_;
    if (request.mode == Mode::kCreate && revision_ != 0) return ErrorCode::kConflict;
    if (request.mode == Mode::kSwap && request.expected_revision != revision_)
      return ErrorCode::kConflict;
    ours_ = request.attempt;
    our_revision_ = revision_ = ++last_;
    return ErrorCode::kOk;
  }

  std::uint64_t ours_ = 0, our_revision_ = 0;
  FakeDaemon daemon_{[this](FakeDaemon::Request& request) { return Answer(request); }};
};

TEST_F(NameChangesTest, AReplacementRestsOnWhatItsClientSaw) {
  ASSERT_TRUE(Replace());
  ASSERT_TRUE(Replace());
  ASSERT_EQ(publications_.size(), 2U);
  EXPECT_EQ(publications_[0].mode, Mode::kCreate);
  EXPECT_EQ(publications_[1].mode, Mode::kSwap);
  EXPECT_EQ(publications_[1].expected_revision, 11U);
}

TEST_F(NameChangesTest, ARemovalRestsOnWhatItsClientSaw) {
  OthersPublish();
  ASSERT_TRUE(Remove());
  EXPECT_EQ(removals_.at(0).expected_revision, 11U);
  EXPECT_EQ(Remove().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(removals_.at(1).expected_revision, UINT64_MAX);  // No name is at it.
}

TEST_F(NameChangesTest, WhatOthersPublishWhileTheAnswerToARemovalIsLostStays) {
  OthersPublish();
  after_ = [this] { OthersPublish(); };
  const auto removed = Remove();
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ErrorCode::kConflict);
  EXPECT_NE(removed.error().message.find("may have taken effect"), std::string::npos);
  EXPECT_EQ(revision_, 12U);
}

TEST_F(NameChangesTest, WhatOthersPublishWhileTheAnswerToAReplacementIsLostStays) {
  for (const bool is_there : {false, true}) {
    revision_ = is_there ? last_ : 0;
    after_ = [this] { OthersPublish(); };
    const auto replaced = Replace();
    ASSERT_FALSE(replaced);
    EXPECT_EQ(replaced.error().code, ErrorCode::kConflict);
    EXPECT_NE(replaced.error().message.find("may have taken effect"), std::string::npos);
    EXPECT_EQ(revision_, last_);
  }
}

TEST_F(NameChangesTest, AChangeWhoseAnswerWasLostIsDone) {
  OthersPublish();
  after_ = [] {};
  EXPECT_EQ(Replace().value(), 12U);
  EXPECT_EQ(publications_.at(0).attempt, publications_.at(1).attempt);
  after_ = [] {};
  EXPECT_TRUE(Remove());
}

// A daemon whose disk hangs gives a change up, and carries it out when the disk answers.
TEST_F(NameChangesTest, AChangeThatWasGivenUpAndIsCarriedOutIsDone) {
  OthersPublish();
  late_ = [] {};
  EXPECT_EQ(Replace().value(), 12U);
  late_ = [] {};
  EXPECT_TRUE(Remove());
}

TEST_F(NameChangesTest, WhatOthersPublishOverAChangeThatWasGivenUpStays) {
  OthersPublish();
  for (const bool removes : {false, true}) {
    late_ = [this] { OthersPublish(); };
    const Result<void> changed = removes ? Remove() : WithoutValue(Replace());
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().code, ErrorCode::kConflict);
    EXPECT_NE(changed.error().message.find("may have taken effect"), std::string::npos);
    EXPECT_EQ(revision_, last_);
  }
}

TEST_F(NameChangesTest, WhoeverIsThereReplacesAndRemovesWhatOthersPublishMeanwhile) {
  for (const bool is_there : {false, true}) {
    revision_ = is_there ? last_ : 0;
    before_ = [this] { OthersPublish(); };
    EXPECT_EQ(Replace().value(), last_);
    const auto count = publications_.size();
    EXPECT_NE(publications_.at(count - 1).attempt, publications_.at(count - 2).attempt);
    before_ = [this] { OthersPublish(); };
    EXPECT_TRUE(Remove());
    EXPECT_EQ(revision_, 0U);
  }
}

TEST_F(NameChangesTest, WhoMayNotLookChangesWhateverThereIs) {
  OthersPublish();
  look_ = ErrorCode::kDenied;
  ASSERT_TRUE(Replace());
  EXPECT_EQ(publications_.at(0).mode, Mode::kReplace);
  ASSERT_TRUE(Remove());
  EXPECT_EQ(removals_.at(0).expected_revision, 0U);
}

// As of extents that are gone; or at a daemon whose names the cluster does not have yet.
TEST_F(NameChangesTest, AnotherConflictThanTheNamesIsTold) {
  OthersPublish();
  refusal_ = ErrorCode::kConflict;
  EXPECT_EQ(Replace().error().code, ErrorCode::kConflict);
  ASSERT_EQ(publications_.size(), 2U);
  EXPECT_EQ(publications_[1].mode, Mode::kReplace);
}

TEST_F(NameChangesTest, ARemovalThatABusyDaemonDidNotTakeIsNotDone) {
  busy_ = 1;
  EXPECT_EQ(Remove().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(removals_.size(), 1U);
}

}  // namespace
}  // namespace ffrecord::client
