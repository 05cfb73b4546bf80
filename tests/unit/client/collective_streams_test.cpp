// Goal: several streams carry the same bits as one; a slow one costs its share, a broken or silent
// one nothing but its share until it is replaced, and all are cut and tuned alike.
// Method: threads as ranks over TCP; a relay before a rank slows, resets or mutes single streams.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>

#include "client/collective/group_messages.h"
#include "client/collective/links.h"
#include "collective_group.h"
#include "collective_relay.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/endpoint.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using testing::HasSubstr;

// Pieces of 4 KiB are copied and those of 64 KiB borrowed until they are taken.
TEST(CollectiveStreamsTest, AnyNumberOfStreamsGivesTheBitsOfOne) {
  const std::uint32_t seed = test::Seed();
  constexpr std::size_t kCount = 100'003;
  for (const std::uint32_t n : {2U, 3U, 4U}) {
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t rank = 0; rank < n; ++rank)
      inputs.push_back(RandomFloats(seed + rank, kCount));
    inputs[n - 1][kCount / 2] = std::numeric_limits<float>::quiet_NaN();
    inputs[0][7] = std::numeric_limits<float>::infinity();
    for (const Algorithm algorithm : kAlgorithms) {
      if (algorithm == Algorithm::kHierarchical) continue;  // Rings, between machines.
      for (const WireType wire : {WireType::kExact, WireType::kF16}) {
        if (wire == WireType::kF16 && algorithm == Algorithm::kHalvingDoubling) continue;
        for (const std::uint64_t chunk : {4U << 10, 64U << 10}) {
          Options options{
              .timeout = 20s, .chunk_size_bytes = chunk, .algorithm = algorithm, .wire = wire};
          const auto one = Reduced(n, options, inputs);
          options.streams = 3;
          const auto three = Reduced(n, options, inputs);
          ASSERT_EQ(std::memcmp(one.data(), three.data(), kCount * 4), 0)
              << "n " << n << " algorithm " << static_cast<int>(algorithm) << " wire "
              << static_cast<int>(wire) << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(CollectiveStreamsTest, MachinesThatShareMemoryHaveStreamsBetweenThem) {
  Group group(4, {.timeout = 20s, .chunk_size_bytes = 4096, .streams = 4}, Where::kInPairs);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{70'001}}) {
      std::vector<std::int64_t> data(count, rank);
      ASSERT_TRUE(AllReduce(engine, data));
      EXPECT_EQ(data, std::vector<std::int64_t>(count, 6));
    }
  });
}

// Two ranks, the second behind a relay: the streams of the first go through it.
struct RelayedPair {
  RelayedPair(const Options& options, Relay::FaultOf fault_of)
      : group(2, options, Where::kApart), relay(group.addresses[1], std::move(fault_of)) {
    group.addresses[1] = relay.address();
    group.Connect();
  }
  void ExpectExactSums(std::size_t count, int rounds) {
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (int round = 0; round < rounds; ++round) {
        std::vector<std::int64_t> data(count);
        for (std::size_t i = 0; i < count; ++i)
          data[i] = static_cast<std::int64_t>(i * 1'000'003 + rank * 7);
        const auto reduced = AllReduce(engine, data);
        ASSERT_TRUE(reduced) << reduced.error().message;
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], static_cast<std::int64_t>(2 * i * 1'000'003 + 7)) << "at " << i;
      }
    });
  }
  Group group;
  Relay relay;
};

TEST(CollectiveStreamsTest, ASlowStreamCarriesLessThanTheOthers) {
  RelayedPair pair(
      {.timeout = 60s, .chunk_size_bytes = 32 << 10, .streams = 2},
      [](std::size_t stream) { return Relay::Fault{.bytes_per_s = stream == 0 ? 1U << 20 : 0}; });
  pair.ExpectExactSums(1 << 20, 2);
  EXPECT_LT(pair.relay.bytes(0), pair.relay.bytes(1) / 2);
}

// The root of a broadcast takes nothing in; that others take from it is what moves.
TEST(CollectiveStreamsTest, WhoOnlySendsHasTimeAsLongAsItIsTakenFrom) {
  RelayedPair pair({.timeout = 6s, .algorithm = Algorithm::kRing},
                   [](std::size_t) { return Relay::Fault{.bytes_per_s = 2 << 20}; });
  pair.group.ForEach([](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::byte> data(16 << 20, std::byte(1 - rank));
    const auto token = engine.Broadcast(data.data(), data.size(), ReduceType::kBytes, 0).value();
    const auto ended = engine.Wait(token);
    ASSERT_TRUE(ended) << "rank " << rank << ": " << ended.error().message;
    EXPECT_EQ(std::ranges::count(data, std::byte{1}), static_cast<std::ptrdiff_t>(data.size()));
  });
}

// At different places: in what is copied and what is borrowed, in both halves of the ring, between
// operations, and in the word that a rank joins.
TEST(CollectiveStreamsTest, AStreamThatIsResetLosesNothingIsNamedAndReplaced) {
  constexpr std::size_t kCount = 60'001;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    for (const std::uint64_t chunk : {4U << 10, 64U << 10}) {
      for (const std::uint64_t after : {1'000U, 30'000U, 70'000U, 150'000U, 200'000U}) {
        SCOPED_TRACE(testing::Message() << "algorithm " << static_cast<int>(algorithm) << " chunk "
                                        << chunk << " after " << after);
        RelayedPair pair(
            {.timeout = 20s, .chunk_size_bytes = chunk, .algorithm = algorithm, .streams = 3},
            [&](std::size_t stream) {
              return Relay::Fault{.reset_after_bytes = stream == 1 ? after : 0};
            });
        // Until so much has gone over it.
        for (int round = 0; round < 50 && pair.group.engines[0].stats().streams_lost == 0; ++round)
          pair.ExpectExactSums(kCount, 1);
        const CollectiveEngine& first = pair.group.engines[0];
        // The relay lets the second connection of that stream be.
        for (const auto end = Clock::now() + 15s; first.events().size() < 2 && Clock::now() < end;)
          pair.ExpectExactSums(100, 1);
        pair.ExpectExactSums(kCount, 2);
        EXPECT_EQ(first.stats().streams_lost, 1U);
        const auto events = first.events();
        ASSERT_EQ(events.size(), 2U);
        EXPECT_THAT(events[0].text, HasSubstr("stream 1 of 3 from rank 0 to rank 1"));
        EXPECT_THAT(events[0].text, HasSubstr("was lost"));
        EXPECT_THAT(events[1].text, HasSubstr("stream 1 of 3 from rank 0 to rank 1"));
        EXPECT_THAT(events[1].text, HasSubstr("was replaced"));
      }
    }
  }
}

// What is sent again has been rounded before, and may have been overwritten since.
TEST(CollectiveStreamsTest, AStreamThatIsResetSpoilsNoSumOfHalves) {
  constexpr std::size_t kCount = 200'001;
  const std::uint32_t seed = test::Seed();
  const std::vector<std::vector<float>> inputs{RandomFloats(seed, kCount),
                                               RandomFloats(seed + 1, kCount)};
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    Options options{.timeout = 20s,
                    .chunk_size_bytes = 64 << 10,
                    .algorithm = algorithm,
                    .wire = WireType::kF16};
    const auto expected = Reduced(2, options, inputs);
    options.streams = 3;
    for (const std::uint64_t after : {1'000U, 30'000U, 70'000U, 100'000U, 150'000U}) {
      SCOPED_TRACE(testing::Message()
                   << "algorithm " << static_cast<int>(algorithm) << " after " << after);
      RelayedPair pair(options, [&](std::size_t connection) {
        return Relay::Fault{.reset_after_bytes = connection < 2 ? after : 0};
      });
      for (int round = 0; round < 10; ++round) {
        pair.group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
          auto data = inputs[rank];
          const auto reduced = AllReduce(engine, data);
          ASSERT_TRUE(reduced) << reduced.error().message;
          ASSERT_EQ(std::memcmp(data.data(), expected.data(), kCount * 4), 0);
        });
      }
    }
  }
}

// They carry nothing, and a word for each would be as much as they are.
TEST(CollectiveStreamsTest, ManyBarriersAreTakenWithoutAWordForEach) {
  Group group(2, {.timeout = 3s, .streams = 2}, Where::kApart);
  group.Connect();
  group.ForEach([](std::uint32_t, CollectiveEngine& engine) {
    std::vector<CollectiveEngine::Token> tokens;
    for (int i = 0; i < 3'000; ++i) tokens.push_back(engine.Barrier().value());
    for (const auto token : tokens) {
      const auto ended = engine.Wait(token);
      ASSERT_TRUE(ended) << ended.error().message;
    }
  });
}

// Of what it carried data may be lost, or only the word that it was taken. A quarter of the group's
// time limit is what is granted to it, or until the kernel has asked twice.
TEST(CollectiveStreamsTest, AStreamWhoseOtherEndIsSilentIsGivenUpAndReplaced) {
  RelayedPair pair(
      {.timeout = 12s, .chunk_size_bytes = 4096, .algorithm = Algorithm::kRing, .streams = 2},
      [](std::size_t connection) {
        // So is the first that comes in its place.
        const bool is_silent = connection == 1 || connection == 2;
        return Relay::Fault{.silent_after_bytes = is_silent ? 20'000U : 0};
      });
  const CollectiveEngine& first = pair.group.engines[0];
  for (const auto end = Clock::now() + 40s; first.events().size() < 4 && Clock::now() < end;)
    pair.ExpectExactSums(20'000, 1);
  const auto events = first.events();
  std::string told;
  for (const auto& event : events) told += event.text + "\n";
  ASSERT_EQ(events.size(), 4U) << told;
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_THAT(events[i].text, HasSubstr("stream 1 of 2 from rank 0 to rank 1"));
    EXPECT_THAT(events[i].text, HasSubstr("acknowledged for 3000 ms"));
    EXPECT_THAT(events[i + 1].text, HasSubstr("was replaced"));
  }
  pair.ExpectExactSums(20'000, 2);
  EXPECT_EQ(first.stats().streams_lost, 2U);
}

// Its operation has ended, for small pieces are copied: it waits for nothing, but is waited for.
TEST(CollectiveStreamsTest, AStreamThatFallsSilentIsGivenUpByOneThatHasEnded) {
  RelayedPair pair({.timeout = 12s, .chunk_size_bytes = 4096, .streams = 2},
                   [](std::size_t) { return Relay::Fault{}; });
  const auto broadcast = [&] {
    pair.group.ForEach([](std::uint32_t rank, CollectiveEngine& engine) {
      std::vector<std::byte> data(64 << 10, std::byte(1 - rank));
      const auto token = engine.Broadcast(data.data(), data.size(), ReduceType::kBytes, 0).value();
      const auto ended = engine.Wait(token);
      EXPECT_TRUE(ended) << "rank " << rank << ": " << ended.error().message;
      EXPECT_EQ(std::ranges::count(data, std::byte{1}), 64 << 10);
    });
  };
  broadcast();
  pair.relay.Silence(1);
  const CollectiveEngine& first = pair.group.engines[0];
  // The first of them waits, unless the stream had room for nothing.
  for (const auto end = Clock::now() + 20s;
       first.stats().streams_lost == 0 && !HasFailure() && Clock::now() < end;)
    broadcast();
  EXPECT_EQ(first.stats().streams_lost, 1U);
}

// It closes with pieces that its own machine still holds: the other rank has not come to them.
TEST(CollectiveStreamsTest, WhoClosesAtOnceHasSentWhatItsOperationsSent) {
  constexpr int kPieces = 200;
  constexpr std::size_t kSize = 16 << 10;
  RelayedPair pair({.timeout = 20s, .streams = 2},
                   [](std::size_t) { return Relay::Fault{.bytes_per_s = 4 << 20}; });
  pair.group.ForEach([](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::vector<std::byte>> data(kPieces,
                                             std::vector<std::byte>(kSize, std::byte(1 - rank)));
    std::vector<CollectiveEngine::Token> tokens;
    for (auto& each : data)
      tokens.push_back(engine.Broadcast(each.data(), kSize, ReduceType::kBytes, 0).value());
    for (const auto token : tokens) {
      const auto ended = engine.Wait(token);
      ASSERT_TRUE(ended) << "rank " << rank << ": " << ended.error().message;
    }
    for (const auto& each : data)
      ASSERT_EQ(std::ranges::count(each, std::byte{1}), static_cast<std::ptrdiff_t>(kSize));
    const CollectiveEngine gone(std::move(engine));
  });
}

TEST(CollectiveStreamsTest, ARankWhoseStreamsAllBreakIsNamed) {
  RelayedPair pair(
      {.timeout = 20s, .chunk_size_bytes = 4096, .algorithm = Algorithm::kRing, .streams = 3},
      [](std::size_t connection) {
        // Nor can they be replaced.
        return Relay::Fault{.reset_after_bytes = connection < 3 ? 100'000U : 1U};
      });
  const auto before = Clock::now();
  pair.group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    Result<void> reduced;
    while (reduced) {
      std::vector<float> data(200'000, 1);
      reduced = AllReduce(engine, data);
    }
    EXPECT_EQ(reduced.error().code, ErrorCode::kUnavailable) << reduced.error().message;
    // Each sees the other go, unless that one sees it first and tells.
    EXPECT_THAT(reduced.error().message,
                testing::AnyOf(HasSubstr("rank 0 at"), HasSubstr("rank 1 at")));
  });
  EXPECT_LT(Clock::now() - before, 15s);
}

TEST(CollectiveStreamsTest, AnEndInGoodOrderOverStreamsSpoilsNothing) {
  for (int round = 0; round < 10; ++round) {
    Group group(3, {.timeout = 20s, .streams = 3}, Where::kApart);
    group.Connect();
    group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
      std::vector<std::int32_t> data(50'000, 1);
      const auto reduced = AllReduce(engine, data);
      EXPECT_TRUE(reduced) << reduced.error().message;
      EXPECT_TRUE(engine.events().empty());
      const CollectiveEngine gone(std::move(engine));  // Closed here, as soon as it is done.
    });
  }
}

// Says `hello` to a running group; whether it is welcomed, and not shut out.
bool IsWelcomed(const std::string& address, const GroupHello& hello) {
  const auto to =
      net::ConnectTcp(net::Address::Parse(address, 0).value(), Clock::now() + 20s).value();
  EXPECT_TRUE(to->Send({.type = net::FrameType::kHello}, hello.Encode(), {}));
  const auto event = net::NextEvent(*to, Clock::now() + 20s, "a welcome");
  if (!event) {
    EXPECT_NE(event.error().code, ErrorCode::kDeadlineExceeded) << "left waiting";
    return false;
  }
  return event.value() == net::Endpoint::Event::kFrame &&
         to->header().type == net::ReplyTo(net::FrameType::kHello);
}

// The listener for streams that are made anew stays open as long as the group.
TEST(CollectiveStreamsTest, WhoDoesNotKnowTheSecretIsNoStreamMadeAnew) {
  const Options options{.timeout = 20s, .streams = 2};
  Group group(2, options, Where::kApart);
  group.Connect();
  const std::string address = MemberAddress::Parse(group.addresses[0]).value().tcp;
  const GroupHello right{.secret = kSecret,
                         .rank = 1,
                         .world_size = 2,
                         .chunk_size_bytes = options.chunk_size_bytes,
                         .streams = 2,
                         .stream = 1};
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{15}}) {
    GroupHello stranger = right;
    stranger.secret[wrong] ^= std::byte{1};
    EXPECT_FALSE(IsWelcomed(address, stranger)) << "byte " << wrong;
  }
  // Nor who would cut or round otherwise.
  std::array<GroupHello, 4> others{right, right, right, right};
  others[0].world_size = 3;
  others[1].chunk_size_bytes /= 2;
  others[2].wire = WireType::kF16;
  others[3].streams = 3;
  for (std::size_t i = 0; i < others.size(); ++i)
    EXPECT_FALSE(IsWelcomed(address, others[i])) << "difference " << i;
  group.ForEach([](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::int64_t> data(70'001, rank);
    const auto reduced = AllReduce(engine, data);
    ASSERT_TRUE(reduced) << reduced.error().message;
    EXPECT_EQ(data, std::vector<std::int64_t>(70'001, 1));
  });
  EXPECT_TRUE(IsWelcomed(address, right)) << "nothing but the secret was wrong";
}

// Who connects and says nothing takes the place of the oldest such one, and of nothing else.
TEST(CollectiveStreamsTest, SilentStrangersAreHeldInSmallNumber) {
  Group group(2, {.timeout = 20s, .streams = 2}, Where::kApart);
  group.Connect();
  const auto address =
      net::Address::Parse(MemberAddress::Parse(group.addresses[0]).value().tcp, 0).value();
  std::vector<std::unique_ptr<net::Endpoint>> strangers;
  for (int i = 0; i < 40; ++i)
    strangers.push_back(net::ConnectTcp(address, Clock::now() + 20s).value());
  const auto event = net::NextEvent(*strangers.front(), Clock::now() + 5s, "to be shut out");
  EXPECT_TRUE(event ? event.value() == net::Endpoint::Event::kClosed
                    : event.error().code != ErrorCode::kDeadlineExceeded);
  group.ForEach([](std::uint32_t, CollectiveEngine& engine) {
    std::vector<std::int32_t> data(1000, 1);
    EXPECT_TRUE(AllReduce(engine, data));
  });
}

TEST(CollectiveStreamsTest, DifferentNumbersOfStreamsAreRefused) {
  auto zero = CollectiveEngine::Create(0, 2, {.timeout = 20s, .shares_memory = false}).value();
  auto one = CollectiveEngine::Create(1, 2, {.timeout = 20s, .streams = 2, .shares_memory = false})
                 .value();
  const std::vector<std::string> addresses{zero.address(), one.address()};
  std::thread other([&] { EXPECT_FALSE(zero.Connect(addresses, kSecret)); });
  const auto connected = one.Connect(addresses, kSecret);
  other.join();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(connected.error().message, HasSubstr("in 2 streams"));
  EXPECT_FALSE(CollectiveEngine::Create(0, 2, {.streams = 0}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 2, {.streams = 17}));
}

TEST(CollectiveStreamsTest, WhatATakerMayNotSayEndsTheOperation) {
  auto engine =
      CollectiveEngine::Create(
          0, 2,
          {.timeout = 20s, .algorithm = Algorithm::kRing, .streams = 2, .shares_memory = false})
          .value();
  auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  const std::vector<std::string> addresses{engine.address(), listener.address().ToString()};
  std::thread joins([&] { EXPECT_TRUE(engine.Connect(addresses, kSecret)); });
  auto links = JoinGroup({.secret = kSecret,
                          .rank = 1,
                          .world_size = 2,
                          .chunk_size_bytes = Options{}.chunk_size_bytes,
                          .streams = 2},
                         addresses, Machines(), {.listener = listener}, Clock::now() + 20s)
                   .value();
  ASSERT_EQ(links.to.size(), 2U);
  ASSERT_EQ(links.from.size(), 2U);
  const CollectiveData barrier{.payload_check = Xxh3({}),
                               .step = 1,
                               .type = ReduceType::kI64,
                               .algorithm = Algorithm::kRecursiveDoubling};
  ASSERT_TRUE(
      links.to[1].endpoint->Send({.type = net::FrameType::kCollectiveData}, barrier.Encode(), {}));
  ASSERT_TRUE(net::Flush(*links.to[1].endpoint, Clock::now() + 20s));
  joins.join();
  // The barrier came on one stream; of the other nothing can be taken.
  for (auto& link : links.from) {
    ASSERT_TRUE(link.endpoint->Send({.type = net::FrameType::kCollectiveTaken},
                                    CollectiveTaken{.first = 0, .pieces = 2}.Encode(), {}));
    std::ignore = net::Flush(*link.endpoint, Clock::now() + 5s);
  }
  std::vector<float> data(10);
  const auto reduced = AllReduce(engine, data);
  ASSERT_FALSE(reduced);
  EXPECT_EQ(reduced.error().code, ErrorCode::kCorruption) << reduced.error().message;
  EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
}

// Over TCP nobody is given memory to write into; not even an empty piece may be said to lie there.
TEST(CollectiveStreamsTest, AWrittenPieceWithoutMemoryEndsTheGroup) {
  auto engine = CollectiveEngine::Create(
                    0, 2, {.timeout = 20s, .algorithm = Algorithm::kRing, .shares_memory = false})
                    .value();
  auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  const std::vector<std::string> addresses{engine.address(), listener.address().ToString()};
  Result<void> connected;
  std::thread joins([&] { connected = engine.Connect(addresses, kSecret); });
  auto links = JoinGroup({.secret = kSecret,
                          .rank = 1,
                          .world_size = 2,
                          .chunk_size_bytes = Options{}.chunk_size_bytes},
                         addresses, Machines(), {.listener = listener}, Clock::now() + 20s)
                   .value();
  const CollectivePlaced barrier{.data = {.payload_check = Xxh3({}),
                                          .step = 1,
                                          .type = ReduceType::kI64,
                                          .algorithm = Algorithm::kRecursiveDoubling}};
  ASSERT_TRUE(links.to[0].endpoint->Send({.type = net::FrameType::kCollectivePlaced},
                                         barrier.Encode(), {}));
  std::ignore = net::Flush(*links.to[0].endpoint, Clock::now() + 20s);
  joins.join();
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().message, HasSubstr("where it has no room"));
}

TEST(CollectiveStreamsTest, AllThatIsTunedMayChangeBetweenTwoOperations) {
  Group group(3, {.timeout = 20s, .chunk_size_bytes = 64 << 10, .streams = 3}, Where::kApart);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    EXPECT_FALSE(engine.Tune({.chunk_size_bytes = 128 << 10}));
    EXPECT_FALSE(engine.Tune({.chunk_size_bytes = 1}));
    EXPECT_FALSE(engine.Tune({.algorithm = Algorithm::kHierarchical}));
    std::vector<CollectiveEngine::Token> tokens;
    std::vector<std::vector<std::int64_t>> arrays;
    for (const std::uint64_t chunk : {1U << 10, 64U << 10, 5U << 10})
      for (const auto algorithm : {Algorithm::kRing, Algorithm::kDoubleTree})
        for (const auto streams : {std::uint16_t{1}, std::uint16_t{3}}) {
          ASSERT_TRUE(
              engine.Tune({.chunk_size_bytes = chunk, .algorithm = algorithm, .streams = streams}));
          auto& data = arrays.emplace_back(30'000, rank + 1);
          tokens.push_back(
              engine.AllReduce(data.data(), data.size(), ReduceType::kI64, ReduceOp::kSum).value());
        }
    for (const auto token : tokens) ASSERT_TRUE(engine.Wait(token));
    for (const auto& data : arrays) EXPECT_EQ(data, std::vector<std::int64_t>(30'000, 6));
  });
}

// It cuts arrays anew in each step, and fp16 is scaled by piece.
TEST(CollectiveStreamsTest, HalvingIsNoTuningOfF16) {
  Group group(2, {.timeout = 20s, .wire = WireType::kF16}, Where::kApart);
  group.Connect();
  for (auto& engine : group.engines) {
    EXPECT_FALSE(engine.Tune({.algorithm = Algorithm::kHalvingDoubling}));
    EXPECT_TRUE(engine.Tune({.algorithm = Algorithm::kDoubleTree}));
  }
}

}  // namespace
}  // namespace ffrecord::client
