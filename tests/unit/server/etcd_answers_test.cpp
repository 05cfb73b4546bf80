// Goal: whatever a member of etcd answers, or does not, a commit is sent once, everything else goes
// on at the next member, and what is told is no more than what is known.
// Method: members that answer as the tests say.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "bytes.h"
#include "libffrecord/base/clock.h"
#include "scripted_member.h"
#include "server/metadata/etcd_store.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using test::ScriptedMember;
using Answer = ScriptedMember::Answer;
using Request = ScriptedMember::Request;
using Fate = MetaStore::Outcome::Fate;

constexpr const char* kRange = "/v3/kv/range";
constexpr const char* kTxn = "/v3/kv/txn";
constexpr const char* kLogin = "/v3/auth/authenticate";

const Answer kNothingThere{.body = R"({"header":{"revision":"7"}})"};
const Answer kCommitted{.body = R"({"header":{"revision":"8"},"succeeded":true})"};
const Answer kNoLeader{.status = 503, .body = R"({"code":14,"message":"etcdserver: no leader"})"};
const Answer kOldToken{.status = 401, .body = R"({"code":16,"message":"invalid auth token"})"};

class EtcdAnswersTest : public testing::Test {
 protected:
  ScriptedMember& Add(ScriptedMember::Script script) {
    return *members_.emplace_back(std::make_unique<ScriptedMember>(std::move(script)));
  }
  void Open(EtcdOptions options = {}) {
    for (const auto& member : members_) options.endpoints.push_back(member->address());
    options.cluster = "c";
    options.try_timeout = 500ms;
    auto opened = OpenEtcdStore(std::move(options));
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
  }
  Result<MetaStore::Outcome> Commit(std::chrono::milliseconds patience) {
    std::promise<Result<MetaStore::Outcome>> outcome;
    store_->TryCommit({{{"name", 0}}, {{"name", {}}}, {}}, Clock::now() + patience,
                      [&](Result<MetaStore::Outcome> one) { outcome.set_value(std::move(one)); });
    return outcome.get_future().get();
  }
  Result<void> Get(std::chrono::milliseconds patience = 20s) {
    std::promise<Result<void>> got;
    store_->Get("name", Clock::now() + patience, [&](const auto& found) {
      got.set_value(found ? Result<void>() : Result<void>(found.error()));
    });
    return got.get_future().get();
  }
  std::size_t CountOf(const std::string& path) const {
    std::size_t count = 0;
    for (const auto& member : members_) count += member->CountOf(path);
    return count;
  }

  std::vector<std::unique_ptr<ScriptedMember>> members_;
  std::unique_ptr<MetaStore> store_;
};

class ACommitWithoutAnAnswer : public EtcdAnswersTest,
                               public testing::WithParamInterface<Answer> {};

TEST_P(ACommitWithoutAnAnswer, IsSentOnceAndItsFateIsUnknown) {
  for (int i = 0; i < 2; ++i) Add([](const Request&) { return GetParam(); });
  Open();
  const auto outcome = Commit(2s);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome.value().fate, Fate::kUnknown);
  EXPECT_EQ(CountOf(kTxn), 1U);
}

INSTANTIATE_TEST_SUITE_P(Answers, ACommitWithoutAnAnswer,
                         testing::Values(Answer{.is_lost = true}, Answer{.is_silent = true},
                                         Answer{.status = 502, .body = "a proxy's"},
                                         Answer{.body = "{}x"}));

TEST_F(EtcdAnswersTest, ACommitWhoseDeadlineComesBeforeItsAnswerIsUnknown) {
  Add([](const Request&) { return Answer{.is_silent = true}; });
  Open();
  const auto outcome = Commit(200ms);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome.value().fate, Fate::kUnknown);
}

TEST_F(EtcdAnswersTest, ACommitThatWasRefusedWithoutALookGoesToTheNextMember) {
  for (int i = 0; i < 3; ++i)
    Add([this](const Request&) { return CountOf(kTxn) < 3 ? kNoLeader : kCommitted; });
  Open();
  const auto outcome = Commit(20s);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome.value().fate, Fate::kCommitted);
  for (const auto& member : members_) EXPECT_EQ(member->CountOf(kTxn), 1U);  // By turns.
}

TEST_F(EtcdAnswersTest, AMemberThatFailedIsNoLongerTheFirst) {
  std::atomic<int> failing{0};
  for (int i = 0; i < 2; ++i)
    Add([&failing, first = std::make_shared<bool>(false)](const Request&) {
      if (!*first && failing++ == 0) *first = true;
      return *first ? Answer{.is_lost = true} : kNothingThere;
    });
  Open();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Get());
  EXPECT_EQ(CountOf(kRange), 6U);
}

TEST_F(EtcdAnswersTest, ASilentMemberIsLeftForTheNextOne) {
  std::atomic<int> asked{0};
  for (int i = 0; i < 2; ++i)
    Add([&](const Request&) { return asked++ == 0 ? Answer{.is_silent = true} : kNothingThere; });
  Open();
  EXPECT_TRUE(Get());
  EXPECT_EQ(members_[0]->CountOf(kRange), 1U);
  EXPECT_EQ(members_[1]->CountOf(kRange), 1U);
}

TEST_F(EtcdAnswersTest, EachRequestWantsALeader) {
  Add([](const Request& request) { return request.path == kTxn ? kCommitted : kNothingThere; });
  Open();
  EXPECT_TRUE(Get());
  EXPECT_TRUE(Commit(20s));
  for (const Request& request : members_[0]->requests())
    EXPECT_NE(request.head.find("grpc-metadata-hasleader: true"), std::string::npos);
}

TEST_F(EtcdAnswersTest, ATokenThatIsRefusedIsAskedForAnew) {
  int logins = 0;
  Add([&](const Request& request) {
    if (request.path == kLogin)
      return Answer{.body = R"({"token":"t)" + std::to_string(++logins) + "\"}"};
    return request.head.find("authorization: t2") == std::string::npos ? kOldToken : kNothingThere;
  });
  EtcdOptions options;
  options.user = "ffrecord";
  options.password = "secret";
  Open(options);
  EXPECT_TRUE(Get());
  EXPECT_EQ(CountOf(kLogin), 2U);
  EXPECT_TRUE(Get());
  EXPECT_EQ(CountOf(kLogin), 2U);
}

}  // namespace
}  // namespace ffrecord::server
