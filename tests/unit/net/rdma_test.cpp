// Goal: RDMA connections are made, end and fail as promised, and what they held is given back.
// Method: real queue pairs between two ends of this machine, or of a child that is killed; skipped
// where no RDMA device is, so tests/rdma/run runs them in a machine that has one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <thread>

#include "child.h"
#include "endpoint_pairs.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/rdma_messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::net {
namespace {

using namespace test;
using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr ::uid_t kNobody = 65534;

// --- What is said, on any machine ----------------------------------------------------------------

RdmaConnect Example() {
  RdmaConnect connect{.queue_pair = 17,
                      .packet_number = 0xABCDEF,
                      .buffer_size_bytes = 4096,
                      .buffer_count = 8,
                      .mtu_bytes = 1024};
  for (std::size_t i = 0; i < 16; ++i) connect.gid[i] = static_cast<std::byte>(i);
  return connect;
}

TEST(RdmaConnectTest, IsTheBytesOfTheManualAndComesBackFromThem) {
  const Bytes encoded = Example().Encode();
  EXPECT_EQ(Hex(encoded), "000102030405060708090a0b0c0d0e0f11000000efcdab000010000008000004");
  EXPECT_EQ(RdmaConnect::Decode(encoded).value(), Example());
}

TEST(RdmaConnectTest, WhatDoesNotFitIsRefused) {
  const Bytes good = Example().Encode();
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(RdmaConnect::Decode(std::span(good).first(size)));
  Bytes longer = good;
  longer.push_back({});
  EXPECT_FALSE(RdmaConnect::Decode(longer));
  const auto is_refused = [](auto change) {
    RdmaConnect connect = Example();
    change(connect);
    return !RdmaConnect::Decode(connect.Encode());
  };
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.queue_pair = 1 << 24; }));
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.packet_number = 1 << 24; }));
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.buffer_size_bytes = 255; }));
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.buffer_size_bytes = (1 << 20) + 1; }));
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.buffer_count = 1; }));
  EXPECT_TRUE(is_refused([](RdmaConnect& c) { c.buffer_count = 256; }));
  for (const std::uint16_t mtu : std::initializer_list<std::uint16_t>{0, 128, 1000, 8192})
    EXPECT_TRUE(is_refused([mtu](RdmaConnect& c) { c.mtu_bytes = mtu; })) << mtu;
}

TEST(RdmaFindingsTest, SaysWhatIsThereOrWhyNothingIs) {
  const RdmaFindings findings = ProbeRdma();
  EXPECT_TRUE(findings.why_absent.empty() || findings.ports.empty());
  for (const RdmaPort& port : findings.ports)
    EXPECT_TRUE(!port.why_skipped.empty() || (!port.gid.empty() && port.mtu_bytes >= 256));
  const auto device = RdmaDevice::Open("no-such-device");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnavailable);
}

TEST(RdmaOptionsTest, DevicesAreNamedOnceEach) {
  EXPECT_TRUE(RdmaOptions::ParseDevices("").value().empty());
  EXPECT_EQ(RdmaOptions::ParseDevices("mlx5_0,mlx4_0:2").value(),
            (std::vector<std::string>{"mlx5_0", "mlx4_0:2"}));
  for (const char* bad : {",", "a,", ",a", "a,,b", "a,b,a"}) {
    const auto parsed = RdmaOptions::ParseDevices(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

// --- With a device -------------------------------------------------------------------------------

class RdmaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestRdmaDevice()) GTEST_SKIP() << TestRdmaDevice().error().message;
  }
};

std::size_t OpenFiles() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// Waits until what has been closed is gone.
void WaitForNoConnection(const RdmaDevice& device) {
  const Deadline deadline = Soon();
  while (device.connection_count() > 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(device.connection_count(), 0U);
}

using Side = RdmaLink::Side;

std::unique_ptr<RdmaLink> MakeLink(Side side) {
  return RdmaLink::Make(TestRdmaDevice().value(), side).value();
}

// Asks for RDMA on `control`, and goes over to it as the other end answers.
Result<std::unique_ptr<Endpoint>> AskForRdma(std::unique_ptr<Endpoint> control) {
  const auto link = MakeLink(Side::kConnects);
  const FrameHeader request{.type = FrameType::kRdmaConnect, .request_id = 5};
  FFR_TRY(control->Send(request, link->own().Encode(), {}));
  const auto event = FFR_TRY(NextEvent(*control, Soon(), "a reply"));
  if (event != Endpoint::Event::kFrame || control->header().request_id != request.request_id)
    return Error{ErrorCode::kUnavailable, "no reply"};
  return link->Connect(FFR_TRY(RdmaConnect::Decode(control->body())), control);
}

TEST_F(RdmaTest, AConnectionIsTurnedIntoOneOverRdmaByOneRequest) {
  auto control = MakeTcpPair();
  std::unique_ptr<Endpoint> accepted;
  std::thread far([&] {
    ASSERT_EQ(NextEvent(*control.far, Soon(), "a request").value(), Endpoint::Event::kFrame);
    ASSERT_EQ(control.far->header().type, FrameType::kRdmaConnect);
    auto made = AcceptRdma(*MakeLink(Side::kAccepts), control.far);
    ASSERT_TRUE(made) << made.error().message;
    accepted = std::move(made).value();
  });
  auto near = AskForRdma(std::move(control.near));
  far.join();
  ASSERT_TRUE(near) << near.error().message;
  ASSERT_TRUE(accepted);
  EXPECT_EQ(near.value()->transport(), "rdma");

  // The end that accepted speaks first, which it may only once it has heard of the other.
  ASSERT_TRUE(accepted->Send({.request_id = 3}, {}, {}));
  ASSERT_TRUE(Flush(*accepted, Soon()));
  ASSERT_EQ(NextEvent(*near.value(), Soon(), "a frame").value(), Endpoint::Event::kFrame);
  EXPECT_EQ(near.value()->header().request_id, 3U);
}

TEST_F(RdmaTest, ARequestThatIsMalformedLeavesTheConnectionToBeToldSo) {
  auto control = MakeTcpPair();
  ASSERT_TRUE(control.near->Send({.type = FrameType::kRdmaConnect}, Bytes(5), {}));
  ASSERT_TRUE(Flush(*control.near, Soon()));
  ASSERT_EQ(NextEvent(*control.far, Soon(), "a request").value(), Endpoint::Event::kFrame);

  const auto made = AcceptRdma(*MakeLink(Side::kAccepts), control.far);

  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kCorruption);
  EXPECT_TRUE(control.far->Send({.type = FrameType::kPing}, {}, {}));
}

TEST_F(RdmaTest, ADeviceIsOpenedWhenItIsWantedAndSharedFromThenOn) {
  RdmaLinks links;
  const auto one = links.Make(Side::kConnects);
  const auto other = links.Make(Side::kAccepts);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(links.Device().value()->connection_count(), 2U);

  const RdmaPort& port = links.Device().value()->port();
  RdmaLinks by_number(port.device + ":" + std::to_string(port.port));
  EXPECT_TRUE(by_number.Make(Side::kConnects));
  EXPECT_FALSE(RdmaLinks(port.device + ":99").Make(Side::kConnects));

  RdmaLinks none("no-such-device");
  const auto refused = none.Make(Side::kConnects);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("no-such-device"));
}

// --- Memory of the other end ---------------------------------------------------------------------

// Memory of the near end that the far end writes into.
class ExposedMemoryTest : public RdmaTest {
 protected:
  static constexpr std::size_t kSize = 8 << 20;

  void SetUp() override {
    RdmaTest::SetUp();
    if (IsSkipped()) return;
    pair_ = MakeRdmaPair();
    pair_.near->SetLimits({});
    pair_.far->SetLimits({});
    auto exposed = pair_.near->remote_memory()->Expose(memory_, RemoteMemory::Reach::kWrite);
    ASSERT_TRUE(exposed) << exposed.error().message;
    place_ = exposed.value();
  }
  RemoteRegion At(std::size_t offset) const { return {place_.address + offset, place_.key}; }
  // The next event of the near end, while the far end sends.
  Result<Endpoint::Event> NextOfNear() {
    const Deadline deadline = Soon();
    while (Clock::now() < deadline) {
      if (pair_.far->fd() >= 0) (void)pair_.far->Poll();
      const auto event = FFR_TRY(pair_.near->Poll());
      if (event != Endpoint::Event::kNone) return event;
      Endpoint* const both[] = {pair_.near.get(), pair_.far.get()};
      FFR_TRY(WaitReady(both, Clock::now() + 5ms));
    }
    return Error{ErrorCode::kDeadlineExceeded, "no event came"};
  }

  std::mt19937 random_{7};
  Bytes memory_{Bytes(kSize, std::byte{0x5A})};
  EndpointPair pair_;
  RemoteRegion place_;
};

TEST_F(ExposedMemoryTest, PiecesLieInTheirPlacesWhenTheirFrameArrives) {
  const Bytes data = RandomBytes(random_, kSize);
  const UniqueFd file(::memfd_create("rdma", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), data.data(), data.size(), 0), static_cast<ssize_t>(kSize));
  Bytes expected = memory_;
  const std::span<const std::byte> all(data);
  // Small and large, some side by side, some mapped; in the order of a shuffled batch.
  std::vector<RemoteMemory::PlacedPiece> pieces;
  std::vector<std::size_t> cuts{0};
  while (cuts.back() < kSize) cuts.push_back(cuts.back() + 1 + random_() % 200'000);
  cuts.back() = kSize;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) order.push_back(i);
  std::shuffle(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2),
               random_);
  for (const std::size_t i : order) {
    if (i % 5 == 0) continue;
    const auto bytes = all.subspan(cuts[i], cuts[i + 1] - cuts[i]);
    pieces.push_back({{bytes, i % 2 == 0 ? file.get() : -1, cuts[i]}, At(cuts[i])});
    std::ranges::copy(bytes, expected.begin() + static_cast<std::ptrdiff_t>(cuts[i]));
  }
  ASSERT_TRUE(pair_.far->remote_memory()->SendPlaced({.request_id = 4}, Bytes(10), pieces));
  const Bytes payload = RandomBytes(random_, 50'000);
  const std::span<const std::byte> whole(payload);
  ASSERT_TRUE(pair_.far->Send({.request_id = 5}, {}, {&whole, 1}));
  ASSERT_GT(pair_.far->payload_bytes_queued(), payload.size());

  ASSERT_EQ(NextOfNear().value(), Endpoint::Event::kFrame);

  EXPECT_EQ(pair_.near->header().request_id, 4U);
  EXPECT_EQ(pair_.near->header().payload_size_bytes, 0U);
  EXPECT_TRUE(memory_ == expected);
  ASSERT_EQ(NextOfNear().value(), Endpoint::Event::kFrame);
  Bytes received(payload.size());
  const std::span<std::byte> place(received);
  ASSERT_TRUE(pair_.near->ReceivePayload({&place, 1}));
  ASSERT_EQ(NextOfNear().value(), Endpoint::Event::kPayload);
  EXPECT_TRUE(received == payload);
  EXPECT_EQ(pair_.far->payload_bytes_queued(), 0U);
}

// A wrong key, and a byte too far: refused by the device, told to both ends, and nothing outside is
// written.
TEST_F(ExposedMemoryTest, APlaceThatWasNotExposedIsRefusedAndBreaksTheConnection) {
  const Bytes data(4096, std::byte{0xEE});
  for (const bool is_key_wrong : {true, false}) {
    SetUp();
    const RemoteMemory::PlacedPiece piece{{data},
                                          is_key_wrong
                                              ? RemoteRegion{place_.address, place_.key ^ 0x5500}
                                              : At(kSize - data.size() + 1)};
    ASSERT_TRUE(pair_.far->remote_memory()->SendPlaced({.request_id = 4}, {}, {&piece, 1}));

    const auto event = NextEvent(*pair_.far, Soon(), "a refusal");

    ASSERT_FALSE(event);
    EXPECT_EQ(event.error().code, ErrorCode::kCorruption) << event.error().message;
    EXPECT_THAT(event.error().message, HasSubstr("not exposed"));
    EXPECT_FALSE(NextOfNear());
    EXPECT_TRUE(std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{0x5A}; }));
  }
}

// H1: what is still under way when an end closes, or comes later, is never written.
TEST_F(ExposedMemoryTest, NothingIsWrittenOnceTheEndThatExposedItIsClosed) {
  const Bytes data(kSize, std::byte{0xEE});
  const RemoteMemory::PlacedPiece piece{{data}, At(0)};
  ASSERT_TRUE(pair_.far->remote_memory()->SendPlaced({.request_id = 4}, {}, {&piece, 1}));
  ASSERT_TRUE(pair_.far->Poll());  // The first megabyte is under way.

  pair_.near->Close();
  const Bytes at_close = memory_;

  const auto event = NextEvent(*pair_.far, Soon(), "the end");
  EXPECT_FALSE(event && event.value() == Endpoint::Event::kFrame);
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(memory_ == at_close);
  WaitForNoConnection(*TestRdmaDevice().value());
}

TEST_F(ExposedMemoryTest, OnlyTheEndThatConnectsExposesMemory) {
  const auto exposed = pair_.far->remote_memory()->Expose(memory_, RemoteMemory::Reach::kWrite);
  ASSERT_FALSE(exposed);
  EXPECT_EQ(exposed.error().code, ErrorCode::kInvalidArgument);
  const auto tcp = MakeTcpPair();
  EXPECT_EQ(tcp.near->remote_memory(), nullptr);
}

// Memory of the near end that the far end reads.
class ReadMemoryTest : public RdmaTest {
 protected:
  static constexpr std::size_t kSize = 8 << 20;

  void SetUp() override {
    RdmaTest::SetUp();
    if (IsSkipped()) return;
    pair_ = MakeRdmaPair();
    pair_.near->SetLimits({});
    pair_.far->SetLimits({});
    auto exposed = pair_.near->remote_memory()->Expose(memory_, RemoteMemory::Reach::kRead);
    ASSERT_TRUE(exposed) << exposed.error().message;
    source_ = exposed.value();
    auto staging = pair_.far->remote_memory()->MakeStaging(kSize);
    ASSERT_TRUE(staging) << staging.error().message;
    staging_ = std::move(staging).value();
    std::ranges::fill(*staging_, std::byte{0x5A});
    // Whose payload is fetched.
    ASSERT_TRUE(pair_.near->Send({.request_id = 4}, {}, {}));
    ASSERT_TRUE(Flush(*pair_.near, Soon()));
    ASSERT_EQ(NextEvent(*pair_.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  }
  void ExpectRefused(const RemoteRegion& source, std::size_t size) {
    ASSERT_TRUE(pair_.far->remote_memory()->FetchPayload(source, staging_->first(size)));
    const auto event = NextEvent(*pair_.far, Soon(), "a refusal");
    ASSERT_FALSE(event);
    EXPECT_EQ(event.error().code, ErrorCode::kCorruption) << event.error().message;
    EXPECT_THAT(event.error().message, HasSubstr("not exposed"));
    EXPECT_TRUE(std::ranges::all_of(*staging_, [](std::byte b) { return b == std::byte{0x5A}; }));
    EXPECT_FALSE(NextEvent(*pair_.near, Soon(), "the end"));
  }

  std::mt19937 random_{7};
  Bytes memory_ = RandomBytes(random_, kSize);
  EndpointPair pair_;
  RemoteRegion source_;
  PooledBuffer staging_;
};

TEST_F(ReadMemoryTest, ManyPiecesAreFetchedWhileFramesGoBothWays) {
  for (std::uint64_t round = 0; round < 40; ++round) {
    const std::size_t size = 1 + random_() % 1'000'000;
    const std::size_t from = random_() % (kSize - size);
    const auto place = staging_->subspan(random_() % (kSize - size), size);
    ASSERT_TRUE(
        pair_.far->remote_memory()->FetchPayload({source_.address + from, source_.key}, place));
    ASSERT_TRUE(pair_.near->Send({.request_id = round}, Bytes(round * 100), {}));
    ASSERT_TRUE(pair_.far->Send({.request_id = round}, Bytes(round * 100), {}));
    ASSERT_EQ(pair_.near->Poll().value(), Endpoint::Event::kNone);
    ASSERT_EQ(NextEvent(*pair_.far, Soon(), "a payload").value(), Endpoint::Event::kPayload);
    ASSERT_EQ(NextEvent(*pair_.near, Soon(), "a frame").value(), Endpoint::Event::kFrame);
    ASSERT_TRUE(std::ranges::equal(place, std::span(memory_).subspan(from, size)));
    ASSERT_EQ(NextEvent(*pair_.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
    ASSERT_EQ(pair_.far->header().request_id, round);
  }
}

TEST_F(ReadMemoryTest, AWrongKeyIsRefusedAndBreaksTheConnection) {
  ExpectRefused({source_.address, source_.key ^ 0x5500}, 4096);
}

TEST_F(ReadMemoryTest, AByteTooFarIsRefusedAndBreaksTheConnection) {
  ExpectRefused({source_.address + kSize - 4095, source_.key}, 4096);
}

// Neither is memory that is given for one thing given for the other.
TEST_F(ReadMemoryTest, WhatMayBeWrittenMayNotBeRead) {
  Bytes other(100'000);
  const auto written =
      pair_.near->remote_memory()->Expose(other, RemoteMemory::Reach::kWrite).value();
  ExpectRefused(written, 4096);
}

TEST_F(ReadMemoryTest, WhatMayBeReadMayNotBeWritten) {
  const Bytes before = memory_;
  const Bytes data(4096, std::byte{0xEE});
  const RemoteMemory::PlacedPiece piece{{data}, source_};
  ASSERT_TRUE(pair_.far->remote_memory()->SendPlaced({.request_id = 4}, {}, {&piece, 1}));
  const auto event = NextEvent(*pair_.far, Soon(), "a refusal");
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kCorruption) << event.error().message;
  EXPECT_TRUE(memory_ == before);
}

TEST_F(ReadMemoryTest, AnEndThatClosesWhileItIsReadIsGoneForTheOther) {
  const Bytes before = memory_;
  ASSERT_TRUE(pair_.far->remote_memory()->FetchPayload(source_, *staging_));
  pair_.near->Close();
  std::ranges::fill(memory_, std::byte{0xEE});  // It is ours again, and secret.

  // A device in software may have had time for all of it.
  auto event = NextEvent(*pair_.far, Soon(), "the end");
  if (event) event = NextEvent(*pair_.far, Soon(), "the end");
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kUnavailable) << event.error().message;
  for (std::size_t i = 0; i < kSize; ++i)
    ASSERT_TRUE((*staging_)[i] == before[i] || (*staging_)[i] == std::byte{0x5A}) << i;
  WaitForNoConnection(*TestRdmaDevice().value());
}

// The staging buffer outlives its connection for those who still work on it.
TEST_F(ReadMemoryTest, WhatHasArrivedStaysWhenTheConnectionIsGone) {
  ASSERT_TRUE(pair_.far->remote_memory()->FetchPayload(source_, *staging_));
  ASSERT_EQ(NextEvent(*pair_.far, Soon(), "a payload").value(), Endpoint::Event::kPayload);
  pair_.far.reset();
  EXPECT_TRUE(std::ranges::equal(*staging_, memory_));
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(RdmaTest, APeerThatIsKilledIsGoneForWhoOnlyListens) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  const pid_t child = ::fork();
  if (child == 0) {
    auto control = ConnectTcp(listener.address(), Soon());
    auto device = RdmaDevice::Open();
    if (!control || !device || !NextEvent(*control.value(), Soon(), "a request")) ::_exit(1);
    const auto link = RdmaLink::Make(device.value(), Side::kAccepts);
    const auto end = link ? AcceptRdma(*link.value(), control.value()) : link.error();
    if (end) ::kill(::getpid(), SIGKILL);
    ::_exit(2);
  }
  std::unique_ptr<Endpoint> control;
  while (!control) control = listener.Accept().value();
  auto near = AskForRdma(std::move(control));
  ASSERT_TRUE(near) << near.error().message;

  const auto event = NextEvent(*near.value(), Soon(), "a sign of life");

  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kUnavailable) << event.error().message;
  EXPECT_THAT(event.error().message, HasSubstr("127.0.0.1"));
  EXPECT_EQ(ffrecord::test::WaitForChild(child), -SIGKILL);
  WaitForNoConnection(*TestRdmaDevice().value());
}

TEST_F(RdmaTest, AChildDropsItsEndsAndTheConnectionLivesOn) {
  auto pair = MakeRdmaPair();
  EXPECT_EQ(ffrecord::test::RunInChild([&] {
              pair.near.reset();
              pair.far.reset();
              return 0;
            }),
            0);
  ASSERT_TRUE(pair.near->Send({.request_id = 8}, {}, {}));
  ASSERT_TRUE(Flush(*pair.near, Soon()));
  ASSERT_EQ(NextEvent(*pair.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  EXPECT_EQ(pair.far->header().request_id, 8U);
}

// FFRECORD_TEST_CONNECTIONS: how many, for a longer run than all tests have time for.
int ConnectionCount() {
  const char* const wanted = std::getenv("FFRECORD_TEST_CONNECTIONS");
  return wanted != nullptr ? std::atoi(wanted) : 200;
}

TEST_F(RdmaTest, HundredsOfConnectionsLeaveNothingBehind) {
  const auto device = TestRdmaDevice().value();
  MakeRdmaPair();
  WaitForNoConnection(*device);
  const std::size_t files = OpenFiles();
  const std::size_t resources = CountRdmaResources();
  const int count = ConnectionCount();
  ASSERT_GT(count, 0);
  for (int i = 0; i < count; ++i) {
    auto pair = MakeRdmaPair();
    if (i % 4 == 0) {  // Some have spoken, and some close with bytes under way.
      ASSERT_TRUE(pair.near->Send({}, Bytes(100), {}));
      ASSERT_TRUE(pair.near->Poll());
    }
    if (i % 2 == 0) std::swap(pair.near, pair.far);
  }
  WaitForNoConnection(*device);
  // The control connection is closed a moment after its queue pair.
  const Deadline deadline = Soon();
  while (OpenFiles() > files && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_LE(OpenFiles(), files);
  EXPECT_LE(CountRdmaResources(), resources);
  std::printf("%d connections; the kernel held %zu objects before, %zu after\n", count, resources,
              CountRdmaResources());
}

TEST_F(RdmaTest, ALimitOfLockedMemoryIsNamedWithItsRemedy) {
  const int code = ffrecord::test::RunInChild([] {
    const auto device = RdmaDevice::Open();
    const rlimit limit{4096, 4096};
    if (!device || ::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setuid(kNobody) != 0) return 1;
    const auto link = RdmaLink::Make(device.value(), Side::kConnects);
    if (link) return 2;
    const bool is_named = link.error().message.find("ulimit -l") != std::string::npos;
    return link.error().code == ErrorCode::kIo && is_named ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace ffrecord::net
