// Goal: etcd gets the very requests that it understands, and its replies mean what it says; odd
// ones are refused. Method: golden bytes, since etcd ignores fields that it does not know; replies
// as etcd 3.4.23 sends them, changed and cut.

#include "server/metadata/etcd_messages.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "bytes.h"
#include "server/metadata/etcd_stream.h"
#include "server/metadata/etcd_verdict.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using Fate = MetaStore::Outcome::Fate;
using Kind = MetaStore::News::Kind;
using Verdict = EtcdVerdict::Kind;

const EtcdRequests kRequests("c");
const std::string kPrefix = "/ffrecord/c/";
constexpr const char* kHeader =
    R"("header":{"cluster_id":"3251083644951691459","member_id":"4730542548402062390",)"
    R"("revision":"7","raft_term":"2"})";

std::vector<std::byte> Value(std::string_view text) {
  const auto bytes = test::AsBytes(text);
  return {bytes.begin(), bytes.end()};
}
std::string Reply(const std::string& fields) {
  return "{" + std::string(kHeader) + (fields.empty() ? "" : ",") + fields + "}";
}

// --- Requests: /ffrecord/c/ is L2ZmcmVjb3JkL2Mv in base64
// -----------------------------------------

TEST(EtcdRequestsTest, ReadsHaveTheseBytes) {
  EXPECT_EQ(kRequests.prefix(), kPrefix);
  EXPECT_EQ(kRequests.Get("key").path, "/v3/kv/range");
  EXPECT_EQ(kRequests.Get("key").body, R"({"key":"L2ZmcmVjb3JkL2Mva2V5"})");
  EXPECT_EQ(kRequests.List({"", "", 10, 0}).body,
            R"({"key":"L2ZmcmVjb3JkL2MvAA==","range_end":"L2ZmcmVjb3JkL2Mw","limit":"10"})");
  // From "a/b\0" to "a0", which is behind all that begins with "a/".
  EXPECT_EQ(kRequests.List({"a/", "a/b", 5, 42}).body,
            R"({"key":"L2ZmcmVjb3JkL2MvYS9iAA==","range_end":"L2ZmcmVjb3JkL2MvYTA=",)"
            R"("limit":"5","revision":"42"})");
  EXPECT_EQ(kRequests.Probe().body,
            R"({"key":"L2ZmcmVjb3JkL2MvcHJvYmU=","count_only":true,"serializable":true})");
}

TEST(EtcdRequestsTest, ACommitHasTheseBytes) {
  const auto request =
      kRequests.TryCommit({{{"a", 0}, {"b", 7}}, {{"a", Value("v"), 0}, {"l", {}, 9}}, {"d"}});
  EXPECT_EQ(request.path, "/v3/kv/txn");
  EXPECT_EQ(
      request.body,
      R"({"compare":[{"key":"L2ZmcmVjb3JkL2MvYQ==","target":"CREATE","result":"EQUAL",)"
      R"("create_revision":"0"},{"key":"L2ZmcmVjb3JkL2MvYg==","target":"MOD","result":"EQUAL",)"
      R"("mod_revision":"7"}],"success":[{"request_put":{"key":"L2ZmcmVjb3JkL2MvYQ==",)"
      R"("value":"dg=="}},{"request_put":{"key":"L2ZmcmVjb3JkL2MvbA==","value":"","lease":"9"}},)"
      R"({"request_delete_range":{"key":"L2ZmcmVjb3JkL2MvZA=="}}]})");
}

TEST(EtcdRequestsTest, LeasesWatchesAndUsersHaveTheseBytes) {
  EXPECT_EQ(EtcdRequests::GrantLease(10s).path, "/v3/lease/grant");
  EXPECT_EQ(EtcdRequests::GrantLease(10s).body, R"({"TTL":"10"})");
  EXPECT_EQ(EtcdRequests::GrantLease(1001ms).body, R"({"TTL":"2"})");  // Never shorter.
  EXPECT_EQ(EtcdRequests::GrantLease(1ms).body, R"({"TTL":"1"})");
  EXPECT_EQ(EtcdRequests::KeepLease(5).path, "/v3/lease/keepalive");
  EXPECT_EQ(EtcdRequests::KeepLease(5).body, R"({"ID":"5"})");
  EXPECT_EQ(EtcdRequests::RevokeLease(5).path, "/v3/lease/revoke");
  EXPECT_EQ(EtcdRequests::RevokeLease(5).body, R"({"ID":"5"})");
  EXPECT_EQ(EtcdRequests::Authenticate("u", "p\"\xFF").path, "/v3/auth/authenticate");
  EXPECT_EQ(EtcdRequests::Authenticate("u", "p\"").body, R"({"name":"u","password":"p\""})");
  EXPECT_EQ(kRequests.Watch("a/", 8).path, "/v3/watch");
  EXPECT_EQ(kRequests.Watch("a/", 8).body,
            R"({"create_request":{"key":"L2ZmcmVjb3JkL2MvYS8=","range_end":"L2ZmcmVjb3JkL2MvYTA=",)"
            R"("start_revision":"8","fragment":true}})");
}

// --- Replies -------------------------------------------------------------------------------------

TEST(EtcdRepliesTest, FieldsThatAreLeftOutHaveTheirDefaults) {
  EXPECT_FALSE(EtcdReplies::Get(Reply(""), kPrefix).value());
  const auto page = EtcdReplies::List(Reply(""), kPrefix, 0).value();
  EXPECT_TRUE(page.entries.empty());
  EXPECT_FALSE(page.more);
  EXPECT_EQ(page.revision, 7U);
  EXPECT_EQ(EtcdReplies::List(Reply(""), kPrefix, 3).value().revision, 3U);
  EXPECT_EQ(EtcdReplies::TryCommit(Reply("")).value().fate, Fate::kLost);
  EXPECT_EQ(EtcdReplies::TryCommit(Reply(R"("succeeded":true)")).value().fate, Fate::kCommitted);
  EXPECT_EQ(EtcdReplies::TryCommit(Reply(R"("succeeded":true)")).value().revision, 7U);
}

TEST(EtcdRepliesTest, NumbersComeAsTextOrAsNumbers) {
  for (const char* revision : {R"("5")", "5"}) {
    const auto entry =
        EtcdReplies::Get(Reply(R"("kvs":[{"key":"L2ZmcmVjb3JkL2Mva2V5","mod_revision":)" +
                               std::string(revision) + R"(,"value":"dg=="}],"count":"1")"),
                         kPrefix);
    ASSERT_TRUE(entry) << entry.error().message;
    EXPECT_EQ(*entry.value(), (MetaStore::KeyValue{"key", Value("v"), 5}));
  }
  EXPECT_EQ(EtcdReplies::GrantLease(Reply(R"("ID":"9","TTL":"2")")).value().ttl, 2s);
}

TEST(EtcdRepliesTest, AKeepaliveWithoutATtlMeansThatTheLeaseHasEnded) {
  const std::string kept = R"({"result":{)" + std::string(kHeader) + R"(,"ID":"9","TTL":"5"}})";
  const std::string ended = R"({"result":{)" + std::string(kHeader) + R"(,"ID":"9"}})";
  EXPECT_EQ(EtcdReplies::KeepLease(kept).value(), 5s);
  EXPECT_FALSE(EtcdReplies::KeepLease(ended).value());
}

TEST(EtcdRepliesTest, OddRepliesAreRefused) {
  const std::string key = R"("key":"L2ZmcmVjb3JkL2Mva2V5")";
  const std::string odd[] = {
      "",
      "{",
      "[]",
      "null",
      "<html>",
      "{}",
      R"({"header":{}})",
      R"({"header":{"revision":"x"}})",
      R"({"header":{"revision":"-1"}})",
      R"({"header":{"revision":7.5}})",
      R"({"header":{"revision":"99999999999999999999"}})",
      Reply(R"("kvs":{})"),
      Reply(R"("kvs":[1])"),
      Reply(R"("kvs":[{}])"),
      Reply(R"("kvs":[{"key":"b3RoZXI=","mod_revision":"5"}])"),  // Another's key.
      Reply(R"("kvs":[{)" + key + "}]"),
      Reply(R"("kvs":[{)" + key + R"(,"mod_revision":"5","value":"dg"}])"),
      Reply(R"("kvs":[{)" + key + R"(,"mod_revision":"5","value":"d-_="}])"),
  };
  for (const std::string& body : odd) {
    EXPECT_FALSE(EtcdReplies::Get(body, kPrefix)) << body;
    EXPECT_FALSE(EtcdReplies::List(body, kPrefix, 0)) << body;
  }
  EXPECT_FALSE(EtcdReplies::TryCommit("{}"));  // Not "lost": nothing says so.
  EXPECT_FALSE(EtcdReplies::GrantLease(Reply(R"("ID":"9")")));
  EXPECT_FALSE(EtcdReplies::KeepLease(Reply("")));
  EXPECT_FALSE(EtcdReplies::Authenticate(Reply(R"("token":"a\r\nb")")));
  EXPECT_FALSE(EtcdReplies::Authenticate(Reply("")));
  EXPECT_EQ(EtcdReplies::Authenticate(Reply(R"("token":"abc.20")")).value(), "abc.20");
}

// --- Refusals ------------------------------------------------------------------------------------

TEST(EtcdVerdictTest, EachRefusalHasItsConsequence) {
  const struct {
    int status;
    int code;
    const char* message;
    Verdict kind;
    ErrorCode error;
  } rows[] = {
      {400, 3, "etcdserver: request is too large", Verdict::kFailed, ErrorCode::kInvalidArgument},
      {400, 3, "etcdserver: user name is empty", Verdict::kTokenRefused, ErrorCode::kDenied},
      {400, 3, "etcdserver: authentication failed, invalid user ID or password", Verdict::kFailed,
       ErrorCode::kDenied},
      {400, 3, "etcdserver: revision of auth store is old", Verdict::kTokenRefused,
       ErrorCode::kDenied},
      {404, 5, "etcdserver: requested lease not found", Verdict::kFailed, ErrorCode::kNotFound},
      {403, 7, "etcdserver: permission denied", Verdict::kFailed, ErrorCode::kDenied},
      {429, 8, "etcdserver: mvcc: database space exceeded", Verdict::kFailed, ErrorCode::kIo},
      {429, 8, "etcdserver: too many requests", Verdict::kElsewhere, ErrorCode::kUnavailable},
      {429, 8, "grpc: received message larger than max (3 vs. 2)", Verdict::kFailed,
       ErrorCode::kInvalidArgument},
      {412, 9, "etcdserver: authentication is not enabled", Verdict::kAuthIsOff,
       ErrorCode::kDenied},
      {400, 11, "etcdserver: mvcc: required revision has been compacted", Verdict::kFailed,
       ErrorCode::kConflict},
      {400, 11, "etcdserver: mvcc: required revision is a future revision", Verdict::kFailed,
       ErrorCode::kInvalidArgument},
      {503, 14, "etcdserver: no leader", Verdict::kElsewhere, ErrorCode::kUnavailable},
      {503, 14, "etcdserver: request timed out", Verdict::kUnclear, ErrorCode::kUnavailable},
      {503, 14, "etcdserver: leader changed", Verdict::kUnclear, ErrorCode::kUnavailable},
      {401, 16, "etcdserver: invalid auth token", Verdict::kTokenRefused, ErrorCode::kDenied},
      {500, 2, "context deadline exceeded", Verdict::kUnclear, ErrorCode::kUnavailable},
  };
  for (const auto& row : rows) {
    const std::string body = std::string(R"({"error":")") + row.message + R"(","message":")" +
                             row.message + R"(","code":)" + std::to_string(row.code) + "}";
    const auto verdict = JudgeEtcdRefusal(ParseEtcdRefusal(row.status, body), "http://m");
    EXPECT_EQ(verdict.kind, row.kind) << body;
    EXPECT_EQ(verdict.error.code, row.error) << body;
    EXPECT_TRUE(verdict.error.message.starts_with("http://m: ")) << verdict.error.message;
  }
  const auto full = JudgeEtcdRefusal({429, 8, "mvcc: database space exceeded"}, "m");
  EXPECT_EQ(full.error.system_errno, ENOSPC);
  EXPECT_NE(full.error.message.find("alarm disarm"), std::string::npos);
  EXPECT_EQ(JudgeEtcdRefusal(ParseEtcdRefusal(404, "404 page not found"), "m").kind,
            Verdict::kElsewhere);
  EXPECT_EQ(JudgeEtcdRefusal(ParseEtcdRefusal(502, "<html>"), "m").kind, Verdict::kUnclear);
}

// --- Streams -------------------------------------------------------------------------------------

std::string Event(const std::string& key, int revision, bool is_delete = false) {
  return std::string(is_delete ? R"({"type":"DELETE","kv":{"key":")" : R"({"kv":{"key":")") +
         (key == "a" ? "L2ZmcmVjb3JkL2MvYQ==" : "L2ZmcmVjb3JkL2MvYg==") + R"(","mod_revision":")" +
         std::to_string(revision) + R"("}})";
}
std::string Line(const std::string& fields) {
  return R"({"result":{)" + std::string(kHeader) + "," + fields + "}}\n";
}

TEST(EtcdStreamTest, LinesComeInPiecesAndEventsInOrder) {
  EtcdStream stream(kPrefix, 3, "m");
  const std::string all = Line(R"("created":true)") +
                          Line(R"("events":[)" + Event("a", 3) + "," + Event("a", 5, true) + "]");
  std::vector<MetaStore::News> news;
  std::string bytes;
  for (const char c : all) {
    bytes += c;
    for (auto& each : stream.Take(bytes)) news.push_back(std::move(each));
  }
  EXPECT_TRUE(stream.is_created());
  EXPECT_TRUE(bytes.empty());
  ASSERT_EQ(news.size(), 1U);
  EXPECT_EQ(news[0].events,
            (std::vector<MetaStore::Event>{{"a", Value(""), 3}, {"a", std::nullopt, 5}}));
  EXPECT_EQ(stream.next_revision(), 6U);
}

TEST(EtcdStreamTest, ARevisionThatIsCutIntoFragmentsIsToldWhole) {
  EtcdStream stream(kPrefix, 3, "m");
  std::string first =
      Line(R"("fragment":true,"events":[)" + Event("a", 3) + "," + Event("a", 4) + "]");
  const auto early = stream.Take(first);
  ASSERT_EQ(early.size(), 1U);
  EXPECT_EQ(early[0].events.size(), 1U);
  EXPECT_EQ(stream.next_revision(), 4U);
  std::string last = Line(R"("events":[)" + Event("b", 4) + "]");
  const auto late = stream.Take(last);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].events.size(), 2U);
  EXPECT_EQ(stream.next_revision(), 5U);
}

TEST(EtcdStreamTest, EachEndIsTold) {
  const auto end_of = [](std::string line, bool* wants_token = nullptr) {
    EtcdStream stream(kPrefix, 3, "m");
    const auto news = stream.Take(line);
    if (wants_token != nullptr) *wants_token = stream.wants_token();
    return news.size() == 1 ? news[0] : MetaStore::News{};
  };
  EXPECT_EQ(end_of(Line(R"("canceled":true,"compact_revision":"9")")).kind, Kind::kCompacted);
  const auto no_leader =
      end_of(R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}})"
             "\n");
  EXPECT_EQ(no_leader.kind, Kind::kBroken);
  EXPECT_NE(no_leader.why->message.find("majority"), std::string::npos);
  bool wants_token = false;
  const auto denied = end_of(
      Line(
          R"("created":true,"canceled":true,"cancel_reason":"rpc error: code = PermissionDenied desc = etcdserver: permission denied")"),
      &wants_token);
  EXPECT_EQ(denied.why->code, ErrorCode::kDenied);
  EXPECT_FALSE(wants_token);
  (void)end_of(
      Line(
          R"("created":true,"canceled":true,"cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token")"),
      &wants_token);
  EXPECT_TRUE(wants_token);
  EXPECT_EQ(end_of("nonsense\n").kind, Kind::kBroken);
  EXPECT_EQ(end_of(Line(R"("events":[)" + Event("a", 2) + "]")).kind, Kind::kBroken);
  EXPECT_EQ(end_of(Line(R"("events":[)" + Event("a", 5) + "," + Event("a", 4) + "]")).kind,
            Kind::kBroken);
}

}  // namespace
}  // namespace ffrecord::server
