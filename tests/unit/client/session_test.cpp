// Goal: every call ends by its deadline, and has one effect however often it is sent.
// Method: a daemon that is a script: silent, busy, breaking off at chosen places; callers who give
// up.

#include "libffrecord/net/rpc/session.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include <ffrecord/client/dataset.h>

#include "child.h"
#include "client/dataset/catalog.h"
#include "fake_daemon.h"
#include "libffrecord/base/patience.h"
#include "one_daemon.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::FakeDaemon;
using test::OneFile;
using Request = test::FakeDaemon::Request;
using namespace std::chrono_literals;

net::Deadline In(std::chrono::milliseconds time) { return net::Clock::now() + time; }

TEST(LocationTest, AddressesAreParsed) {
  const auto location = net::Location::Parse("ffrecord://localhost/run/a");
  ASSERT_TRUE(location) << location.error().message;
  EXPECT_EQ(location.value().address.host, "localhost");
  EXPECT_EQ(location.value().address.port, kDefaultPort);
  EXPECT_EQ(location.value().name, "run/a");
  EXPECT_EQ(net::Location::Parse("ffrecord://[::1]:77/x").value().address.port, 77);
  EXPECT_EQ(net::Location::Parse("ffrecord://h").value().name, "");
  EXPECT_EQ(net::Location::Parse("ffrecord://h:1/x").value().ToString(), "ffrecord://h:1/x");
  for (const char* bad : {"", "h/x", "http://h/x", "ffrecord:/h/x", "ffrecord://:1/x",
                          "ffrecord://h:x/y", "ffrecord://h:0/y"}) {
    const auto refused = net::Location::Parse(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(LocationTest, FilesThatAnAddressNamesAreThoseOfTheFolderWhereItWasGiven) {
  const auto here = std::filesystem::current_path();
  const auto location = net::Location::Parse("ffrecord://h/x?token_file=keys/token&tls=./tls");
  ASSERT_TRUE(location) << location.error().message;
  EXPECT_EQ(location.value().token_file, (here / "keys/token").string());
  EXPECT_EQ(std::filesystem::path(location.value().tls_folder).lexically_normal(), here / "tls");
  EXPECT_EQ(net::Location::Parse("ffrecord://h/x?token_file=/t").value().token_file, "/t");
  EXPECT_EQ(net::Location::Parse("ffrecord://h/x").value().token_file, "");
}

TEST(SessionTest, ASilentDaemonCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([](Request&) { return true; }, /*greets=*/false);
  const auto started = net::Clock::now();

  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(300ms));

  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kDeadlineExceeded) << resolved.error().message;
  EXPECT_LT(net::Clock::now() - started, 20s);
}

TEST(SessionTest, ADaemonThatFallsSilentInACallCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([](Request&) { return true; });
  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(300ms));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kDeadlineExceeded) << resolved.error().message;
}

// Frames that come faster than they are taken are never waited for: no deadline ends them.
TEST(SessionTest, ADaemonTakesItsLeaveOnceAndStillAnswers) {
  for (const int leaves : {1, 2}) {
    FakeDaemon daemon([&](Request& request) {
      for (int i = 0; request.connection == 0 && i < leaves; ++i)
        EXPECT_TRUE(
            request.endpoint.Send({.type = FrameType::kGoAway}, net::GoAway{"bye"}.Encode(), {}));
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                       EncodeDatasetManifest(OneFile(10)).value());
      return true;
    });
    const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(60s));
    EXPECT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(daemon.connection_count(), leaves);
  }
}

TEST(SessionTest, AListThatDoesNotGoOnIsNotFollowed) {
  std::vector<std::vector<net::ListReply::Entry>> pages;
  std::size_t asked = 0;
  FakeDaemon daemon([&](Request& request) {
    net::ListReply reply;
    reply.entries = pages[std::min(asked++, pages.size() - 1)];
    reply.more = asked < 1000;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kList), reply.Encode());
    return true;
  });
  const auto entry = [](const char* name) { return net::ListReply::Entry{name, 1, 1, 1}; };
  const std::vector<std::vector<net::ListReply::Entry>> lies[] = {
      {{entry("run/a")}},                    // The same page for ever.
      {{entry("run/b")}, {entry("run/a")}},  // Back again.
      {{entry("run/b"), entry("run/a")}},    // In no order.
      {{entry("run/a"), entry("run/a")}},    // The same name twice.
      {{entry("other/a")}},                  // Not what was asked for.
      {{entry("run/a")}, {}},                // There is more, and it is nothing.
  };
  for (const auto& lie : lies) {
    SCOPED_TRACE(&lie - lies);
    pages = lie;
    asked = 0;
    const auto listed = Catalog(test::OneDaemon(daemon.address())).List("run/", In(60s));
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, ErrorCode::kCorruption) << listed.error().message;
    EXPECT_NE(listed.error().message.find(daemon.address().ToString()), std::string::npos)
        << listed.error().message;
    EXPECT_LT(asked, 5U);
  }
}

// A daemon of an earlier version tells no durability classes; one of a later version may tell
// others than are known here.
TEST(SessionTest, AListWithAndWithoutDurabilityClassesIsTaken) {
  for (const std::string durability : {"", "ec:4+2", "x:9"}) {
    FakeDaemon daemon([&](Request& request) {
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kList),
                       net::ListReply{false, {{"a", 1, 2, 3, durability}}}.Encode());
      return true;
    });
    const auto listed = ListPublished(daemon.Uri(""), {});
    ASSERT_TRUE(listed) << listed.error().message;
    ASSERT_EQ(listed.value().size(), 1U);
    EXPECT_EQ(listed.value()[0].file_count, 3U);
    EXPECT_EQ(listed.value()[0].durability, durability);
  }
}

TEST(SessionTest, BusyIsAskedAgainOnTheSameConnection) {
  int asked = 0;
  FakeDaemon daemon([&](Request& request) {
    if (++asked < 4) {
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{5}.Encode());
      return true;
    }
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });

  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(60s));

  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(resolved.value().revision, 3U);
  EXPECT_EQ(resolved.value().manifest, OneFile(10));
  EXPECT_EQ(daemon.connection_count(), 1);
}

TEST(SessionTest, ABusyDaemonIsLeftAloneForAsLongAsItWants) {
  constexpr auto kWanted = 150ms;
  std::vector<net::Clock::time_point> asked;
  FakeDaemon daemon([&](Request& request) {
    asked.push_back(net::Clock::now());
    if (asked.size() < 3) {
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{150}.Encode());
      return true;
    }
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });

  ASSERT_TRUE(Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(60s)));

  ASSERT_EQ(asked.size(), 3U);
  EXPECT_GE(asked[1] - asked[0], kWanted);
  EXPECT_GE(asked[2] - asked[1], kWanted);
}

TEST(SessionTest, ABusyDaemonThatWantsForeverCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([&](Request& request) {
    FakeDaemon::Send(request, FrameType::kBusy, net::Busy{UINT32_MAX}.Encode());
    return true;
  });
  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(300ms));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(resolved.error().message.find("busy"), std::string::npos) << resolved.error().message;
}

TEST(SessionTest, AConnectionThatBreaksIsMadeAnew) {
  FakeDaemon daemon([](Request& request) {
    if (request.connection < 2) return false;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });
  EXPECT_TRUE(Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(60s)));
  EXPECT_EQ(daemon.connection_count(), 3);
}

TEST(SessionTest, AnErrorOfTheDaemonIsFinalAndNamesIt) {
  int asked = 0;
  FakeDaemon daemon([&](Request& request) {
    ++asked;
    FakeDaemon::SendError(request, ErrorCode::kIo, EROFS);
    return true;
  });
  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(60s));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kIo);
  EXPECT_EQ(resolved.error().system_errno, EROFS);
  EXPECT_NE(resolved.error().message.find(daemon.address().ToString()), std::string::npos)
      << resolved.error().message;
  EXPECT_EQ(asked, 1);
}

TEST(SessionTest, ADamagedManifestIsCorruptionAndNamesTheDataset) {
  FakeDaemon daemon([](Request& request) {
    auto manifest = EncodeDatasetManifest(OneFile(10)).value();
    manifest[20] ^= std::byte{1};
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     manifest);
    return true;
  });
  const auto resolved = Catalog(test::OneDaemon(daemon.address())).Resolve("some/name", In(60s));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kCorruption);
  EXPECT_NE(resolved.error().message.find("some/name"), std::string::npos);
}

TEST(SessionTest, ARepeatedPublicationIsTheSameAttempt) {
  std::vector<std::vector<std::byte>> bodies;
  FakeDaemon daemon([&](Request& request) {
    bodies.push_back(request.body);
    if (request.connection < 2) return false;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kPublish), net::RevisionReply{9}.Encode());
    return true;
  });
  const auto published = Catalog(test::OneDaemon(daemon.address()))
                             .Publish("name", OneFile(10), net::Publish::Mode::kCreate, 0, In(60s));
  ASSERT_TRUE(published) << published.error().message;
  ASSERT_EQ(bodies.size(), 3U);
  EXPECT_EQ(bodies[0], bodies[1]);
  EXPECT_EQ(bodies[0], bodies[2]);
}

// Threads that hold the lock of the parent's pool are not in the child.
TEST(SessionTest, AForkedChildHasAPoolOfItsOwn) {
  FakeDaemon daemon([](Request& request) {
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kList), net::ListReply{}.Encode());
    return true;
  });
  const Catalog catalog(test::OneDaemon(daemon.address()));
  ASSERT_TRUE(catalog.List("", In(60s)));
  EXPECT_EQ(test::RunInChild([&] { return catalog.List("", In(60s)) ? 0 : 1; }), 0);
  EXPECT_TRUE(catalog.List("", In(60s)));
  EXPECT_EQ(daemon.connection_count(), 2);
}

// Whoever gives a call up has lost patience long before the deadline of these tests.
class GivenUpTest : public testing::Test {
 protected:
  static constexpr auto kLong = 60s;

  // Runs `call` with a caller who gives it up when he is first asked.
  void ExpectSoonOver(const std::function<void()>& call) {
    const auto started = net::Clock::now();
    const Patience::GiveUp give_up = [] { return true; };
    {
      const Patience patience(give_up);
      call();
    }
    EXPECT_LT(net::Clock::now() - started, kLong / 2);
  }

  static Result<void> Nothing(net::Connection&) { return {}; }
};

TEST_F(GivenUpTest, WhileAllConnectionsAreInUse) {
  constexpr int kBound = 16;
  FakeDaemon daemon([](Request&) { return true; });
  const auto session = net::Session::Get(daemon.address());
  int depth = 0;
  const net::Session::Attempt nested = [&](net::Connection&) -> Result<void> {
    if (++depth < kBound) return session->Run(nested, In(kLong));
    ExpectSoonOver([&] { EXPECT_FALSE(session->Run(Nothing, In(kLong))); });
    return {};
  };
  EXPECT_TRUE(session->Run(nested, In(kLong)));
}

TEST_F(GivenUpTest, WhileTheDaemonIsBusy) {
  const test::VirtualClock clock;
  FakeDaemon daemon([](Request& request) {
    FakeDaemon::Send(request, FrameType::kBusy, net::Busy{60'000}.Encode());
    return true;
  });
  const auto started = net::Clock::now();
  ExpectSoonOver(
      [&] { EXPECT_FALSE(Catalog(test::OneDaemon(daemon.address())).Resolve("name", In(kLong))); });
  EXPECT_LT(net::Clock::now() - started, net::Channel::kRetryAfterMax / 2);
}

}  // namespace
}  // namespace ffrecord::client
