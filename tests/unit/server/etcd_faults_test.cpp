// Goal: whatever happens to etcd's members, no operation outlives its deadline, no acknowledged
// commit is lost, and an unknown one is resolved by reading back. Method: real members on loopback,
// killed, stopped, without quorum, full, with users, with TLS.

#include <gtest/gtest.h>

#include "certificates.h"
#include "etcd.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using test::Await;
using test::EtcdCluster;
using test::TestedEtcdStore;
using test::TestedWatch;
using test::Value;
using Fate = MetaStore::Outcome::Fate;
using Kind = MetaStore::News::Kind;

constexpr auto kTimeout = 3s;
// How late a machine that is busy may notice a deadline.
constexpr auto kSlack = 2s;

class EtcdFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::HasEtcd()) GTEST_SKIP() << "install etcd-server: there is no /usr/bin/etcd";
  }
  void Open(std::size_t count, EtcdOptions options = {}, std::vector<std::string> more = {}) {
    cluster_ = std::make_unique<EtcdCluster>(count, std::move(more));
    cluster_->WaitForLeader();
    options.try_timeout = 700ms;
    options.probe_interval = 300ms;
    tested_ = std::make_unique<TestedEtcdStore>(*cluster_, std::move(options));
  }
  // Ends within its deadline.
  template <class T, class Begin>
  Result<T> InTime(const Begin& begin) {
    const auto deadline = Clock::now() + kTimeout;
    auto result = Await<T>(*tested_, [&](auto done) { begin(deadline, std::move(done)); });
    EXPECT_LT(Clock::now(), deadline + kSlack);
    return result;
  }
  Result<MetaStore::Outcome> TryPut(const std::string& key, const std::string& value) {
    return InTime<MetaStore::Outcome>([&](auto deadline, auto done) {
      tested_->store().TryCommit({{{key, 0}}, {{key, Value(value)}}, {}}, deadline,
                                 std::move(done));
    });
  }
  Result<std::optional<MetaStore::KeyValue>> TryGet(const std::string& key) {
    return InTime<std::optional<MetaStore::KeyValue>>(
        [&](auto deadline, auto done) { tested_->store().Get(key, deadline, std::move(done)); });
  }
  // Waits for the cluster to answer again.
  std::optional<MetaStore::KeyValue> Get(const std::string& key) {
    for (int i = 0; i < 10; ++i)
      if (auto got = TryGet(key)) return std::move(got).value();
    ADD_FAILURE() << "etcd did not come back";
    return std::nullopt;
  }
  // Commits names under way as `act` happens; each must end in time, and as it said.
  template <class Act>
  void CommitWhile(const Act& act) {
    std::vector<std::string> committed;
    std::vector<std::string> failed;
    const auto end = Clock::now() + 4s;
    for (int i = 0; Clock::now() < end || committed.size() < 20; ++i) {
      if (i == 10) act();
      const std::string key = "name/" + std::to_string(i);
      const auto outcome = TryPut(key, "attempt-" + std::to_string(i));
      if (!outcome) {
        failed.push_back(key);
        continue;
      }
      ASSERT_NE(outcome.value().fate, Fate::kLost) << key << ": it was sent twice";
      if (outcome.value().fate == Fate::kUnknown) {
        const auto found = Get(key);  // Either is right; the attempt's mark tells which.
        if (found) {
          EXPECT_EQ(test::AsString(found->value), "attempt-" + std::to_string(i));
        }
        ++unknown_count_;
      } else {
        committed.push_back(key);
      }
      ASSERT_LT(i, 10'000);
    }
    for (const std::string& key : committed) EXPECT_TRUE(Get(key)) << key;
    for (const std::string& key : failed) EXPECT_FALSE(Get(key)) << key;
    RecordProperty("unknown", unknown_count_);
  }

  std::unique_ptr<EtcdCluster> cluster_;
  std::unique_ptr<TestedEtcdStore> tested_;
  int unknown_count_ = 0;
};

TEST_F(EtcdFaultsTest, CommitsGoOnWhenTheLeaderIsKilledAndWhenItIsStopped) {
  Open(3);
  std::size_t leader = cluster_->WaitForLeader();
  CommitWhile([&] { cluster_->Kill(leader); });
  cluster_->Start(leader);

  leader = cluster_->WaitForLeader();
  tested_ = std::make_unique<TestedEtcdStore>(
      *cluster_, EtcdOptions{.try_timeout = 700ms, .probe_interval = 300ms});
  CommitWhile([&] { cluster_->Stop(leader); });
  cluster_->Continue(leader);
}

TEST_F(EtcdFaultsTest, AStoppedMemberBreaksItsWatchWhichGoesOnElsewhere) {
  Open(3);
  TestedWatch watch(*tested_, "", 1);
  ASSERT_TRUE(TryPut("first", ""));
  const auto last = watch.Events(1)[0].revision;

  // Whichever member it is at: the others keep the quorum in turn.
  for (std::size_t i = 0; i < 3 && watch.batch_sizes().size() == 1; ++i) {
    cluster_->Stop(i);
    tested_->WaitFor([end = Clock::now() + 2s] { return Clock::now() > end; }, 5s);
    cluster_->Continue(i);
  }
  EXPECT_EQ(watch.End().kind, Kind::kBroken);
  EXPECT_EQ(Get("first")->mod_revision, last);
  ASSERT_TRUE(TryPut("second", ""));
  TestedWatch next(*tested_, "", last + 1);
  EXPECT_EQ(next.Events(1)[0].key, "second");
}

TEST_F(EtcdFaultsTest, WithoutAQuorumOperationsFailAndWatchesBreakUntilItIsBack) {
  Open(3);
  ASSERT_TRUE(TryPut("before", ""));
  TestedWatch watch(*tested_, "", 1);
  watch.Events(1);
  cluster_->Kill(0);
  cluster_->Kill(1);

  EXPECT_EQ(watch.End().kind, Kind::kBroken);
  const auto read = TryGet("before");
  ASSERT_FALSE(read);
  EXPECT_TRUE(read.error().code == ErrorCode::kUnavailable ||
              read.error().code == ErrorCode::kDeadlineExceeded);
  EXPECT_NE(read.error().message.find("etcd"), std::string::npos) << read.error().message;
  const auto commit = TryPut("during", "");
  EXPECT_TRUE(!commit || commit.value().fate == Fate::kUnknown);

  cluster_->Start(0);
  EXPECT_TRUE(Get("before"));
  EXPECT_EQ(TryPut("after", "").value().fate, Fate::kCommitted);
}

TEST_F(EtcdFaultsTest, AFullEtcdSaysSoWithItsRemedy) {
  Open(1, {}, {"--quota-backend-bytes", "4194304"});
  std::optional<Error> error;
  for (int i = 0; i < 20 && !error; ++i) {
    const auto outcome = TryPut("key" + std::to_string(i), std::string(600'000, 'x'));
    if (!outcome) error = outcome.error();
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kIo) << error->message;
  EXPECT_EQ(error->system_errno, ENOSPC);
  EXPECT_NE(error->message.find("alarm disarm"), std::string::npos) << error->message;
  EXPECT_TRUE(Get("key0"));
}

TEST_F(EtcdFaultsTest, UsersHaveTokensThatAreTakenAnew) {
  Open(1, {.user = "root", .password = "secret"});
  ASSERT_TRUE(TryPut("before", ""));  // etcd has no users yet.
  cluster_->Ask(0, "/v3/auth/user/add", R"({"name":"root","password":"secret"})");
  cluster_->Ask(0, "/v3/auth/role/add", R"({"name":"root"})");
  cluster_->Ask(0, "/v3/auth/user/grant", R"({"user":"root","role":"root"})");
  cluster_->Ask(0, "/v3/auth/enable", "{}");

  EXPECT_EQ(TryPut("with-token", "").value().fate, Fate::kCommitted);
  TestedWatch watch(*tested_, "", 1);
  watch.Events(2);
  cluster_->Kill(0);  // It forgets its tokens.
  cluster_->Start(0);
  cluster_->WaitForLeader();
  EXPECT_TRUE(Get("with-token"));
  EXPECT_EQ(TryPut("with-another", "").value().fate, Fate::kCommitted);

  EtcdOptions wrong{.user = "root", .password = "guess"};
  tested_ = std::make_unique<TestedEtcdStore>(*cluster_, wrong);
  const auto denied = TryGet("before");
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, ErrorCode::kDenied) << denied.error().message;
  EXPECT_EQ(denied.error().message.find("guess"), std::string::npos);
  tested_ = std::make_unique<TestedEtcdStore>(*cluster_, EtcdOptions{});
  const auto nobody = TryGet("before");
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, ErrorCode::kDenied) << nobody.error().message;
}

TEST_F(EtcdFaultsTest, TlsTrustsTheGivenAuthorityOnly) {
  const test::TempFolder folder;
  const test::Authority authority;
  const test::Authority other;
  authority.Write(folder / "ca.pem");
  other.Write(folder / "other.pem");
  authority.Issue(folder / "cert.pem", folder / "key.pem");
  EtcdCluster cluster(1, {"--cert-file", folder / "cert.pem", "--key-file", folder / "key.pem"},
                      "https");
  cluster.ca_file = folder / "ca.pem";
  cluster.WaitForLeader();
  tested_ = std::make_unique<TestedEtcdStore>(cluster, EtcdOptions{.ca_file = folder / "ca.pem"});
  EXPECT_EQ(TryPut("key", "").value().fate, Fate::kCommitted);

  tested_ =
      std::make_unique<TestedEtcdStore>(cluster, EtcdOptions{.ca_file = folder / "other.pem"});
  const auto refused = TryPut("key", "");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
}

TEST(EtcdOptionsTest, BadOptionsAreRefused) {
  for (const EtcdOptions& options : {
           EtcdOptions{.endpoints = {}, .cluster = "c"},
           EtcdOptions{.endpoints = {"host:2379"}, .cluster = "c"},
           EtcdOptions{.endpoints = {"http://host/path"}, .cluster = "c"},
           EtcdOptions{.endpoints = {"http://user@host"}, .cluster = "c"},
           EtcdOptions{.endpoints = {"http://host"}, .cluster = ""},
           EtcdOptions{.endpoints = {"http://host"}, .cluster = "a/b"},
       }) {
    const auto opened = OpenEtcdStore(options);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(EtcdOptionsTest, AClosedStoreCompletesWhatIsUnderWay) {
  std::optional<Result<MetaStore::Page>> page;
  {
    const auto store = OpenEtcdStore({.endpoints = {"http://127.0.0.1:1"}, .cluster = "c"}).value();
    store->List({}, MetaStore::TimePoint::max(),
                [&](auto result) { page.emplace(std::move(result)); });
  }
  ASSERT_TRUE(page);
  EXPECT_EQ(page->error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace ffrecord::server
