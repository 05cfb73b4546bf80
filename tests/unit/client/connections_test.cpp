// Goal: a session opens no more connections than its bound, gives no dead connection to a call, and
// registers no more slabs over a connection than the daemon accepts, each of them once.
// Method: a scripted daemon that closes connections; a real daemon on this machine.

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "daemon.h"
#include "fake_daemon.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/rpc/breaker.h"
#include "libffrecord/net/rpc/connecting.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/transport/slab.h"

namespace ffrecord::net {
namespace {

using test::FakeDaemon;
using Request = test::FakeDaemon::Request;
using namespace std::chrono_literals;

Deadline In(std::chrono::milliseconds time) { return Clock::now() + time; }

// Method: each call holds its connection and makes the next one.
TEST(ConnectionsTest, CallsBeyondTheBoundWaitForAConnectionUntilTheirDeadline) {
  constexpr int kBound = 16;
  FakeDaemon daemon([](Request&) { return true; });
  const auto session = Session::Get(daemon.address());
  const auto nothing = [](Connection&) { return Result<void>(); };
  Result<void> refused;
  std::thread waiting;
  std::atomic<bool> has_waited = false;
  int depth = 0;
  const Session::Attempt nested = [&](Connection&) -> Result<void> {
    if (++depth < kBound) return session->Run(nested, In(60s));
    refused = session->Run(nothing, In(200ms));
    waiting = std::thread([&] { has_waited = static_cast<bool>(session->Run(nothing, In(60s))); });
    return {};
  };

  const auto done = session->Run(nested, In(60s));

  ASSERT_TRUE(waiting.joinable());
  waiting.join();
  EXPECT_TRUE(done) << done.error().message;
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(refused.error().message.find("all of which are in use"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(has_waited);
  EXPECT_EQ(daemon.connection_count(), kBound);
}

// The daemon answers and closes; the next call begins once the kernel has acknowledged the FIN.
TEST(ConnectionsTest, AConnectionThatTheDaemonClosedWhileIdleIsNotGivenToACall) {
  std::atomic<bool> has_hung_up = false;
  FakeDaemon daemon([&](Request& request) {
    FakeDaemon::Send(request, ReplyTo(FrameType::kPing), {});
    if (request.connection > 0) return true;
    (void)request.endpoint.Poll();  // The answer is on its way.
    EXPECT_EQ(::shutdown(request.endpoint.fd(), SHUT_WR), 0);
    int unacknowledged = 1;
    while (::ioctl(request.endpoint.fd(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0)
      std::this_thread::sleep_for(1ms);
    has_hung_up = true;
    return true;
  });
  const auto session = Session::Get(daemon.address());
  int attempts = 0;
  const auto ping = [&](Connection& connection) -> Result<void> {
    ++attempts;
    FFR_TRY(connection.Call(FrameType::kPing, {}, {}, In(60s), "an answer to PING"));
    return {};
  };

  ASSERT_TRUE(session->Run(ping, In(60s)));
  ASSERT_TRUE(test::Eventually([&] { return has_hung_up.load(); }));
  ASSERT_TRUE(session->Run(ping, In(60s)));

  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(daemon.connection_count(), 2);
}

// A queue that nobody polls may have tried alone: its success is everybody's.
TEST(ConnectionsTest, AConnectionThatNobodyTakesLetsOthersGo) {
  test::Daemon daemon;
  const auto session = Session::Get(daemon.address(), Transport::kTcp);
  daemon.Kill();
  for (std::uint32_t i = 0; i < Breaker::kFailuresMax; ++i) {
    Session::Tries failing(*session, Session::Tries::Until::kFirstFailure);
    ASSERT_FALSE(failing.Begin(In(10s)));
  }
  daemon.Start();
  Session::Tries tries(*session, Session::Tries::Until::kFirstFailure);
  Connecting connecting(tries);
  connecting.Start(In(60s));
  pollfd done{connecting.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&done, 1, 60'000), 1);

  const auto run = session->Run([](Connection&) { return Result<void>(); }, In(10s));

  EXPECT_TRUE(run) << run.error().message;
  const auto connected = connecting.Take();
  ASSERT_TRUE(connected && *connected);
  EXPECT_TRUE(tries.End({}));
}

TEST(ConnectionsTest, ASlabIsRegisteredOnceAndNoMoreThanTheBound) {
  const test::Daemon daemon;
  const auto session = Session::Get(daemon.address(), Transport::kShm);
  const auto connection = session->ConnectApart(In(60s)).value();
  std::vector<SharedSlab> slabs;
  for (std::uint64_t number = 1; number <= kSlabCountMax + 1; ++number)
    slabs.push_back({100 * number, Slab::Make(kSlabPageBytes).value()});
  std::vector<std::uint64_t> requests;
  const auto id_of = [&](const SharedSlab& slab) {
    const auto id = connection->SlabIdOf(slab, requests);
    return id ? id.value() : 0;
  };

  for (std::uint32_t id = 1; id <= kSlabCountMax; ++id) EXPECT_EQ(id_of(slabs[id - 1]), id);
  for (std::uint32_t id = 1; id <= kSlabCountMax; ++id) EXPECT_EQ(id_of(slabs[id - 1]), id);

  EXPECT_EQ(requests.size(), kSlabCountMax);
  for (const std::uint64_t request : requests)
    EXPECT_TRUE(connection->Receive(request, In(60s), "an answer to SLAB_REG"));
  EXPECT_TRUE(connection->reusable());
  const auto beyond = connection->SlabIdOf(slabs.back(), requests);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kUnavailable) << beyond.error().message;
  EXPECT_FALSE(connection->reusable());
}

}  // namespace
}  // namespace ffrecord::net
