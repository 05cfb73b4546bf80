// Goal: connections are spread over the RDMA devices of both ends, and a link that goes down or a
// device that is taken away costs its share only, or what was asked for.
// Method: the two devices of the machine of tests/rdma/run, one of which goes; what needs a device
// is skipped where there is none.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <ffrecord/client/dataset.h>

#include "libffrecord/net/rpc/rails.h"
#include "libffrecord/net/rpc/session.h"
#include "rdma_clients.h"

namespace ffrecord::client {
namespace {

using namespace rdma;
using testing::ElementsAre;
using testing::HasSubstr;

// The links of the guest are rocelink0 and rocelink1, with a device each; its TCP goes another way.
constexpr const char* kFirst = "?rdma_devices=rxe0";
bool SetLink(const char* link, const char* state) {
  return std::system((std::string("ip link set ") + link + " " + state).c_str()) == 0;
}

class RailsTest : public RdmaClientTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/sys/class/net/rocelink1"))
      GTEST_SKIP() << "there are no two devices that may be taken away";
  }
};

// Queue pairs of both ends, for both are in this machine.
std::size_t CountPairs(const std::string& device) {
  std::FILE* const out =
      ::popen(("rdma resource show qp link " + device + "/1 type RC | wc -l").c_str(), "r");
  std::size_t count = 0;
  EXPECT_EQ(std::fscanf(out, "%zu", &count), 1);
  ::pclose(out);
  return count;
}

TEST_F(RailsTest, ConnectionsAreSpreadOverTheDevicesOfBothEnds) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  const std::size_t before[] = {CountPairs("rxe0"), CountPairs("rxe1")};
  const auto session = net::Session::Get(daemon.address(), Transport::kRdma);
  std::vector<std::unique_ptr<net::Channel>> channels;
  for (int i = 0; i < 6; ++i) {
    auto made = session->ConnectApart(net::Clock::now() + 20s);
    ASSERT_TRUE(made) << made.error().message;
    channels.push_back(std::move(made).value());
  }
  EXPECT_EQ(CountPairs("rxe0") - before[0], 6U);
  EXPECT_EQ(CountPairs("rxe1") - before[1], 6U);
}

// The second device is on a link that does not lead to the first one.
TEST_F(RailsTest, OneThatReachesNobodyIsLeftForTheNext) {
  Server::Options options = Offering(Server::Options::Transport::kRdma);
  options.rdma.devices = {"rxe0"};
  const Daemon daemon(std::move(options));
  for (const Transport transport : {Transport::kRdma, Transport::kAuto}) {
    const auto session = net::Session::Get(daemon.address(), transport);
    for (int i = 0; i < 2; ++i) {  // One of them begins with that device.
      const auto made = session->ConnectApart(net::Clock::now() + 40s);
      ASSERT_TRUE(made) << made.error().message;
      EXPECT_EQ(made.value()->transport(), "rdma");
    }
  }
}

TEST_F(RailsTest, OneThatDidNotWorkIsLeftAloneUnlessThereIsNoOther) {
  net::Rails rails;
  const net::RdmaOptions options{.devices = {"rxe0", "rxe1:1"}};
  const std::size_t first = rails.Order(options, false).value()[0];
  const std::size_t other = 1 - first;
  EXPECT_THAT(rails.Order(options, false).value(), ElementsAre(other, first));
  rails.Failed(first);
  EXPECT_THAT(rails.Order(options, false).value(), ElementsAre(other));
  EXPECT_THAT(rails.Order(options, true).value(), ElementsAre(other, first));
  rails.Failed(other);
  EXPECT_FALSE(rails.Order(options, false));
  EXPECT_EQ(rails.Order(options, true).value().size(), 2U);
  EXPECT_FALSE(rails.HasReturned());
  rails.Worked(first);
  EXPECT_THAT(rails.Order(options, false).value(), ElementsAre(first));
}

TEST_F(RailsTest, ConnectionsTakeTheOtherWhileALinkIsDown) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  ASSERT_TRUE(SetLink("rocelink1", "down"));
  for (int i = 0; i < 3; ++i) {
    const auto link = ProbeDaemon(daemon.Uri("") + "?rdma_devices=rxe1,rxe0", kRdma);
    ASSERT_TRUE(link) << link.error().message;
    EXPECT_THAT(link.value().reason, HasSubstr("rxe0"));
  }
  const auto none = ProbeDaemon(daemon.Uri("") + "?rdma_devices=rxe1:1", kRdma);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("not active"));
  ASSERT_TRUE(SetLink("rocelink1", "up"));
  EXPECT_TRUE(test::Eventually(
      [&] { return Linked(daemon.Uri("") + "?rdma_devices=rxe1:1", kRdma) == "rdma"; }));
}

TEST_F(RailsTest, ALinkThatGoesDownIsAnErrorOrTcpAsWasAskedFor) {
  const std::vector<std::string> records = Records(64, 100'000);
  const test::TestFile file(records);
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  ASSERT_TRUE(PublishDataset({{file.path()}}, daemon.Uri("x") + kFirst, false, kRdma, {}));
  const auto demanding =
      OpenDataset({{daemon.Uri("x") + kFirst}}, {}, {4s, Transport::kRdma}).value();
  const auto automatic =
      OpenDataset({{daemon.Uri("x") + kFirst}}, {}, {60s, Transport::kAuto}).value();
  ExpectReads(demanding, records);
  ExpectReads(automatic, records);
  ASSERT_EQ(Linked(daemon.Uri("") + kFirst, kAuto), "rdma");

  ASSERT_TRUE(SetLink("rocelink0", "down"));
  ExpectReads(automatic, records);
  EXPECT_EQ(Linked(daemon.Uri("") + kFirst, kAuto), "tcp");
  const std::uint64_t index = 0;
  const auto refused = demanding.ReadBatch({&index, 1});
  EXPECT_TRUE(!refused || refused.value().statuses()[0] != ErrorCode::kOk);

  ASSERT_TRUE(SetLink("rocelink0", "up"));
  ASSERT_TRUE(test::Eventually([&] { return Linked(daemon.Uri("") + kFirst, kRdma) == "rdma"; }));
  ExpectReads(demanding, records);
}

// Soft-RoCE is gone once everybody has let go of it, which the command waits for and does not stop
// waiting for. To be run alone, for connections of other tests that nobody uses let go of nothing.
std::string TakeAway(const std::string& device) {
  return "rdma link delete " + device +
         " & for i in $(seq 300); do kill -0 $! || exit 0; sleep 0.2; done; exit 1";
}
std::string BringBack(const std::string& device, const std::string& link) {
  return "rdma link add " + device + " type rxe netdev " + link;
}

TEST_F(RailsTest, ADeviceThatIsTakenAwayUnderLoadIsLeftForTcpOrAnErrorAsWasAskedFor) {
  const auto device = net::RdmaDevice::Open("rxe0").value();
  const std::vector<std::string> records = Records(64, 100'000);
  const test::TestFile file(records);
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  ASSERT_TRUE(PublishDataset({{file.path()}}, daemon.Uri("x") + kFirst, false, kRdma, {}));
  const auto demanding =
      OpenDataset({{daemon.Uri("x") + kFirst}}, {}, {60s, Transport::kRdma}).value();
  const auto automatic =
      OpenDataset({{daemon.Uri("x") + kFirst}}, {}, {60s, Transport::kAuto}).value();
  std::atomic<int> batch_count = 0;
  std::atomic<bool> is_over = false;
  std::thread demands([&] {
    const std::uint64_t index = 5;
    for (;; ++batch_count) {
      const auto batch = demanding.ReadBatch({&index, 1});
      if (!batch || batch.value().statuses()[0] != ErrorCode::kOk) break;
    }
  });
  std::thread goes_on([&] {
    while (!is_over && !HasFatalFailure()) {
      ExpectReads(automatic, records);
      ++batch_count;
    }
  });
  EXPECT_TRUE(test::Eventually([&] { return batch_count > 4; }));
  EXPECT_EQ(Linked(daemon.Uri("") + kFirst, kAuto), "rdma");

  EXPECT_EQ(std::system(TakeAway("rxe0").c_str()), 0) << "somebody has not let go of it";

  demands.join();  // By an error.
  is_over = true;
  goes_on.join();
  EXPECT_EQ(Linked(daemon.Uri("") + kFirst, kAuto), "tcp");
  EXPECT_THAT(Linked(daemon.Uri("") + kFirst, kRdma), HasSubstr("transport=rdma was asked for"));
  EXPECT_TRUE(device->is_gone());

  ASSERT_EQ(std::system(BringBack("rxe0", "rocelink0").c_str()), 0);
  ASSERT_TRUE(test::Eventually([&] { return Linked(daemon.Uri("") + kFirst, kRdma) == "rdma"; }));
  ExpectReads(demanding, records);
}

TEST_F(RailsTest, OneThatIsTakenAwayUnderLoadCostsItsShareOnly) {
  const std::vector<std::string> records = Records(64, 50'000);
  const test::TestFile file(records);
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  ASSERT_TRUE(PublishDataset({{file.path()}}, daemon.Uri("x"), false, kRdma, {}));
  const auto reader = OpenDataset({{daemon.Uri("x")}}, {}, {60s, Transport::kRdma}).value();
  const std::size_t before = CountPairs("rxe1");
  std::atomic<int> batch_count = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> reading;
  for (int i = 0; i < 4; ++i)
    reading.emplace_back([&] {
      for (; !is_over && !HasFatalFailure(); ++batch_count) ExpectReads(reader, records);
    });
  EXPECT_TRUE(test::Eventually([&] { return CountPairs("rxe1") > before; }));

  EXPECT_EQ(std::system(TakeAway("rxe1").c_str()), 0) << "somebody has not let go of it";

  const int then = batch_count;
  EXPECT_TRUE(test::Eventually([&] { return batch_count > then + 8; }));
  is_over = true;
  for (std::thread& one : reading) one.join();
  EXPECT_EQ(Linked(daemon.Uri(""), kRdma), "rdma");

  ASSERT_EQ(std::system(BringBack("rxe1", "rocelink1").c_str()), 0);
  const std::string back = daemon.Uri("") + "?rdma_devices=rxe1";
  EXPECT_TRUE(test::Eventually([&] { return Linked(back, kRdma) == "rdma"; }));
}

TEST_F(RailsTest, OneThatIsTakenAwayIsLetGoOfByIdleConnectionsToo) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  const auto session = net::Session::Get(daemon.address(), Transport::kRdma);
  const auto ping = [&]() -> Result<void> {
    FFR_TRY(session->Ping(net::Clock::now() + 20s));
    return {};
  };
  // The second connection is given back first, and no call takes it again.
  ASSERT_TRUE(session->Run([&](net::Channel&) { return ping(); }, net::Clock::now() + 20s));
  const bool is_first = session->link().reason.find("rxe0") != std::string::npos;
  const std::string device = is_first ? "rxe0" : "rxe1";
  std::atomic<bool> is_over = false;
  std::thread pings([&] {
    while (!is_over) EXPECT_TRUE(ping());
  });

  EXPECT_EQ(std::system(TakeAway(device).c_str()), 0) << "somebody has not let go of it";

  is_over = true;
  pings.join();
  ASSERT_EQ(std::system(BringBack(device, is_first ? "rocelink0" : "rocelink1").c_str()), 0);
}

}  // namespace
}  // namespace ffrecord::client
