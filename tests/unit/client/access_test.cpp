// Goal: with keys, a daemon lets each client do what its token says, to the names it says, and
// nothing else: over every transport, through every request, whatever the client knows already.
// Method: operations times identities against a daemon in this process; tokens made here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include <ffrecord/client/dataset.h>

#include "client/dataset/catalog.h"
#include "client/dataset/prefetch_hint.h"
#include "client/dataset/upload.h"
#include "daemon.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "test_file.h"
#include "tokens.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using test::Daemon;
using testing::ContainsRegex;
using namespace std::chrono_literals;

constexpr SessionOptions kOptions{20s};
using test::kDelete;
using test::kRead;
using test::kWrite;

class AccessTest : public testing::TestWithParam<const char*> {
 protected:
  AccessTest() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "access", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
    server::Server::Options options;
    options.token_keys = test::WriteTokenKeys(folder_);
    daemon_.emplace(options);
  }

  ~AccessTest() override {
    daemon_.reset();
    spdlog::set_default_logger(logger_before_);
  }

  void SetUp() override {
    if (GetParam() == std::string_view("rdma") && !net::test::TestRdmaDevice())
      GTEST_SKIP() << net::test::TestRdmaDevice().error().message;
  }

  // The address of `name` for who has these rights on the names below `prefix`.
  std::string Uri(const std::string& name, std::uint8_t rights, const std::string& prefix,
                  std::int64_t lifetime_s = 3600) {
    const std::filesystem::path file = folder_ / ("token-" + std::to_string(token_count_++));
    test::WriteToken(file, test::MakeToken(rights, prefix, lifetime_s));
    return daemon_->Uri(name) + "?transport=" + GetParam() + "&token_file=" + file.string();
  }
  static Result<void> Publish(const std::filesystem::path& path, const std::string& uri,
                              bool replace = false) {
    return PublishDataset({{path}}, uri, replace, kOptions, {});
  }
  static ErrorCode Code(const Result<void>& result) {
    return result ? ErrorCode::kOk : result.error().code;
  }
  static ErrorCode OpenCode(const std::string& uri) {
    const auto reader = OpenDataset({{uri}}, {}, kOptions);
    return reader ? ErrorCode::kOk : reader.error().code;
  }

  test::TempFolder folder_;
  const std::shared_ptr<spdlog::logger> logger_before_ = spdlog::default_logger();
  std::ostringstream log_;  // To be read once the daemon has ended.
  std::optional<Daemon> daemon_;
  int token_count_ = 0;
};

TEST_P(AccessTest, OnlyWhoMayReadANameCanHintAtReadingIt) {
  const test::TestFile file({"zero", "first"});
  ASSERT_EQ(Code(Publish(file.path(), Uri("a/x", kRead | kWrite, ""))), ErrorCode::kOk);
  const auto hinted = [&](const std::string& name, std::uint8_t rights, const std::string& prefix,
                          std::uint64_t revision) {
    const auto session =
        net::Session::Get(net::Location::Parse(Uri(name, rights, prefix)).value(), kOptions);
    const EpochPlan plan{.end = 2};
    const auto hint = SendPrefetchHint(*session, name, revision, plan, net::Clock::now() + 20s);
    return hint ? ErrorCode::kOk : hint.error().code;
  };
  const auto reader = net::Location::Parse(Uri("a/x", kRead, "")).value();
  const Catalog catalog(Cluster::OfOneDaemon(reader, kOptions));
  const auto revision = catalog.Resolve("a/x", net::Clock::now() + 20s).value().revision;

  EXPECT_EQ(hinted("a/x", kRead, "a/", revision), ErrorCode::kOk);
  EXPECT_EQ(hinted("a/x", kWrite | kDelete, "a/", revision), ErrorCode::kDenied);
  EXPECT_EQ(hinted("a/x", kRead, "b/", revision), ErrorCode::kDenied);
  EXPECT_EQ(hinted("b/none", kRead, "a/", revision), ErrorCode::kDenied);
  EXPECT_EQ(hinted("a/none", kRead, "a/", revision), ErrorCode::kNotFound);
  EXPECT_EQ(hinted("a/x", kRead, "a/", revision + 1), ErrorCode::kConflict);
}

TEST_P(AccessTest, TheLogTellsWhoHasChangedOrBeenDeniedWhat) {
  const test::TestFile file({"zero"});
  ASSERT_EQ(Code(Publish(file.path(), Uri("a/x", kRead | kWrite, "a/"))), ErrorCode::kOk);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Code(RemovePublished(Uri("a/x", kRead, "a/"), kOptions)), ErrorCode::kDenied);
  ASSERT_EQ(Code(RemovePublished(Uri("a/x", kDelete, "a/"), kOptions)), ErrorCode::kOk);

  daemon_.reset();

  const std::string log = log_.str();
  EXPECT_THAT(log, ContainsRegex("event=published name=a/x revision=[0-9]+ peer=.* client=.test"));
  EXPECT_THAT(log, ContainsRegex("event=removed name=a/x peer=.* client=.test"));
  EXPECT_THAT(log, ContainsRegex("event=denied peer=.* client=.test"));
}

TEST_P(AccessTest, EachRightOnOnesOwnNamesAndNoOther) {
  const test::TestFile file({"zero", std::string(100'000, 'r')});
  ASSERT_EQ(Code(Publish(file.path(), Uri("a/x", kRead | kWrite, "a/"))), ErrorCode::kOk);
  ASSERT_EQ(Code(Publish(file.path(), Uri("b/x", kRead | kWrite, ""))), ErrorCode::kOk);
  constexpr auto kOk = ErrorCode::kOk;
  constexpr auto kDenied = ErrorCode::kDenied;

  EXPECT_EQ(OpenCode(Uri("a/x", kRead, "a/")), kOk);
  EXPECT_EQ(OpenCode(Uri("a/x", kRead, "")), kOk);
  EXPECT_EQ(OpenCode(Uri("a/x", kRead, "a/x")), kOk);
  EXPECT_EQ(OpenCode(Uri("b/x", kRead, "a/")), kDenied);
  EXPECT_EQ(OpenCode(Uri("b/none", kRead, "a/")), kDenied);  // Nor whether there is such a name.
  EXPECT_EQ(OpenCode(Uri("a/none", kRead, "a/")), ErrorCode::kNotFound);
  EXPECT_EQ(OpenCode(Uri("a/x", kWrite | kDelete, "a/")), kDenied);
  EXPECT_EQ(OpenCode(Uri("a/x", kRead, "a/", -1)), kDenied);
  EXPECT_EQ(OpenCode(daemon_->Uri("a/x")), kDenied);

  EXPECT_EQ(Code(Publish(file.path(), Uri("a/y", kRead, "a/"))), kDenied);
  EXPECT_EQ(Code(Publish(file.path(), Uri("b/y", kRead | kWrite, "a/"), /*replace=*/true)),
            kDenied);
  EXPECT_EQ(Code(Publish(file.path(), Uri("a/x", kWrite, "a/"), /*replace=*/true)), kOk);

  const auto list = [&](const std::string& prefix, std::uint8_t rights, const std::string& own) {
    return ListPublished(Uri(prefix, rights, own), kOptions);
  };
  EXPECT_EQ(list("a/", kRead, "a/").value().size(), 1U);
  EXPECT_EQ(list("", kRead, "").value().size(), 2U);
  EXPECT_EQ(list("", kRead, "a/").error().code, kDenied);
  EXPECT_EQ(list("b/", kRead, "a/").error().code, kDenied);
  EXPECT_EQ(list("a/", kWrite, "a/").error().code, kDenied);
  EXPECT_EQ(Code(Publish(file.path(), Uri("a/new", kWrite, "a/"))), kOk);
  EXPECT_EQ(Code(Publish(file.path(), Uri("a/new", kWrite, "a/"))), ErrorCode::kConflict);
  EXPECT_EQ(Code(Publish(file.path(), Uri("b/new", kWrite, "a/"))), kDenied);

  EXPECT_EQ(Code(RemovePublished(Uri("a/x", kRead | kWrite, "a/"), kOptions)), kDenied);
  EXPECT_EQ(Code(RemovePublished(Uri("b/x", kDelete, "a/"), kOptions)), kDenied);
  EXPECT_EQ(Code(RemovePublished(Uri("a/x", kDelete, "a/"), kOptions)), kOk);
  EXPECT_EQ(OpenCode(Uri("b/x", kRead, "b/")), kOk);
}

// The ids of extents are no secret to who has once read a manifest.
TEST_P(AccessTest, WhoKnowsTheIdsOfForeignExtentsCanNeitherReadNorPublishThem) {
  const test::TestFile file({std::string(100'000, 's')});
  ASSERT_EQ(Code(Publish(file.path(), Uri("b/secret", kRead | kWrite, "b/"))), ErrorCode::kOk);
  const auto catalog = [&](const std::string& uri) {
    return Catalog(Cluster::OfOneDaemon(net::Location::Parse(uri).value(), kOptions));
  };
  const auto deadline = net::Clock::now() + 20s;
  const DatasetManifest manifest =
      catalog(Uri("b/secret", kRead, "b/")).Resolve("b/secret", deadline).value().manifest;
  const auto read = [&](const std::string& uri) {
    const auto session = net::Session::Get(net::Location::Parse(uri).value(), kOptions);
    const net::RemoteFiles files(session, manifest, "stolen", kOptions);
    std::vector<std::byte> memory(100);
    RangeRead range{0, 0, memory};
    EXPECT_TRUE(files.Read({&range, 1}));
    return range.status;
  };

  EXPECT_EQ(read(Uri("", kRead, "b/")), ErrorCode::kOk);
  EXPECT_EQ(read(Uri("", kRead, "")), ErrorCode::kOk);
  EXPECT_EQ(read(Uri("", kRead | kWrite, "a/")), ErrorCode::kNotFound);
  EXPECT_EQ(read(Uri("", kWrite, "b/")), ErrorCode::kDenied);

  const auto stolen = catalog(Uri("", kRead | kWrite, "a/"))
                          .Publish("a/mine", manifest, net::Publish::Mode::kCreate, 0, deadline);
  ASSERT_FALSE(stolen);
  EXPECT_EQ(stolen.error().code, ErrorCode::kConflict) << stolen.error().message;
  EXPECT_EQ(OpenCode(Uri("a/mine", kRead, "a/")), ErrorCode::kNotFound);
  const auto shared = catalog(Uri("", kWrite, ""))
                          .Publish("a/mine", manifest, net::Publish::Mode::kCreate, 0, deadline);
  ASSERT_TRUE(shared) << shared.error().message;
  EXPECT_EQ(read(Uri("", kRead, "a/")), ErrorCode::kOk);  // Now it is theirs too.
}

TEST_P(AccessTest, ATokenThatExpiresIsReplacedByTheNextOneInItsFile) {
  test::VirtualClock clock;
  const test::TestFile file({"zero", "one"});
  ASSERT_EQ(Code(Publish(file.path(), Uri("x", kRead | kWrite, ""))), ErrorCode::kOk);
  const std::string uri = Uri("x", kRead, "", 60);
  const auto reader = OpenDataset({{uri}}, {}, kOptions);
  ASSERT_TRUE(reader) << reader.error().message;
  const std::string longer = Uri("x", kRead, "", 3600);
  const auto file_of = [](const std::string& text) { return text.substr(text.find("file=") + 5); };
  std::filesystem::copy_file(file_of(longer), file_of(uri),
                             std::filesystem::copy_options::overwrite_existing);
  clock.RunFor(60s);

  EXPECT_EQ(test::ReadAll(reader.value()), file.records());
}

// At once: the connections of the one before are not used for the next call.
TEST_P(AccessTest, ATokenThatIsReplacedByOneWithOtherRightsIsUsedByTheNextCall) {
  const test::TestFile file({"zero", "one"});
  const std::string uri = Uri("a/x", kRead, "a/");
  const std::filesystem::path held = uri.substr(uri.find("file=") + 5);
  const auto replace = [&](std::uint8_t rights, bool by_rename) {
    const std::filesystem::path next = by_rename ? folder_ / "next" : held;
    test::WriteToken(next, test::MakeToken(rights, "a/"));
    if (by_rename) std::filesystem::rename(next, held);
  };
  for (const bool by_rename : {true, false}) {
    for (int i = 0; i < 3; ++i) {
      replace(kRead | kWrite, by_rename);
      EXPECT_EQ(Code(Publish(file.path(), uri, /*replace=*/true)), ErrorCode::kOk);
      EXPECT_EQ(Code(RemovePublished(uri, kOptions)), ErrorCode::kDenied);
      replace(kDelete, by_rename);
      EXPECT_EQ(OpenCode(uri), ErrorCode::kDenied);
      EXPECT_EQ(Code(RemovePublished(uri, kOptions)), ErrorCode::kOk);
    }
  }
  // Between two tokens, there may be none for a moment.
  std::filesystem::remove(held);
  EXPECT_EQ(OpenCode(uri), ErrorCode::kDenied);
}

// A reader that is open goes on by the token that it was opened with.
TEST_P(AccessTest, ReadersThatAreOpenSurviveThatTheirTokenIsReplaced) {
  const test::TestFile file({"zero", "one"});
  ASSERT_EQ(Code(Publish(file.path(), Uri("a/x", kRead | kWrite, ""))), ErrorCode::kOk);
  const std::string uri = Uri("a/x", kRead, "a/");
  const auto reader = OpenDataset({{uri}}, {}, kOptions);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(test::ReadAll(reader.value()), file.records());
  test::WriteToken(uri.substr(uri.find("file=") + 5), test::MakeToken(kRead | kWrite, "a/"));
  EXPECT_EQ(test::ReadAll(reader.value()), file.records());
}

TEST_P(AccessTest, TokenFilesThatHoldNoneAreTheCallersMistake) {
  for (const char* bad : {"", "xyz", "abc", "zz"}) {
    test::WriteFile(folder_ / "bad", bad);
    const auto opened = OpenDataset(
        {{daemon_->Uri("x") + "?token_file=" + (folder_ / "bad").string()}}, {}, kOptions);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument) << opened.error().message;
  }
  EXPECT_EQ(OpenCode(daemon_->Uri("x") + "?token_file=/no/such/file"), ErrorCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(Transports, AccessTest, testing::Values("tcp", "shm", "rdma"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace ffrecord::client
