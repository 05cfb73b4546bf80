// Goal: every rank is told which rank failed, in time.
// Method: threads as ranks that die, lie, differ or never come, over TCP and in shared memory.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "client/collective/links.h"
#include "collective_group.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/endpoint.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using testing::HasSubstr;

void ExpectLeaverIsNamed(std::uint32_t n, std::uint32_t leaver, Algorithm algorithm, Where where) {
  SCOPED_TRACE(testing::Message() << "n " << n << " leaver " << leaver << " algorithm "
                                  << static_cast<int>(algorithm) << " where "
                                  << static_cast<int>(where));
  const test::VirtualClock clock;
  Group group(n, {.timeout = 20s, .algorithm = algorithm}, where);
  group.Connect();
  const auto before = Clock::now();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(4 << 20, 1);
    if (rank == leaver) {
      // Others are sending by now; neither the kernel nor a ring takes all of it.
      const auto has_sent = [](const CollectiveEngine& other) {
        return other.stats().bytes_sent + other.stats().bytes_shared >= (256 << 10);
      };
      while (std::ranges::none_of(group.engines, has_sent)) std::this_thread::yield();
      engine.Shutdown();
      EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kUnavailable);
      return;
    }
    const std::string name = "rank " + std::to_string(leaver) + " at";
    const auto reduced = AllReduce(engine, data);
    ASSERT_FALSE(reduced);
    EXPECT_EQ(reduced.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(reduced.error().message, HasSubstr(name));
    const auto later = AllReduce(engine, data);
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(later.error().message, HasSubstr(name));
  });
  EXPECT_LT(Clock::now() - before, 3s);  // No timeout.
}

TEST(CollectiveFaultsTest, ARankThatLeavesInTheMiddleIsNamedToAllOthersAtOnce) {
  for (const Where where : {Where::kApart, Where::kTogether})
    for (const Algorithm algorithm : kAlgorithms)
      for (const std::uint32_t n : {2U, 3U, 5U})
        for (std::uint32_t leaver = 0; leaver < n; ++leaver)
          if (IsPossible(algorithm, n, where)) ExpectLeaverIsNamed(n, leaver, algorithm, where);
}

// Rank 1 of 2, played by the test with frames of its own, up to where the first operation is due.
class FakeRank {
 public:
  explicit FakeRank(CollectiveEngine& other)
      : listener_(net::TcpListener::Listen({"127.0.0.1", 0}).value()) {
    const std::vector<std::string> addresses{other.address(), listener_.address().ToString()};
    std::thread joins([&] {
      const auto connected = other.Connect(addresses, kSecret);
      ASSERT_TRUE(connected) << connected.error().message;
    });
    auto links = JoinGroup({.secret = kSecret,
                            .rank = 1,
                            .world_size = 2,
                            .chunk_size_bytes = Options{}.chunk_size_bytes},
                           addresses, Machines(), {.listener = listener_}, Clock::now() + 20s)
                     .value();
    to_ = std::move(links.to.front().endpoint);
    from_ = std::move(links.from.front().endpoint);
    Send({.step = 1, .type = ReduceType::kI64, .algorithm = Algorithm::kRecursiveDoubling}, {});
    EXPECT_EQ(net::NextEvent(*from_, Clock::now() + 20s, "the barrier").value(),
              net::Endpoint::Event::kFrame);
    joins.join();
  }

  void Send(CollectiveData data, std::span<const std::byte> payload,
            std::uint64_t check_spoilt = 0) {
    data.payload_check = Xxh3(payload) ^ check_spoilt;
    Send(net::FrameType::kCollectiveData, data.Encode(), payload);
  }
  void Send(net::FrameType type, std::span<const std::byte> body,
            std::span<const std::byte> payload) {
    ASSERT_TRUE(to_->Send({.type = type}, body, {&payload, 1}));
    // Not asserted: the engine may refuse a frame by its head and hang up before the rest is sent.
    std::ignore = net::Flush(*to_, Clock::now() + 5s);
  }
  void Close() {
    to_ = nullptr;
    from_ = nullptr;
  }

 private:
  net::TcpListener listener_;
  std::unique_ptr<net::Endpoint> to_;
  std::unique_ptr<net::Endpoint> from_;
};

TEST(CollectiveFaultsTest, WhatAPeerMayNotSendEndsTheOperationAndNothingElse) {
  constexpr std::uint64_t kCount = 1000;
  const std::vector<std::byte> half(kCount / 2 * 4);
  const std::vector<std::byte> less(half.size() - 4);
  // What rank 0 awaits first: its own half.
  const CollectiveData good{.sequence = 1, .count = kCount};
  CollectiveData other_step = good;
  other_step.step = 1;
  CollectiveData other_place = good;
  other_place.first = kCount / 2;
  CollectiveData other_operation = good;
  other_operation.sequence = 3;
  const std::vector<std::byte> no_body(3);
  struct Case {
    std::function<void(FakeRank&)> act;
    ErrorCode code;
    std::string_view named;
  };
  const Case all[] = {
      {[&](FakeRank& fake) { fake.Send(good, half, 1); }, ErrorCode::kCorruption,
       "fails its check"},
      {[&](FakeRank& fake) { fake.Send(good, less); }, ErrorCode::kCorruption, "out of order"},
      {[&](FakeRank& fake) { fake.Send(other_step, half); }, ErrorCode::kCorruption, "order"},
      {[&](FakeRank& fake) { fake.Send(other_place, half); }, ErrorCode::kCorruption, "order"},
      {[&](FakeRank& fake) { fake.Send(other_operation, half); }, ErrorCode::kCorruption,
       "is at operation 3"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kCollectiveData, no_body, {}); },
       ErrorCode::kCorruption, "malformed"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kPing, GroupWaiting{9}.Encode(), {}); },
       ErrorCode::kCorruption, "waits for rank 9"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kHello, {}, {}); }, ErrorCode::kCorruption,
       "type 1"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kError, {}, {}); }, ErrorCode::kCorruption,
       "malformed"},
      {[&](FakeRank& fake) {
         fake.Send(good, half);
         fake.Close();
       },
       ErrorCode::kUnavailable, "rank 1 at"},
  };
  for (const Case& one : all) {
    auto engine =
        CollectiveEngine::Create(0, 2, {.timeout = 20s, .algorithm = Algorithm::kRing}).value();
    FakeRank fake(engine);
    std::vector<float> data(kCount, 1);
    const auto token =
        engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum).value();

    one.act(fake);

    const auto reduced = engine.Wait(token);
    ASSERT_FALSE(reduced) << one.named;
    EXPECT_EQ(reduced.error().code, one.code) << reduced.error().message;
    EXPECT_THAT(reduced.error().message, HasSubstr(one.named));
    EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
  }
}

// Its pieces come more slowly than the timeout allows the whole, each within it.
TEST(CollectiveFaultsTest, ProgressPutsTheDeadlineOffAndSilenceDoesNot) {
  test::VirtualClock clock;
  constexpr auto kTimeout = 600ms;
  const std::uint64_t kPiece = Options{}.chunk_size_bytes;
  const std::vector<std::byte> piece(kPiece);
  const CollectiveData first{.sequence = 1,
                             .count = 4 * kPiece,
                             .type = ReduceType::kBytes,
                             .collective = Collective::kBroadcast,
                             .root = 1};
  auto engine =
      CollectiveEngine::Create(0, 2, {.timeout = kTimeout, .algorithm = Algorithm::kRing}).value();
  FakeRank fake(engine);
  std::vector<std::byte> data(4 * kPiece);
  const auto before = Clock::now();
  const auto token = engine.Broadcast(data.data(), data.size(), ReduceType::kBytes, 1).value();

  for (std::uint64_t i = 0; i < 3; ++i) {
    clock.RunFor(kTimeout / 2);
    CollectiveData next = first;
    next.first = i * kPiece;
    fake.Send(next, piece);
  }

  const auto ended = engine.Wait(token);
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message, HasSubstr("timed out"));
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1 does not answer"));
  EXPECT_GE(Clock::now() - before, 5 * kTimeout / 2);
  EXPECT_LT(Clock::now() - before, 5 * kTimeout);
}

void ExpectAbsenteeIsNamed(std::uint32_t n, Algorithm algorithm, Where where) {
  // Who waits for whom is told on from rank to rank.
  constexpr auto kTimeout = 3s;
  Group group(n, {.timeout = kTimeout, .algorithm = algorithm}, where);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    if (rank == 1) return;
    const auto before = Clock::now();
    std::vector<float> data(1 << 20, 1);
    const auto reduced = AllReduce(engine, data);
    ASSERT_FALSE(reduced);
    EXPECT_GE(Clock::now() - before, kTimeout / 2);
    EXPECT_LT(Clock::now() - before, 2 * kTimeout);
    EXPECT_EQ(reduced.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(reduced.error().message, HasSubstr("rank 1 answers but has not joined"))
        << "algorithm " << static_cast<int>(algorithm);
  });
  // It learns of it too.
  std::vector<float> data(1);
  EXPECT_EQ(AllReduce(group.engines[1], data).error().code, ErrorCode::kDeadlineExceeded);
}

TEST(CollectiveFaultsTest, ARankThatNeverSubmitsIsNamedToAllWhenTimeIsUp) {
  const test::VirtualClock clock;
  std::vector<std::thread> groups;  // Side by side, for they only wait.
  groups.emplace_back(ExpectAbsenteeIsNamed, 2, Algorithm::kRing, Where::kApart);
  groups.emplace_back(ExpectAbsenteeIsNamed, 2, Algorithm::kHierarchical, Where::kTogether);
  for (const Algorithm algorithm : kAlgorithms)
    for (const Where where : kEverywhere)
      if (IsPossible(algorithm, 4, where))
        groups.emplace_back(ExpectAbsenteeIsNamed, 4, algorithm, where);
  for (auto& group : groups) group.join();
}

// Two that wait for each other: each is told that the other waits for it, and knows that it does
// not hold up itself.
TEST(CollectiveFaultsTest, ARankThatIsWaitedForDoesNotBlameItself) {
  test::VirtualClock clock;
  auto engine =
      CollectiveEngine::Create(0, 2, {.timeout = 800ms, .algorithm = Algorithm::kRing}).value();
  FakeRank fake(engine);
  std::vector<float> data(1000, 1);
  const auto before = Clock::now();
  const auto token =
      engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum).value();
  // A word is believed for 150 ms.
  for (; Clock::now() < before + 740ms; clock.RunFor(10ms))
    fake.Send(net::FrameType::kPing, GroupWaiting{0}.Encode(), {});
  const auto ended = engine.Wait(token);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1 does not answer"));
}

// What a peer said once is no news when it is long ago.
TEST(CollectiveFaultsTest, AnOldWordNamesNobody) {
  const test::VirtualClock clock;
  auto engine =
      CollectiveEngine::Create(0, 2, {.timeout = 800ms, .algorithm = Algorithm::kRing}).value();
  FakeRank fake(engine);
  std::vector<float> data(1000, 1);
  const auto token =
      engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum).value();
  fake.Send(net::FrameType::kPing, GroupWaiting{.rank = 1, .is_absent = true}.Encode(), {});
  const auto ended = engine.Wait(token);
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1 does not answer"));
}

// Numbers of one size would be added as the wrong ones.
TEST(CollectiveFaultsTest, TypesThatDifferAreNamed) {
  Group group(2, {.timeout = 20s});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> floats(100);
    std::vector<std::int32_t> integers(100);
    const auto reduced = rank == 1 ? AllReduce(engine, integers) : AllReduce(engine, floats);
    ASSERT_FALSE(reduced);
    EXPECT_EQ(reduced.error().code, ErrorCode::kInvalidArgument) << reduced.error().message;
    EXPECT_THAT(reduced.error().message, HasSubstr("sum of 100 f32"));
    EXPECT_THAT(reduced.error().message, HasSubstr("sum of 100 i32"));
  });
}

TEST(CollectiveFaultsTest, OperationsThatDifferAreNamedOnAllRanks) {
  for (const std::uint32_t n : {2U, 4U}) {
    for (const bool by_size : {false, true}) {
      Group group(n, {.timeout = 20s});
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        std::vector<float> data(rank == 1 && by_size ? 101 : 100);
        const auto reduced =
            AllReduce(engine, data, rank == 1 && !by_size ? ReduceOp::kMax : ReduceOp::kSum);
        ASSERT_FALSE(reduced);
        EXPECT_EQ(reduced.error().code, ErrorCode::kInvalidArgument) << reduced.error().message;
        EXPECT_THAT(reduced.error().message, HasSubstr("sum of 100 f32"));
        EXPECT_THAT(reduced.error().message,
                    HasSubstr(by_size ? "sum of 101 f32" : "maximum of 100 f32"));
        EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
      });
    }
  }
}

TEST(CollectiveFaultsTest, AnEmptyArrayHereAndElementsThereDifferToo) {
  Group group(3, {.timeout = 20s});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(rank == 2 ? 5 : 0);
    EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kInvalidArgument);
  });
}

// A collective of another kind, or from another root, is another operation. Who only sends may have
// ended before a difference shows; then the next one fails.
TEST(CollectiveFaultsTest, DifferentCollectivesAreNamed) {
  Group group(3, {.timeout = 20s});
  group.Connect();
  std::atomic<int> named = 0;
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(10);
    const auto token = engine.Broadcast(data.data(), 10, ReduceType::kF32, rank == 2 ? 0 : 1);
    auto ended = engine.Wait(token.value());
    if (ended) {
      const auto barrier = engine.Barrier();
      ended = barrier ? engine.Wait(barrier.value()) : Result<void>(barrier.error());
    }
    ASSERT_FALSE(ended);
    const std::string& message = ended.error().message;
    if (ended.error().code == ErrorCode::kInvalidArgument &&
        message.find("broadcast from rank 1") != std::string::npos &&
        message.find("broadcast from rank 0") != std::string::npos)
      ++named;
  });
  EXPECT_GE(named, 1);
}

}  // namespace
}  // namespace ffrecord::client
