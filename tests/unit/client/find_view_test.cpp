// Goal: however long the nodes at an address are silent, a daemon that answers before them does not
// stand for them, and the error at the timeout says who has answered; daemons that are not there
// cost a moment.
// Method: scripted daemons on a clock that the test owns; nodes are frozen until the test lets them
// answer, long after the stranger has.

#include "client/dataset/find_view.h"

#include <ffrecord/client/cluster.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_daemon.h"
#include "libffrecord/format/slot_map.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using test::FakeDaemon;
using Found = Result<std::optional<ClusterView>>;

constexpr SessionOptions kOptions{20s, Transport::kTcp};

// While it is closed, scripts that come to it wait.
class Gate {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

// Two nodes of one cluster that tell its view, once their gates let them.
class Nodes {
 public:
  static constexpr std::size_t kCount = 2;

  explicit Nodes(std::byte id) {
    reply_.cluster.fill(id);
    reply_.version = map_.version = 5;
    reply_.replicas = map_.row_size = 1;
    map_.rows.assign(kSlotCount, 0);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::string name = "n" + std::to_string(i);
      map_.nodes.push_back({name, "d" + name, 1});
      daemons_[i] = std::make_unique<FakeDaemon>(
          [this, i](FakeDaemon::Request& request) { return Answer(request, i); }, true,
          net::kCapabilityCluster, net::NodeIdentity{reply_.cluster, name});
      reply_.nodes.push_back({name, daemons_[i]->address().ToString(), "d" + name, 1,
                              net::MemberState::kIn, /*is_up=*/false});
    }
  }
  ~Nodes() {
    Open();
    daemons_ = {};
  }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  const net::Address& address(std::size_t i) const { return daemons_[i]->address(); }
  const net::ClusterId& id() const { return reply_.cluster; }
  // Before the first question. `are_named`: at the addresses that the test uses.
  void Alter(bool are_up, bool are_named) {
    for (std::size_t i = 0; i < kCount; ++i) {
      reply_.nodes[i].is_up = are_up;
      reply_.nodes[i].address = are_named ? address(i).ToString() : "alias" + std::to_string(i);
    }
  }

  void Close() {
    for (Gate& gate : gates) gate.Close();
  }
  void Open() {
    for (Gate& gate : gates) gate.Open();
  }

  std::array<Gate, kCount> gates;

 private:
  bool Answer(FakeDaemon::Request& request, std::size_t i) {
    gates[i].Pass();
    net::ClusterMapReply reply = reply_;
    reply.node = reply.nodes[i].id;
    FakeDaemon::Send(request, net::ReplyTo(request.header.type), reply.Encode(),
                     EncodeSlotMap(map_));
    return true;
  }

  net::ClusterMapReply reply_;
  SlotMap map_;
  std::array<std::unique_ptr<FakeDaemon>, kCount> daemons_;
};

net::Location Location(const net::Address& address) {
  net::Location location;
  location.address = address;
  return location;
}

FakeDaemon DaemonOfNoCluster() {
  return FakeDaemon([](FakeDaemon::Request&) { return true; });
}

class FindViewTest : public testing::Test {
 protected:
  test::VirtualClock clock_;
  Nodes ours_{std::byte{0xC1}};
};

// The stranger is a daemon of no cluster, or a node of another one.
class FindViewStrangerTest : public FindViewTest, public testing::WithParamInterface<bool> {
 protected:
  FindViewStrangerTest() { ours_.Alter(/*are_up=*/false, /*are_named=*/true); }
  const net::Address& stranger() const {
    return GetParam() ? theirs_.address(0) : alone_.address();
  }
  std::vector<net::Location> Locations() const {
    return {Location(ours_.address(0)), Location(stranger()), Location(ours_.address(1))};
  }

  Nodes theirs_{std::byte{0xC2}};
  FakeDaemon alone_ = DaemonOfNoCluster();
};

TEST_P(FindViewStrangerTest, NodesThatAnswerAfterAStrangerAreTheCluster) {
  const auto locations = Locations();
  for (const auto silence : {1s, 4s, 19s}) {
    ours_.Close();
    std::atomic<bool> has_ended{false};
    Found found{Error{}};
    std::thread client([&] {
      found = FindView(locations, kOptions);
      has_ended = true;
    });
    clock_.RunFor(silence);
    EXPECT_FALSE(has_ended) << "after " << silence.count() << " s of silence";
    ours_.Open();
    client.join();
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_TRUE(found.value());
    EXPECT_EQ(found.value()->reply.cluster, ours_.id());
  }
}

TEST_P(FindViewStrangerTest, WhereTheNodesStaySilentTheErrorSaysWhoHasAnswered) {
  ours_.Close();
  const auto begin = net::Clock::now();
  const auto found = FindView(Locations(), kOptions);
  const auto time = net::Clock::now() - begin;
  ours_.Open();
  ASSERT_FALSE(found) << (found.value() ? "another cluster" : "no cluster");
  EXPECT_EQ(found.error().code, ErrorCode::kUnavailable) << found.error().message;
  const std::string who = GetParam() ? " is a node of cluster c2c2" : " is a daemon of no cluster";
  for (const std::string& part :
       {stranger().ToString() + who, ours_.address(0).ToString(), ours_.address(1).ToString()})
    EXPECT_NE(found.error().message.find(part), std::string::npos) << found.error().message;
  EXPECT_GE(time, kOptions.timeout);
  EXPECT_LT(time, kOptions.timeout + 1s);
}

INSTANTIATE_TEST_SUITE_P(OfNoClusterOrAnother, FindViewStrangerTest, testing::Bool());

TEST_F(FindViewTest, ANodeSpeaksForASilentOneThatItsViewNames) {
  const auto locations = std::vector{Location(ours_.address(0)), Location(ours_.address(1))};
  for (const bool are_named : {true, false}) {
    for (const bool are_up : {true, false}) {
      ours_.Alter(are_up, are_named);
      ours_.gates[1].Close();
      const auto begin = net::Clock::now();
      const auto found = FindView(locations, kOptions);
      const auto time = net::Clock::now() - begin;
      ours_.Open();
      EXPECT_EQ(found ? ErrorCode::kOk : found.error().code,
                are_named ? ErrorCode::kOk : ErrorCode::kUnavailable);
      EXPECT_LT(time, are_named ? 1s : kOptions.timeout + 1s);
    }
  }
}

// The address has a name for the node that the cluster does not know.
TEST_F(FindViewTest, ADaemonThatWasReachedBeforeAndIsGoneIsNotWaitedFor) {
  auto gone = std::make_unique<FakeDaemon>([](FakeDaemon::Request&) { return true; });
  const auto locations = std::vector{Location(gone->address()), Location(ours_.address(0))};
  const auto alone = FindView({locations.data(), 1}, kOptions);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_FALSE(alone.value());
  gone.reset();
  for (int i = 0; i < 3; ++i) {
    const auto begin = net::Clock::now();
    const auto found = FindView(locations, kOptions);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(found.value());
    EXPECT_LT(net::Clock::now() - begin, 5s);
  }
}

// It may be of another cluster, whose metadata is to be read instead of this one's.
TEST_F(FindViewTest, TheMetadataIsNotReadWhileADaemonOfTheAddressIsSilent) {
  const FakeDaemon silent([](FakeDaemon::Request&) { return true; }, /*greets=*/false);
  for (const auto& [first, second] : {std::pair(ours_.address(0), silent.address()),
                                      std::pair(silent.address(), ours_.address(0))}) {
    const auto read =
        ReadMetadata("ffrecord://" + first.ToString() + "," + second.ToString() + "/", kOptions);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kUnavailable) << read.error().message;
    for (const std::string& part : {silent.address().ToString(), std::string("leave it out")})
      EXPECT_NE(read.error().message.find(part), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace ffrecord::client
