// Goal: a group forms of its own ranks only, or says why not, and ends in good order.
// Method: threads as ranks; wrong secrets, worlds and options, strangers, and ranks that never
// come.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "child.h"
#include "client/collective/group_messages.h"
#include "collective_group.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/endpoint.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using testing::HasSubstr;

TEST(CollectiveJoiningTest, AWrongSecretIsDenied) {
  for (const std::uint32_t n : {2U, 3U}) {
    Group group(n, {.timeout = 20s});
    std::atomic<int> denied = 0;
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      Secret secret = kSecret;
      if (rank == 1) secret[15] = std::byte{1};
      const auto connected = engine.Connect(group.addresses, secret);
      ASSERT_FALSE(connected);
      if (connected.error().code == ErrorCode::kDenied) ++denied;
      if (rank == 1) {
        EXPECT_THAT(connected.error().message, HasSubstr("secret"));
      }
      std::vector<float> data(1);
      EXPECT_FALSE(AllReduce(engine, data));
    });
    EXPECT_GE(denied, 2);  // The two ends of that connection; others may see them leave first.
  }
}

TEST(CollectiveJoiningTest, StrangersDoNotDisturbAGroupThatForms) {
  Group group(2, {.timeout = 20s});
  std::vector<std::unique_ptr<net::Endpoint>> strangers;
  for (int i = 0; i < 20; ++i) {
    const auto met = MemberAddress::Parse(group.addresses[static_cast<std::size_t>(i % 2)]).value();
    const auto address = net::Address::Parse(met.tcp, 0);
    strangers.push_back((i % 4 < 2 ? net::ConnectTcp(address.value(), Clock::now() + 20s)
                                   : net::ConnectLocal(met.local, "a rank", Clock::now() + 20s))
                            .value());
    if (i % 3 == 0) strangers.back()->Close();
    if (i % 3 == 1) {
      // They may be shown the door before they have said it.
      std::ignore = strangers.back()->Send({.type = net::FrameType::kPing}, {}, {});
      std::ignore = net::Flush(*strangers.back(), Clock::now() + 1s);
    }
  }
  group.Connect();
}

// A rank that has ended leaves its name on the machine to anybody.
TEST(CollectiveJoiningTest, TheSecretIsShownToNoSocketOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  const std::string name = NewLocalName();
  std::array<int, 2> heard{};  // Its end, when the child ends.
  ASSERT_EQ(::pipe2(heard.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kNobody) != 0) ::_exit(test::kSkipped);
    auto listener = net::LocalListener::Listen(name);
    if (!listener || ::write(heard[1], "+", 1) != 1) ::_exit(1);
    pollfd waited{listener.value().fd(), POLLIN, 0};
    if (::poll(&waited, 1, 20'000) <= 0) ::_exit(2);
    const auto peer = listener.value().Accept();
    if (!peer || !peer.value()) ::_exit(3);
    peer.value()->SetLimits({4096, 0, /*descriptor_count_max=*/2});
    const auto event = net::NextEvent(*peer.value(), Clock::now() + 20s, "a secret");
    ::_exit(event && event.value() == net::Endpoint::Event::kFrame ? 4 : 0);
  }
  ::close(heard[1]);
  char ready = 0;
  const bool is_ready = ::read(heard[0], &ready, 1) == 1;
  ::close(heard[0]);
  if (is_ready) {
    auto engine = CollectiveEngine::Create(0, 2, {.timeout = 20s}).value();
    const auto own = MemberAddress::Parse(engine.address()).value();
    const auto other = net::TcpListener::Listen({"127.0.0.1", 0}).value();
    const MemberAddress dead{other.address().ToString(), own.machine, name};

    const auto connected = engine.Connect(std::vector{engine.address(), dead.ToString()}, kSecret);

    ASSERT_FALSE(connected);
    EXPECT_THAT(connected.error().message, HasSubstr("another user"));
    EXPECT_THAT(connected.error().message, HasSubstr("shares_memory"));
  }
  const int status = test::WaitForChild(child);
  if (status == test::kSkipped) GTEST_SKIP() << "not allowed to become another user here";
  EXPECT_EQ(status, 0);
}

// The other end may have been welcomed by all others before, and have begun: its first piece is
// there when the reply to its HELLO has just left.
TEST(CollectiveJoiningTest, APieceBehindTheHelloIsNotLost) {
  auto engine = CollectiveEngine::Create(
                    0, 2, {.timeout = 20s, .algorithm = Algorithm::kRing, .shares_memory = false})
                    .value();
  auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  const std::vector<std::string> addresses{engine.address(), listener.address().ToString()};
  const GroupHello hello{.secret = kSecret,
                         .rank = 1,
                         .world_size = 2,
                         .chunk_size_bytes = Options{}.chunk_size_bytes};
  const CollectiveData barrier{.payload_check = Xxh3({}),
                               .step = 1,
                               .type = ReduceType::kI64,
                               .algorithm = Algorithm::kRecursiveDoubling};
  const auto to =
      net::ConnectTcp(net::Address::Parse(addresses[0], 0).value(), Clock::now() + 20s).value();
  ASSERT_TRUE(to->Send({.type = net::FrameType::kHello}, hello.Encode(), {}));
  ASSERT_TRUE(to->Send({.type = net::FrameType::kCollectiveData}, barrier.Encode(), {}));
  ASSERT_TRUE(net::Flush(*to, Clock::now() + 20s));
  std::thread takes([&] {
    std::unique_ptr<net::Endpoint> from;
    pollfd waited{listener.fd(), POLLIN, 0};
    while (!from && ::poll(&waited, 1, 20'000) > 0) from = listener.Accept().value();
    ASSERT_TRUE(from);
    const auto event = net::NextEvent(*from, Clock::now() + 20s, "its HELLO");
    ASSERT_TRUE(event) << event.error().message;
    ASSERT_TRUE(from->Send({.type = net::ReplyTo(net::FrameType::kHello)}, {}, {}));
    EXPECT_TRUE(net::NextEvent(*from, Clock::now() + 20s, "its barrier"));
  });
  const auto connected = engine.Connect(addresses, kSecret);
  takes.join();
  EXPECT_TRUE(connected) << connected.error().message;
}

TEST(CollectiveJoiningTest, AMissingRankEndsConnectInTime) {
  const test::VirtualClock clock;
  constexpr auto kTimeout = 500ms;
  Group group(3, {.timeout = kTimeout});
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    if (rank == 1) return;  // Listens, but never comes.
    const auto before = Clock::now();
    const auto connected = engine.Connect(group.addresses, kSecret);
    ASSERT_FALSE(connected);
    EXPECT_TRUE(connected.error().code == ErrorCode::kDeadlineExceeded ||
                connected.error().code == ErrorCode::kUnavailable);
    EXPECT_THAT(connected.error().message, HasSubstr("rank"));
    EXPECT_LT(Clock::now() - before, 2 * kTimeout);
  });
}

TEST(CollectiveJoiningTest, ADifferentWorldOrChunkIsRefused) {
  auto zero = CollectiveEngine::Create(0, 2, {.timeout = 20s}).value();
  auto one = CollectiveEngine::Create(1, 2, {.timeout = 20s, .chunk_size_bytes = 4096}).value();
  const std::vector<std::string> addresses{zero.address(), one.address()};
  std::thread other([&] { EXPECT_FALSE(zero.Connect(addresses, kSecret)); });
  const auto connected = one.Connect(addresses, kSecret);
  other.join();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(connected.error().message, HasSubstr("chunks of 4096 bytes"));
}

TEST(CollectiveJoiningTest, MisuseIsRefusedAtOnce) {
  EXPECT_FALSE(CollectiveEngine::Create(2, 2, {}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 0, {}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.timeout = 0ms}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.chunk_size_bytes = 1}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.chunk_size_bytes = (8 << 20) + 1}));

  auto engine = CollectiveEngine::Create(0, 1, {}).value();
  float value = 3;
  EXPECT_FALSE(engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum));  // Not connected.
  EXPECT_FALSE(engine.Connect({}, kSecret));
  ASSERT_TRUE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  EXPECT_FALSE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  EXPECT_FALSE(engine.AllReduce(nullptr, 1, ReduceType::kF32, ReduceOp::kSum));
  EXPECT_FALSE(engine.AllReduce(&value, 1, ReduceType::kI32, ReduceOp::kAverage));
  EXPECT_FALSE(engine.AllReduce(&value, UINT64_MAX, ReduceType::kF32, ReduceOp::kSum));
  EXPECT_FALSE(engine.Broadcast(&value, 1, ReduceType::kF32, 1));
  EXPECT_FALSE(engine.Wait(99));
}

TEST(CollectiveJoiningTest, ShutdownWakesAllWhoWait) {
  Group group(2, {.timeout = 20s});
  group.Connect();
  std::vector<float> data(10);
  CollectiveEngine& engine = group.engines[0];
  const auto token = engine.AllReduce(data.data(), 10, ReduceType::kF32, ReduceOp::kSum);
  std::thread waits([&] { EXPECT_FALSE(engine.Wait(token.value())); });
  std::thread pumps([&] {
    for (;;) {
      const auto completion = engine.WaitAny(20s);
      if (completion) continue;  // Took it from the other thread.
      EXPECT_EQ(completion.error().code, ErrorCode::kUnavailable);
      return;
    }
  });
  engine.Shutdown();
  engine.Shutdown();
  waits.join();
  pumps.join();
}

// A pump tells "nothing yet" from "never again" by these codes.
TEST(CollectiveJoiningTest, AfterShutdownWaitAnyIsUnavailableThoughTheGroupHadRunOutOfTime) {
  Group group(2, {.timeout = 2s});  // For Connect too.
  group.Connect();
  CollectiveEngine& engine = group.engines[0];
  std::vector<float> data(10);
  EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(engine.WaitAny(1ms).error().code, ErrorCode::kDeadlineExceeded);
  engine.Shutdown();
  EXPECT_EQ(engine.WaitAny(20s).error().code, ErrorCode::kUnavailable);
}

TEST(CollectiveJoiningTest, AnEndInGoodOrderDoesNotSpoilWhatOthersStillReceive) {
  for (int round = 0; round < 20; ++round) {
    Group group(3, {.timeout = 20s});
    group.Connect();
    group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
      std::vector<std::int32_t> data(50'000, 1);
      const auto reduced = AllReduce(engine, data);
      EXPECT_TRUE(reduced) << reduced.error().message;
      const CollectiveEngine gone(std::move(engine));  // Closed here, as soon as it is done.
    });
  }
}

using CollectiveDeathTest = testing::Test;

TEST(CollectiveDeathTest, AForkedChildMustNotUseIt) {
  auto engine = CollectiveEngine::Create(0, 1, {}).value();
  ASSERT_TRUE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  float value = 1;
  EXPECT_DEATH((void)engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum), "is_here");
  EXPECT_TRUE(engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum));
}

}  // namespace
}  // namespace ffrecord::client
