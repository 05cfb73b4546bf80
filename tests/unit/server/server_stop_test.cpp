// Goal: a daemon starts or says why not, and stops without losing what it has taken.
// Method: daemons in this process, stopped while clients read, or take nothing off.

#include "server/service/core/server.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "libffrecord/net/protocol/plan_messages.h"
#include "server_peers.h"

namespace ffrecord::server {
namespace {

// What the admin port answers to GET: "200", "503".
std::string HttpStatus(const net::Address& address, const std::string& path) {
  const auto socket = net::ConnectTcp(address, Soon()).value();
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + address.ToString() + "\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(socket->fd(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  for (std::array<char, 256> some; answer.size() < 12;) {
    pollfd waited{socket->fd(), POLLIN, 0};
    if (::poll(&waited, 1, 60'000) <= 0) return "none";
    const ssize_t got = ::recv(socket->fd(), some.data(), some.size(), 0);
    if (got <= 0) return "none";
    answer.append(some.data(), static_cast<std::size_t>(got));
  }
  return answer.substr(9, 3);
}

TEST_F(ServerTest, StoppingFinishesWhatWasTakenAndSaysGoodbye) {
  auto idle = Connect();
  auto channel = Connect();
  const std::string data(4 << 20, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  Result<BatchResult> read = Error{ErrorCode::kIo, ""};
  std::atomic<bool> begun = false;
  std::thread reader([&] {
    read = Read(*channel, {id_}, std::vector<net::BatchEntry>(12, {0, 0, 4 << 20, 0}), &begun);
  });
  EXPECT_TRUE(test::Eventually([&] { return begun.load(); }));

  const bool drained = daemon_.Stop(60s);

  reader.join();
  EXPECT_TRUE(drained);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().done.ok_count, 12U);
  EXPECT_FALSE(idle->Alive());
}

TEST_F(ServerTest, StoppingFinishesABatchThatWaitsForCredit) {
  ASSERT_TRUE(Put(*Connect(), id_, std::string(8'000, 'd')));
  net::BatchRead batch;
  batch.initial_grant_bytes = 0;
  batch.entries = {{0, 0, 8'000, 0}};
  RawPeer peer(daemon_.address());
  peer.Write(HelloFrame());
  ASSERT_TRUE(peer.Gets(0));
  peer.Write(FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode()));
  ASSERT_TRUE(peer.Gets(0));
  peer.Write(FrameOf(FrameType::kBatchRead, batch.Encode()));
  peer.Write(FrameOf(FrameType::kPing, {}));
  ASSERT_TRUE(peer.Gets(0)) << "the batch is taken";
  bool is_drained = false;
  std::thread stopper([&] { is_drained = daemon_.Stop(60s); });
  const bool is_told = peer.Gets(0);  // GOAWAY.

  peer.Write(FrameOf(FrameType::kGrant, net::Grant{1, 1 << 20}.Encode()));

  const bool has_bytes = peer.Gets(8'000);
  stopper.join();
  EXPECT_TRUE(is_told && has_bytes);
  EXPECT_TRUE(is_drained);
}

// An ERROR would be one for a request that nobody has made, and ends the client's connection.
TEST_F(ServerTest, WhatHasNoReplyHasNoneWhileTheDaemonDrains) {
  ASSERT_TRUE(Put(*Connect(), id_, std::string(8'000, 'd')));
  const auto channel = Connect();
  ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {}, Soon(),
                            "a binding"));
  net::BatchRead batch;
  batch.initial_grant_bytes = 0;
  batch.entries = {{0, 0, 8'000, 0}};
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request && channel->Call(FrameType::kPing, {}, {}, Soon(), "a pong"));
  std::thread stopper([&] { EXPECT_TRUE(daemon_.Stop(60s)); });
  EXPECT_TRUE(test::Eventually([&] { return channel->Poll() && !channel->reusable(); }));

  EXPECT_TRUE(channel->Send(FrameType::kPlanCancel, net::PlanCancel{7}.Encode()));
  EXPECT_TRUE(channel->Send(FrameType::kGrant, net::Grant{request.value(), 1 << 20}.Encode()));

  const auto reply = channel->Receive(request.value(), Soon(), "records");
  EXPECT_TRUE(reply) << reply.error().message;
  (void)channel->Break({ErrorCode::kUnavailable, "it has what it wants"});
  stopper.join();
}

TEST_F(ServerTest, WhileItDrainsItIsAliveAndNotReady) {
  Daemon daemon({.admin = net::Address{"127.0.0.1", 0}});
  const net::Address admin = daemon.server().admin_address().value();
  ASSERT_TRUE(Put(*ConnectTo(daemon), id_, std::string(8 << 20, 'd')));
  net::BatchRead batch;
  batch.entries.assign(100, {0, 0, 8 << 20, 0});
  auto stuck = std::make_unique<RawPeer>(daemon.address());
  stuck->Write(Joined(
      Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode())),
      FrameOf(FrameType::kBatchRead, batch.Encode())));
  ASSERT_TRUE(stuck->Gets(4096));  // The batch has begun.
  EXPECT_EQ(HttpStatus(admin, "/readyz"), "200");
  bool is_drained = false;
  std::thread stopper([&] { is_drained = daemon.Stop(60s); });

  EXPECT_TRUE(test::Eventually([&] { return HttpStatus(admin, "/readyz") == "503"; }));

  EXPECT_EQ(HttpStatus(admin, "/healthz"), "200");
  stuck.reset();
  stopper.join();
  EXPECT_TRUE(is_drained);
}

// Takes nothing more once it is told to die.
class DyingEngine final : public IoEngine {
 public:
  DyingEngine(std::unique_ptr<IoEngine> real, const std::atomic<bool>& dies)
      : real_(std::move(real)), dies_(dies) {}
  std::string_view name() const noexcept override { return "dying"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    if (dies_) return Error{ErrorCode::kIo, "the ring is gone", EBADF};
    return real_->Submit(requests);
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    return real_->Wait(done, count_min, timeout);
  }
  std::uint32_t in_flight() const noexcept override { return real_->in_flight(); }

 private:
  const std::unique_ptr<IoEngine> real_;
  const std::atomic<bool>& dies_;
};

TEST_F(ServerTest, AnEventLoopThatFailedIsGivenNobodyAndTheDaemonIsNotReady) {
  std::array<std::atomic<bool>, 2> dies{};
  std::size_t made_count = 0;
  std::atomic<int> told_count = 0;
  Daemon daemon({.core_count = 2,
                 .mapped_count_max = 0,  // All is read through the engine.
                 .make_engine = [&](std::uint32_t depth) -> Result<std::unique_ptr<IoEngine>> {
                   return std::unique_ptr<IoEngine>(std::make_unique<DyingEngine>(
                       MakeThreadsEngine(depth).value(), dies[made_count++]));
                 },
                 .admin = net::Address{"127.0.0.1", 0},
                 .on_failure = [&] { ++told_count; }});
  const net::Address admin = daemon.server().admin_address().value();
  ASSERT_TRUE(Put(*ConnectTo(daemon), id_, "data"));
  const auto reads = [&] {
    const auto channel = Channel::Connect(daemon.address(), Soon());
    return channel && Read(*channel.value(), {id_}, {{0, 0, 4, 0}});
  };

  dies[0] = true;
  EXPECT_TRUE(test::Eventually([&] { return !reads(); }));

  EXPECT_TRUE(test::Eventually([&] { return HttpStatus(admin, "/readyz") == "503"; }));
  EXPECT_EQ(HttpStatus(admin, "/healthz"), "200");
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(reads()) << i;
  EXPECT_EQ(told_count, 0);

  dies[1] = true;
  EXPECT_FALSE(reads());
  EXPECT_TRUE(test::Eventually([&] { return told_count == 1; }));
  EXPECT_FALSE(reads());  // Turned away, and not left waiting.
}

TEST_F(ServerTest, StoppingDoesNotWaitForAClientThatTakesNothing) {
  Daemon daemon({.stall_timeout = 1h});
  auto channel = ConnectTo(daemon);
  ASSERT_TRUE(Put(*channel, id_, std::string(8 << 20, 'd')));
  net::BatchRead batch;
  batch.entries.assign(100, {0, 0, 8 << 20, 0});
  RawPeer stuck(daemon.address());
  stuck.Write(Joined(
      Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode())),
      FrameOf(FrameType::kBatchRead, batch.Encode())));
  ASSERT_TRUE(stuck.Gets(4096));  // More than its greeting: the batch has begun.

  EXPECT_FALSE(daemon.Stop(500ms));
}

TEST(ServerStartTest, RefusesWithWordsThatHelp) {
  const Daemon daemon;
  const test::TempFolder folder;
  const auto start = [&](const std::filesystem::path& data, const net::Address& listen) {
    Server::Options options;
    options.data = {data};
    options.listen = listen;
    const auto server = Server::Start(options);
    return server ? Error{ErrorCode::kOk, ""} : server.error();
  };
  const net::Address any{"127.0.0.1", 0};
  test::WriteFile(folder / "file", "");

  const Error in_use = start(folder / "data", daemon.address());
  EXPECT_EQ(in_use.code, ErrorCode::kConflict);
  EXPECT_NE(in_use.message.find(daemon.address().ToString()), std::string::npos) << in_use.message;
  const Error locked = start(daemon.data(), any);
  EXPECT_EQ(locked.code, ErrorCode::kConflict);
  EXPECT_NE(locked.message.find("another ffrecordd uses"), std::string::npos) << locked.message;
  EXPECT_NE(start(folder / "file", any).code, ErrorCode::kOk);
  EXPECT_EQ(start(folder / "no" / "parent", any).code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord::server
