// Goal: over RDMA ranks get the bits that they get over TCP, pieces land in the receiver's memory,
// and a rank that dies, lies, or cannot be had this way is named in time.
// Method: threads as ranks, on a device that speaks to itself; a rank that joins by hand. What
// needs a device is skipped where there is none: tests/rdma/run runs it in a machine that has one.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <thread>
#include <tuple>

#include "client/collective/links.h"
#include "collective_group.h"
#include "endpoint_pairs.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using net::Endpoint;
using net::FrameType;
using testing::HasSubstr;

constexpr Options OverRdma(Options options) {
  options.transport = GroupTransport::kRdma;
  options.shares_memory = false;
  return options;
}

TEST(CollectiveRdmaChoiceTest, ADeviceThatIsNotThereIsRefusedAtOnce) {
  auto options = OverRdma({.timeout = 20s});
  options.rdma_devices = {"no-such-device"};
  const auto engine = CollectiveEngine::Create(0, 2, options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kUnavailable) << engine.error().message;
}

TEST(CollectiveRdmaChoiceTest, DevicesWithoutTheTransportAreRefused) {
  const auto engine = CollectiveEngine::Create(0, 2, {.rdma_devices = {"mlx5_0"}});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(engine.error().message, HasSubstr("transport is TCP"));
}

TEST(CollectiveRdmaChoiceTest, QosThatDoesNotFitIsRefused) {
  for (const bool is_over_rdma : {false, true}) {
    Options options{.timeout = 20s, .rdma_service_level = is_over_rdma ? 16U : 1U};
    if (is_over_rdma) options = OverRdma(options);
    const auto engine = CollectiveEngine::Create(0, 2, options);
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(engine.error().message, HasSubstr(is_over_rdma ? "at most 15" : "is TCP"));
  }
}

// --- With a device -------------------------------------------------------------------------------

class CollectiveRdmaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!net::test::TestRdmaDevice()) GTEST_SKIP() << net::test::TestRdmaDevice().error().message;
  }
};

// Pieces that go as payload, that are written, and that do not fit the ring's end.
TEST_F(CollectiveRdmaTest, GivesTheBitsOfTcp) {
  const std::uint32_t seed = test::Seed();
  constexpr std::size_t kCount = 30'011;
  for (const std::uint32_t n : {2U, 3U}) {
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t rank = 0; rank < n; ++rank)
      inputs.push_back(RandomFloats(seed + rank, kCount));
    for (const Algorithm algorithm : kAlgorithms) {
      if (algorithm == Algorithm::kHierarchical) continue;
      for (const auto& [wire, chunk] :
           {std::pair(WireType::kExact, 1U << 10), std::pair(WireType::kBf16, 20'000U)}) {
        Options options{
            .timeout = 20s, .chunk_size_bytes = chunk, .algorithm = algorithm, .wire = wire};
        const auto tcp = Reduced(n, options, inputs);
        options.streams = static_cast<std::uint16_t>(n - 1);
        const auto rdma = Reduced(n, OverRdma(options), inputs);
        ASSERT_EQ(std::memcmp(tcp.data(), rdma.data(), kCount * 4), 0)
            << n << " ranks, algorithm " << static_cast<int>(algorithm) << ", chunk " << chunk;
      }
    }
  }
}

// More under way than the ring holds, and operations of all sizes behind each other.
TEST_F(CollectiveRdmaTest, ManyOperationsBehindEachOther) {
  std::mt19937 random(test::Seed());
  std::vector<std::size_t> counts(60);
  for (std::size_t& count : counts) count = random() % 3 == 0 ? random() % 60'000 : random() % 600;
  Group group(3, OverRdma({.timeout = 30s, .chunk_size_bytes = 32 << 10}), Where::kApart);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::vector<std::int32_t>> arrays;
    std::vector<CollectiveEngine::Token> tokens;
    for (const std::size_t count : counts) {
      auto& data = arrays.emplace_back(count + 1, rank + 1);
      tokens.push_back(
          engine.AllReduce(data.data(), data.size(), ReduceType::kI32, ReduceOp::kSum).value());
    }
    for (const auto token : tokens) {
      const auto ended = engine.Wait(token);
      ASSERT_TRUE(ended) << ended.error().message;
    }
    for (const auto& data : arrays) EXPECT_EQ(std::ranges::count(data, 6), std::ssize(data));
  });
}

TEST_F(CollectiveRdmaTest, ARankOverTcpIsRefused) {
  auto zero = CollectiveEngine::Create(0, 2, OverRdma({.timeout = 20s})).value();
  auto one = CollectiveEngine::Create(1, 2, {.timeout = 20s, .shares_memory = false}).value();
  const std::vector<std::string> addresses{zero.address(), one.address()};
  std::thread other([&] { EXPECT_FALSE(one.Connect(addresses, kSecret)); });
  const auto connected = zero.Connect(addresses, kSecret);
  other.join();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument) << connected.error().message;
  EXPECT_THAT(connected.error().message, HasSubstr("over RDMA"));
}

TEST_F(CollectiveRdmaTest, ARankThatIsKilledIsNamedInTime) {
  auto engine = CollectiveEngine::Create(0, 2, OverRdma({.timeout = 20s})).value();
  int up[2];
  int down[2];
  ASSERT_EQ(::pipe(up), 0);
  ASSERT_EQ(::pipe(down), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    // The address goes to the parent, all addresses come back; then it waits to be killed.
    auto own = CollectiveEngine::Create(1, 2, OverRdma({.timeout = 20s}));
    std::array<char, 256> text{};
    if (own) std::strncpy(text.data(), own.value().address().c_str(), text.size() - 1);
    std::ignore = ::write(up[1], text.data(), text.size());
    std::ignore = ::read(down[0], text.data(), text.size());
    const std::vector<std::string> addresses{text.data(), own.value().address()};
    std::ignore = own.value().Connect(addresses, kSecret);
    for (;;) ::pause();
  }
  std::array<char, 256> text{};
  ASSERT_EQ(::read(up[0], text.data(), text.size()), std::ssize(text));
  const std::vector<std::string> addresses{engine.address(), text.data()};
  text.fill(0);
  std::strncpy(text.data(), addresses[0].c_str(), text.size() - 1);
  ASSERT_EQ(::write(down[1], text.data(), text.size()), std::ssize(text));
  const auto connected = engine.Connect(addresses, kSecret);
  EXPECT_TRUE(connected) << connected.error().message;
  std::vector<float> data(1 << 20, 1);
  const auto token = engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum);
  ::kill(child, SIGKILL);
  const auto before = Clock::now();
  const auto reduced = engine.Wait(token.value());
  ASSERT_FALSE(reduced);
  EXPECT_LT(Clock::now() - before, 10s);
  EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
  ::waitpid(child, nullptr, 0);
  for (const int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
}

// --- Rails ---------------------------------------------------------------------------------------

// Two devices, of which one is taken away while both carry.
TEST_F(CollectiveRdmaTest, ARailThatIsTakenAwayLeavesItsShareToTheOther) {
  if (!std::filesystem::exists("/sys/class/net/rocelink1"))
    GTEST_SKIP() << "there is no second device that may be taken away";
  auto options =
      OverRdma({.timeout = 40s, .chunk_size_bytes = 16 << 10, .algorithm = Algorithm::kRing});
  options.streams = 2;
  options.rdma_devices = {"rxe0", "rxe1"};
  Group group(2, options, Where::kApart);
  group.Connect();
  std::thread takes_away;
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    // Until both have lost it.
    int step = 0;
    for (bool is_over = false; !is_over; ++step) {
      if (rank == 0 && step == 4)
        takes_away = std::thread([] {
          EXPECT_EQ(std::system("timeout 60 rdma link delete rxe1"), 0) << "it is still held";
        });
      std::vector<float> data(40'000, 1);
      data[0] = engine.stats().streams_lost > 0 ? 1 : 0;
      const auto reduced = AllReduce(engine, data);
      ASSERT_TRUE(reduced) << reduced.error().message;
      ASSERT_EQ(std::count(data.begin() + 1, data.end(), 2), std::ssize(data) - 1);
      is_over = data[0] == 2;
    }
    EXPECT_EQ(engine.stats().streams_lost, 1U);
    EXPECT_THAT(engine.events().at(0).text, HasSubstr("stream 1 of 2"));
  });
  if (takes_away.joinable()) takes_away.join();
  EXPECT_EQ(std::system("rdma link add rxe1 type rxe netdev rocelink1"), 0);
}

// --- A rank by hand ------------------------------------------------------------------------------

// Rank 0 is an engine, rank 1 says and reads what a test wants.
class CollectiveRdmaByHandTest : public CollectiveRdmaTest {
 protected:
  void SetUp() override {
    CollectiveRdmaTest::SetUp();
    if (IsSkipped()) return;
    engine_.emplace(
        CollectiveEngine::Create(
            0, 2,
            OverRdma({.timeout = 20s, .chunk_size_bytes = kChunk, .algorithm = Algorithm::kRing}))
            .value());
    auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
    const std::vector<std::string> addresses{engine_->address(), listener.address().ToString()};
    rails_.emplace_back();
    std::thread joins([&] { EXPECT_TRUE(engine_->Connect(addresses, kSecret)); });
    auto joined = JoinGroup({.secret = kSecret,
                             .rank = 1,
                             .world_size = 2,
                             .chunk_size_bytes = kChunk,
                             .transport = GroupTransport::kRdma},
                            addresses, Machines(), {.listener = listener, .rails = &rails_},
                            Clock::now() + 20s);
    if (!joined) joins.join();
    ASSERT_TRUE(joined) << joined.error().message;
    Links links = std::move(joined).value();
    to_ = std::move(links.to[0]);
    from_ = std::move(links.from[0]);
    const CollectiveData barrier{.payload_check = Xxh3({}),
                                 .step = 1,
                                 .type = ReduceType::kI64,
                                 .algorithm = Algorithm::kRecursiveDoubling};
    ASSERT_TRUE(Say({.type = FrameType::kCollectiveData}, barrier.Encode()));
    joins.join();
    EXPECT_EQ(Heard(), FrameType::kCollectiveData);  // Its barrier.
  }

  Result<void> Say(const net::FrameHeader& header, std::span<const std::byte> body) {
    FFR_TRY(to_.endpoint->Send(header, body, {}));
    return net::Flush(*to_.endpoint, Clock::now() + 20s);
  }
  FrameType Heard() {
    const auto event = net::NextEvent(*from_.endpoint, Clock::now() + 20s, "a frame");
    EXPECT_TRUE(event) << event.error().message;
    return from_.endpoint->header().type;
  }

  static constexpr std::uint64_t kChunk = 64 << 10;
  std::deque<net::RdmaLinks> rails_;
  std::optional<CollectiveEngine> engine_;
  Link to_;
  Link from_;
};

TEST_F(CollectiveRdmaByHandTest, LargePiecesAreWrittenIntoTheReceiversMemory) {
  std::vector<std::int32_t> data(2 * kChunk / 4);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i);
  const auto sent = data;
  const auto token =
      engine_->AllReduce(data.data(), data.size(), ReduceType::kI32, ReduceOp::kSum).value();

  ASSERT_EQ(Heard(), FrameType::kCollectivePlaced);
  const auto placed = CollectivePlaced::Decode(from_.endpoint->body()).value();
  ASSERT_EQ(placed.size_bytes, kChunk);
  const auto received = from_.ring_here.bytes().subspan(placed.offset_bytes, placed.size_bytes);
  EXPECT_EQ(std::memcmp(received.data(), sent.data() + placed.data.first, received.size()), 0);
  EXPECT_EQ(from_.endpoint->header().payload_size_bytes, 0U);
  engine_->Shutdown();
  EXPECT_FALSE(engine_->Wait(token));
}

TEST_F(CollectiveRdmaByHandTest, WhoSaysThatItWroteOutsideTheRingEndsTheGroup) {
  std::vector<std::int32_t> data(2 * kChunk / 4, 1);
  const auto token =
      engine_->AllReduce(data.data(), data.size(), ReduceType::kI32, ReduceOp::kSum).value();
  const CollectivePlaced lie{{.sequence = 1, .count = data.size(), .type = ReduceType::kI32},
                             to_.ring_there->size_bytes - 16,
                             kChunk};
  // It may close before we have seen that all has left.
  std::ignore = Say({.type = FrameType::kCollectivePlaced}, lie.Encode());
  const auto reduced = engine_->Wait(token);
  ASSERT_FALSE(reduced);
  EXPECT_THAT(reduced.error().message, HasSubstr("where it has no room"));
  EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
}

TEST_F(CollectiveRdmaByHandTest, BytesThatFailTheirCheckAreNoWrongSum) {
  std::vector<std::int32_t> data(2 * kChunk / 4, 1);
  const auto token =
      engine_->AllReduce(data.data(), data.size(), ReduceType::kI32, ReduceOp::kSum).value();
  const std::vector<std::byte> bytes(kChunk, std::byte{7});
  // Rank 1 of two gives part 0 in step 0.
  const CollectivePlaced placed{{.sequence = 1,
                                 .count = data.size(),
                                 .payload_check = Xxh3(bytes) + 1,
                                 .type = ReduceType::kI32},
                                0,
                                kChunk};
  const net::RemoteMemory::PlacedPiece piece{{.bytes = bytes}, to_.ring_there->memory};
  ASSERT_TRUE(to_.endpoint->remote_memory()->SendPlaced({.type = FrameType::kCollectivePlaced},
                                                        placed.Encode(), {&piece, 1}));
  std::ignore = net::Flush(*to_.endpoint, Clock::now() + 20s);
  const auto reduced = engine_->Wait(token);
  ASSERT_FALSE(reduced);
  EXPECT_EQ(reduced.error().code, ErrorCode::kCorruption) << reduced.error().message;
  EXPECT_THAT(reduced.error().message, HasSubstr("fails its check"));
}

}  // namespace
}  // namespace ffrecord::client
