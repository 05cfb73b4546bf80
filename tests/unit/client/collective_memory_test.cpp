// Goal: ranks of one machine reduce through shared memory, found by themselves, and a process that
// is killed or stopped there is named to the others in time.
// Method: threads as ranks, placed on machines by their addresses; processes that are killed; rings
// written to by hand.

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "client/collective/shared_ring.h"
#include "collective_group.h"
#include "libffrecord/base/unique_fd.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using testing::HasSubstr;

// --- Who shares
// -----------------------------------------------------------------------------------

TEST(CollectiveMemoryTest, RanksOfOneMachineShareMemoryUnlessToldNotTo) {
  constexpr std::uint64_t kCount = 1 << 18;
  for (const Where where : {Where::kApart, Where::kTogether}) {
    Group group(3, {.timeout = 20s}, where);
    group.Connect();
    group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
      std::vector<float> data(kCount, 1);
      ASSERT_TRUE(AllReduce(engine, data));
      EXPECT_EQ(engine.stats().bytes_sent == 0, where == Where::kTogether);
      EXPECT_EQ(engine.stats().bytes_shared > 0, where == Where::kTogether);
    });
  }
}

// Between machines only what the bound asks for: 2 (m - 1) / m of the rank's part.
TEST(CollectiveMemoryTest, EachRankSendsItsPartBetweenMachinesAndTheRestWithin) {
  constexpr std::uint64_t kCount = 1 << 20;
  Group group(6, {.timeout = 20s, .algorithm = Algorithm::kHierarchical});
  group.PlaceOn({0, 1, 0, 1, 0, 1});
  group.Connect();
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    std::vector<float> data(kCount, 1);
    const auto before = engine.stats();
    ASSERT_TRUE(AllReduce(engine, data));
    const auto after = engine.stats();
    for (const float value : data) ASSERT_EQ(value, 6);
    const double part = kCount * 4 / 3.0;
    EXPECT_NEAR(static_cast<double>(after.bytes_sent - before.bytes_sent), part, part * 0.01);
    EXPECT_NEAR(static_cast<double>(after.bytes_shared - before.bytes_shared), 4 * part,
                part * 0.01);
  });
}

TEST(CollectiveMemoryTest, UnequalMachinesAndARankThatSharesNothingStillReduce) {
  for (const bool with_stranger : {false, true}) {
    Group group(5, {.timeout = 20s, .chunk_size_bytes = 512});
    group.PlaceOn({0, 0, 0, 1, 1});
    if (with_stranger) group.addresses[1] = MemberAddress::Parse(group.addresses[1]).value().tcp;
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      std::vector<std::int64_t> data(10'000, rank);
      ASSERT_TRUE(AllReduce(engine, data));
      EXPECT_EQ(data, std::vector<std::int64_t>(10'000, 10));
    });
  }
}

TEST(CollectiveMemoryTest, AHierarchyOfUnequalMachinesIsRefused) {
  Group group(3, {.timeout = 20s, .algorithm = Algorithm::kHierarchical});
  group.PlaceOn({0, 0, 1});
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    const auto connected = engine.Connect(group.addresses, kSecret);
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(connected.error().message, HasSubstr("equally many ranks"));
  });
}

// Never a silent detour: who asked for shared memory and cannot have it is told.
TEST(CollectiveMemoryTest, ALocalSocketThatIsNotThereFailsConnectWithTheRemedy) {
  Group group(2, {.timeout = 20s});
  for (auto& text : group.addresses) {
    auto address = MemberAddress::Parse(text).value();
    address.local += "-gone";
    text = address.ToString();
  }
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    const auto connected = engine.Connect(group.addresses, kSecret);
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(connected.error().message, HasSubstr("shares_memory"));
  });
}

TEST(CollectiveMemoryTest, AddressesThatAreNoneAreRefused) {
  for (const std::string text : {"h:1/", "h:1/machine", "h:1//name", "h:1/machine/"}) {
    EXPECT_FALSE(MemberAddress::Parse(text)) << text;
    auto engine = CollectiveEngine::Create(0, 2, {.timeout = 20s}).value();
    const auto connected =
        engine.Connect(std::vector<std::string>{engine.address(), text}, kSecret);
    EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
  }
}

// --- What comes out
// -------------------------------------------------------------------------------

// Many blocks, on one machine, in the documented order: part l of a block is rank l's value, and to
// it are added those of ranks l - 1, l - 2 and so on, around the end.
TEST(CollectiveMemoryTest, LargeSumsAreMadeInTheDocumentedOrder) {
  const std::uint32_t seed = test::Seed();
  for (const std::uint32_t n : {2U, 3U, 4U}) {
    constexpr std::size_t kCount = 900'001;
    constexpr std::uint64_t kBlock = 64 << 10;
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t rank = 0; rank < n; ++rank)
      inputs.push_back(RandomFloats(seed + rank, kCount));
    std::vector<float> expected(kCount);
    const auto blocks = static_cast<std::uint32_t>(kCount / (n * kBlock));
    ASSERT_GT(blocks, 2U);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      const auto [begin, end] = CollectiveEngine::ShardOf(kCount, blocks, block);
      for (std::uint32_t owner = 0; owner < n; ++owner) {
        const auto part = CollectiveEngine::ShardOf(end - begin, n, owner);
        for (std::uint64_t i = begin + part.begin; i < begin + part.end; ++i) {
          float sum = inputs[owner][i];
          for (std::uint32_t k = 1; k < n; ++k) sum = inputs[(owner + n - k) % n][i] + sum;
          expected[i] = sum;
        }
      }
    }

    Group group(n, {.timeout = 20s, .algorithm = Algorithm::kHierarchical});
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      auto data = inputs[rank];
      ASSERT_TRUE(AllReduce(engine, data));
      EXPECT_EQ(std::memcmp(data.data(), expected.data(), kCount * 4), 0) << "n " << n;
    });
  }
}

// --- Processes that go
// ----------------------------------------------------------------------------

// A rank that is another process, forked before this one has threads.
class ProcessRank {
 public:
  explicit ProcessRank(std::chrono::milliseconds timeout) {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    ours_.Reset(pair[0]);
    UniqueFd theirs(pair[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ours_.Reset();
      Reduce(theirs.get(), timeout);
    }
  }
  ~ProcessRank() {
    Kill(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void Kill(int signal) const { ::kill(pid_, signal); }

  // What it is met by, once it is told how rank 0 is met.
  std::string Meet(const std::string& own_address) const {
    char text[256] = {};
    EXPECT_GT(::read(ours_.get(), text, sizeof(text)), 0);
    EXPECT_GT(::write(ours_.get(), own_address.data(), own_address.size()), 0);
    return text;
  }

 private:
  // Until it is killed.
  [[noreturn]] static void Reduce(int fd, std::chrono::milliseconds timeout) {
    auto engine = CollectiveEngine::Create(1, 2, {.timeout = timeout}).value();
    const std::string own = engine.address();
    char text[256] = {};
    if (::write(fd, own.data(), own.size()) < 0 || ::read(fd, text, sizeof(text)) < 0) ::_exit(1);
    if (!engine.Connect(std::vector<std::string>{text, own}, kSecret)) ::_exit(2);
    std::vector<float> data(1 << 18, 1);
    while (AllReduce(engine, data)) continue;
    ::_exit(3);
  }

  UniqueFd ours_;
  pid_t pid_ = -1;
};

void ExpectSignalIsNoticed(int signal, std::chrono::milliseconds timeout, ErrorCode code) {
  const ProcessRank other(timeout);
  auto engine = CollectiveEngine::Create(0, 2, {.timeout = timeout}).value();
  const std::string their_address = other.Meet(engine.address());
  const auto connected =
      engine.Connect(std::vector<std::string>{engine.address(), their_address}, kSecret);
  ASSERT_TRUE(connected) << connected.error().message;
  std::vector<float> data(1 << 18, 1);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(AllReduce(engine, data));
  EXPECT_EQ(engine.stats().bytes_sent, 0U);

  const auto before = Clock::now();
  std::thread kills([&] { other.Kill(signal); });
  Result<void> reduced;
  while (reduced) reduced = AllReduce(engine, data);
  kills.join();

  EXPECT_EQ(reduced.error().code, code);
  EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
  EXPECT_LT(Clock::now() - before, timeout + 20s);
}

TEST(CollectiveMemoryTest, AProcessThatIsKilledIsNamedAtOnce) {
  ExpectSignalIsNoticed(SIGKILL, 60s, ErrorCode::kUnavailable);
}

TEST(CollectiveMemoryTest, AProcessThatIsStoppedIsNamedWhenTimeIsUp) {
  ExpectSignalIsNoticed(SIGSTOP, 3s, ErrorCode::kDeadlineExceeded);
}

// --- The ring
// -------------------------------------------------------------------------------------

UniqueFd NewWakeup() { return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
UniqueFd Duplicate(int fd) { return UniqueFd(::dup(fd)); }
bool HasRung(const UniqueFd& wakeup) {
  std::uint64_t count = 0;
  return ::read(wakeup.get(), &count, sizeof(count)) > 0;
}

struct Ring {
  explicit Ring(std::uint64_t piece_size_bytes)
      : shape{piece_size_bytes}, sender(RingSender::Make(shape).value()) {
    sender.SetReceiverWakeup(Duplicate(receiver_wakeup.get()));
    receiver.emplace(
        RingReceiver::Map(shape, Duplicate(sender.memory_fd()), Duplicate(sender_wakeup.get()))
            .value());
  }

  RingShape shape;
  UniqueFd sender_wakeup = NewWakeup();
  UniqueFd receiver_wakeup = NewWakeup();
  RingSender sender;
  std::optional<RingReceiver> receiver;
};

TEST(SharedRingTest, PiecesComeOutInOrderAndRoomComesBack) {
  Ring ring(100);
  std::uint8_t next_in = 0;
  std::uint8_t next_out = 0;
  for (int round = 0; round < 10; ++round) {
    while (ring.sender.HasRoom()) {
      const std::byte head[] = {std::byte{next_in}};
      const std::size_t size = next_in % 101U;
      std::memset(ring.sender.Room().data(), next_in, size);
      ring.sender.Publish(head, size);
      ++next_in;
    }
    EXPECT_EQ(next_in - next_out, static_cast<int>(RingShape::kSlots));
    for (int i = 0; i < 1 + round % 4; ++i) {
      ASSERT_TRUE(ring.receiver->HasPiece());
      const auto piece = ring.receiver->Front().value();
      ASSERT_EQ(piece.head().size(), 1U);
      EXPECT_EQ(piece.head()[0], std::byte{next_out});
      EXPECT_EQ(piece.payload.size(), next_out % 101U);
      for (const std::byte byte : piece.payload) ASSERT_EQ(byte, std::byte{next_out});
      ring.receiver->Pop();
      ++next_out;
    }
  }
}

TEST(SharedRingTest, OnlyWhoSleepsIsRungFor) {
  Ring ring(64);
  ring.sender.Publish({}, 0);
  EXPECT_FALSE(HasRung(ring.receiver_wakeup));
  ring.receiver->WillSleep(true);
  ring.sender.Publish({}, 0);
  ring.sender.Publish({}, 0);
  EXPECT_TRUE(HasRung(ring.receiver_wakeup));
  ring.receiver->WillSleep(false);

  ring.receiver->Pop();
  EXPECT_FALSE(HasRung(ring.sender_wakeup));
  ring.sender.WillSleep(true);
  ring.receiver->Pop();
  EXPECT_TRUE(HasRung(ring.sender_wakeup));
  ring.receiver->Pop();
  EXPECT_FALSE(HasRung(ring.sender_wakeup));
}

TEST(SharedRingTest, WhatCannotBeSuchMemoryIsRefused) {
  const RingShape shape{4096};
  const auto map = [&](UniqueFd memory) {
    return RingReceiver::Map(shape, std::move(memory), NewWakeup()).error().code;
  };
  EXPECT_EQ(map(UniqueFd()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(map(NewWakeup()), ErrorCode::kInvalidArgument);
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(shape.size_bytes())), 0);
  EXPECT_EQ(map(std::move(unsealed)), ErrorCode::kInvalidArgument);
  const auto smaller = RingSender::Make({64}).value();
  EXPECT_EQ(map(Duplicate(smaller.memory_fd())), ErrorCode::kInvalidArgument);
}

// Every word of what the sender may write at will, set to all ones: an error or a wrong head, but
// never a read from outside.
TEST(SharedRingTest, SizesThatCannotBeAreCorruption) {
  Ring ring(128);
  void* const memory = ::mmap(nullptr, ring.shape.size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                              ring.sender.memory_fd(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::byte head[] = {std::byte{1}};
  ring.sender.Publish(head, 128);
  int refused = 0;
  for (std::size_t at = 0; at < net::kSlabPageBytes; at += 4) {
    auto* const word = static_cast<std::byte*>(memory) + at;
    std::uint32_t before;
    std::memcpy(&before, word, 4);
    std::memset(word, 0xFF, 4);
    if (ring.receiver->HasPiece()) {
      const auto piece = ring.receiver->Front();
      if (!piece) {
        EXPECT_EQ(piece.error().code, ErrorCode::kCorruption);
        ++refused;
      } else {
        EXPECT_LE(piece.value().payload.size(), 128U);
      }
    }
    std::memcpy(word, &before, 4);
  }
  EXPECT_EQ(refused, 2);  // The two sizes of the piece that is there.
  ::munmap(memory, ring.shape.size_bytes());
}

TEST(SharedRingTest, ManyRanksOfAMachineHaveSmallerPiecesEach) {
  EXPECT_EQ(RingShape::For(512 << 10, 2, false).piece_size_bytes, 128U << 10);
  EXPECT_EQ(RingShape::For(64, 2, false).piece_size_bytes, 64U);
  EXPECT_EQ(RingShape::For(512 << 10, 8, true).piece_size_bytes, 512U << 10);
  EXPECT_LE(RingShape::For(512 << 10, 64, false).size_bytes() * 63, 9U << 20);
  EXPECT_EQ(RingShape::For(512 << 10, 4096, false).piece_size_bytes, 16U << 10);
}

}  // namespace
}  // namespace ffrecord::client
