// Goal: RDMA connections are made, end and fail as promised, and what they held is given back.
// Method: real queue pairs between two ends of this machine, or of a child that is killed; skipped
// where no RDMA device is, so tests/rdma/run runs them in a machine that has one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <initializer_list>
#include <thread>

#include "child.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/protocol/rdma_messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"

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
  std::string hex;
  for (const std::byte byte : encoded) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned>(byte) >> 4];
    hex += kDigits[static_cast<unsigned>(byte) & 15];
  }
  EXPECT_EQ(hex, "000102030405060708090a0b0c0d0e0f11000000efcdab000010000008000004");
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

TEST(RdmaSurveyTest, SaysWhatIsThereOrWhyNothingIs) {
  const RdmaSurvey survey = SurveyRdma();
  EXPECT_TRUE(survey.why_absent.empty() || survey.ports.empty());
  for (const RdmaPort& port : survey.ports)
    EXPECT_TRUE(!port.why_skipped.empty() || (!port.gid.empty() && port.mtu_bytes >= 256));
  const auto device = RdmaDevice::Open("no-such-device");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnavailable);
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

TEST_F(RdmaTest, AConnectionIsTurnedIntoOneOverRdmaByOneRequest) {
  auto control = MakeTcpPair();
  std::unique_ptr<Endpoint> accepted;
  std::thread far([&] {
    ASSERT_EQ(NextEvent(*control.far, Soon(), "a request").value(), Endpoint::Event::kFrame);
    ASSERT_EQ(control.far->header().type, FrameType::kRdmaConnect);
    auto made = AcceptRdma(TestRdmaDevice().value(), std::move(control.far), Soon());
    ASSERT_TRUE(made) << made.error().message;
    accepted = std::move(made).value();
  });
  auto near = ConnectRdma(TestRdmaDevice().value(), std::move(control.near), Soon());
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

TEST_F(RdmaTest, ARequestThatIsMalformedOrRefusedIsNamed) {
  auto control = MakeTcpPair();
  ASSERT_TRUE(control.near->Send({.type = FrameType::kRdmaConnect}, Bytes(5), {}));
  ASSERT_TRUE(Flush(*control.near, Soon()));
  ASSERT_EQ(NextEvent(*control.far, Soon(), "a request").value(), Endpoint::Event::kFrame);
  const auto made = AcceptRdma(TestRdmaDevice().value(), std::move(control.far), Soon());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kCorruption);

  control = MakeTcpPair();
  ASSERT_TRUE(control.far->Send({.type = FrameType::kPing}, {}, {}));
  ASSERT_TRUE(Flush(*control.far, Soon()));
  const auto connected = ConnectRdma(TestRdmaDevice().value(), std::move(control.near), Soon());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kCorruption);
}

TEST_F(RdmaTest, APeerThatIsKilledIsGoneForWhoOnlyListens) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  const pid_t child = ::fork();
  if (child == 0) {
    auto control = ConnectTcp(listener.address(), Soon());
    auto device = RdmaDevice::Open();
    if (!control || !device || !NextEvent(*control.value(), Soon(), "a request")) ::_exit(1);
    const auto end = AcceptRdma(device.value(), std::move(control).value(), Soon());
    if (end) ::kill(::getpid(), SIGKILL);
    ::_exit(2);
  }
  std::unique_ptr<Endpoint> control;
  while (!control) control = listener.Accept().value();
  auto near = ConnectRdma(TestRdmaDevice().value(), std::move(control), Soon());
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

TEST_F(RdmaTest, HundredsOfConnectionsLeaveNothingBehind) {
  const auto device = TestRdmaDevice().value();
  MakeRdmaPair();
  WaitForNoConnection(*device);
  const std::size_t files = OpenFiles();
  for (int i = 0; i < 200; ++i) {
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
}

TEST_F(RdmaTest, ALimitOfLockedMemoryIsNamedWithItsRemedy) {
  const int code = ffrecord::test::RunInChild([] {
    const auto device = RdmaDevice::Open();
    const rlimit limit{4096, 4096};
    if (!device || ::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setuid(kNobody) != 0) return 1;
    const auto link = RdmaLink::Make(device.value());
    if (link) return 2;
    const bool is_named = link.error().message.find("ulimit -l") != std::string::npos;
    return link.error().code == ErrorCode::kIo && is_named ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace ffrecord::net
