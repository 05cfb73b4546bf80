// Goal: an event loop that waits for its disk serves others at once, notices each read as soon as
// it ends, and looks at neither on a timer.
// Method: a daemon in this process whose engine holds reads back, or ends them late and from
// another thread, and counts how often it is asked, and how often epoll is; engines with and
// without a descriptor to wait for.

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon_metrics.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/io/io_engine.h"
#include "server_peers.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace {

std::atomic<std::size_t> epoll_wait_count{0};

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int epoll_wait(int fd, epoll_event* events, int count, int timeout_ms) {
  ++epoll_wait_count;
  return static_cast<int>(
      ::syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, nullptr, sizeof(sigset_t)));
}

namespace ffrecord::server {
namespace {

// What the engines of one daemon share with the test.
struct Disk {
  std::atomic<bool> holds{false};           // Nothing is submitted to the real engine meanwhile.
  std::atomic<std::size_t> wait_count{0};   // Calls of Wait().
  std::atomic<std::size_t> taken_count{0};  // Requests.
};

// An engine of threads that takes one request at a time while it is told to hold them.
class HoldingEngine final : public IoEngine {
 public:
  HoldingEngine(std::unique_ptr<IoEngine> real, Disk& disk, bool has_descriptor)
      : real_(std::move(real)), disk_(disk), has_descriptor_(has_descriptor) {}
  std::string_view name() const noexcept override { return "holding"; }
  std::uint32_t in_flight() const noexcept override {
    return real_->in_flight() + static_cast<std::uint32_t>(held_.size());
  }
  Result<int> EventDescriptor() override {
    if (!has_descriptor_) return IoEngine::EventDescriptor();
    auto real = real_->EventDescriptor();
    if (real) return real;
    event_ = FFR_TRY(EventFd::Make());
    return event_.fd();
  }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    disk_.taken_count += requests.size();
    if (!disk_.holds) return SubmitToReal(requests);
    held_.insert(held_.end(), requests.begin(), requests.end());
    return static_cast<std::uint32_t>(requests.size());
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    ++disk_.wait_count;
    if (!disk_.holds && !held_.empty()) {
      const auto taken = FFR_TRY(SubmitToReal(held_));
      held_.erase(held_.begin(), held_.begin() + taken);
    }
    if (real_->in_flight() == 0) {
      SleepFor(count_min > 0 ? timeout : std::chrono::milliseconds(0));
      return 0U;
    }
    return real_->Wait(done, count_min, timeout);
  }

 private:
  // An engine without a descriptor runs all that it takes at once: that is told once.
  Result<std::uint32_t> SubmitToReal(std::span<IoRequest* const> requests) {
    const auto taken = FFR_TRY(real_->Submit(requests));
    if (event_.fd() >= 0) event_.Ring();
    return taken;
  }

  const std::unique_ptr<IoEngine> real_;
  EventFd event_;
  Disk& disk_;
  const bool has_descriptor_;
  std::vector<IoRequest*> held_;
};

struct Engine {
  std::string name;
  Result<std::unique_ptr<IoEngine>> (*make)(std::uint32_t depth);
  bool has_descriptor;
};

class DiskWaitsTest : public ServerTest, public testing::WithParamInterface<Engine> {
 protected:
  test::VirtualClock clock_;
  Disk disk_;
  Daemon one_{{.core_count = 1,
               .mapped_count_max = 0,  // All is read through the engine.
               .make_engine = [this](std::uint32_t depth) -> Result<std::unique_ptr<IoEngine>> {
                 auto real = FFR_TRY(GetParam().make(depth));
                 return std::unique_ptr<IoEngine>(std::make_unique<HoldingEngine>(
                     std::move(real), disk_, GetParam().has_descriptor));
               },
               .admin = net::Address{"127.0.0.1", 0}}};
};

TEST_P(DiskWaitsTest, ReadsInARowEndAsSoonAsTheDiskIsDone) {
  auto channel = ConnectTo(one_);
  const std::string data(300'000, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) {
    const auto read = Read(*channel, {id_}, {{0, 7, 1000, 0}});
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read.value().entries[0], data.substr(7, 1000));
  }
  // A tick is 200 ms.
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_P(DiskWaitsTest, MoreRunsThanTheEngineHoldsAreAllRead) {
  auto channel = ConnectTo(one_);
  std::string data(8 << 20, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i / 4096 * 31 + i);
  ASSERT_TRUE(Put(*channel, id_, data));
  // Far enough apart to be read one by one, and more than are returned at one time.
  std::vector<net::BatchEntry> entries;
  for (std::uint32_t i = 0; i < 400; ++i) entries.push_back({0, i * 20'000, 100, 0});
  const auto start = Clock::now();
  for (int i = 0; i < 60; ++i) {
    const auto read = Read(*channel, {id_}, entries);
    ASSERT_TRUE(read) << read.error().message;
    for (std::size_t at = 0; at < entries.size(); ++at)
      ASSERT_EQ(read.value().entries[at], data.substr(entries[at].offset_bytes, 100)) << at;
  }
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_P(DiskWaitsTest, OthersAreServedWhileTheDiskDoesNotAnswerAndNobodyAsksItAgainAndAgain) {
  auto reader = ConnectTo(one_);
  auto other = ConnectTo(one_);
  ASSERT_TRUE(Put(*reader, id_, std::string(300'000, 'd')));
  ASSERT_TRUE(reader->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {}, Soon(),
                           "a binding"));
  disk_.holds = true;
  const std::size_t taken_before = disk_.taken_count;
  net::BatchRead batch;
  batch.entries = {{0, 0, 1000, 0}};
  const auto request = reader->Send(FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request);
  ASSERT_TRUE(reader->Flush(Soon()));
  ASSERT_TRUE(test::Eventually([&] { return disk_.taken_count > taken_before; }));
  const std::size_t waits_before = disk_.wait_count;
  const auto start = Clock::now();

  std::size_t ping_count = 0;
  while (Clock::now() - start < 1s) {
    ASSERT_TRUE(other->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
    clock_.RunFor(10ms);
    ++ping_count;
  }

  const std::size_t wait_count = disk_.wait_count - waits_before;
  const auto took = Clock::now() - start;
  EXPECT_GT(ping_count, 0U);
  if (GetParam().has_descriptor) {
    EXPECT_LE(wait_count, static_cast<std::size_t>(took / 200ms) + 3);
  }
  disk_.holds = false;  // The next tick finds it.
  const auto header = reader->Receive(request.value(), Soon(), "records");
  EXPECT_TRUE(header) << header.error().message;
}

// A loop that spins serves everybody, and costs a processor.
TEST_P(DiskWaitsTest, AnIdleDaemonThatHasReadSleeps) {
  auto channel = ConnectTo(one_);
  ASSERT_TRUE(Put(*channel, id_, std::string(300'000, 'd')));
  ASSERT_TRUE(Read(*channel, {id_}, {{0, 7, 1000, 0}}));
  const std::size_t before = epoll_wait_count;
  clock_.RunFor(10s);
  // A tick of each loop is 200 ms. A loop that spins is never idle, and this line never reached.
  EXPECT_LT(epoll_wait_count - before, 1'000U);
}

// The loop's memory has room, but this disk's part of it is taken.
class FullPartTest : public DiskWaitsTest {
 protected:
  static constexpr std::uint64_t kHeldBytesMax = std::uint64_t{4} << 20;

  test::TempFolder folder_;
  Daemon two_{{.data = {folder_ / "a", folder_ / "b"},
               .core_count = 1,
               .held_bytes_max = kHeldBytesMax,
               .mapped_count_max = 0,
               .make_engine = [this](std::uint32_t depth) -> Result<std::unique_ptr<IoEngine>> {
                 auto real = FFR_TRY(GetParam().make(depth));
                 return std::unique_ptr<IoEngine>(std::make_unique<HoldingEngine>(
                     std::move(real), disk_, GetParam().has_descriptor));
               },
               .admin = net::Address{"127.0.0.1", 0}}};
};

TEST_P(FullPartTest, AConnectionThatWaitsForADiskThatHangsSleeps) {
  auto channel = ConnectTo(two_);
  const std::string data(8 << 20, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {}, Soon(),
                            "a binding"));
  disk_.holds = true;
  net::BatchRead batch;
  batch.entries = {{0, 0, static_cast<std::uint32_t>(data.size()), 0}};
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request && channel->Flush(Soon()));
  ASSERT_TRUE(test::Eventually([&] {
    return test::MetricOf(*two_.server().admin_address(), "ffrecord_inflight_bytes") ==
           kHeldBytesMax / 2;
  }));

  const std::size_t before = epoll_wait_count;
  clock_.RunFor(500ms);
  EXPECT_LT(epoll_wait_count - before, 1'000U);

  disk_.holds = false;  // It goes on as soon as the disk gives something back.
  const auto read = Receive(*channel, request.value(), 1);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().entries[0], data);
}

// Of 400 runs the engine has taken the first 256 when the client gives the batch up: the others are
// never read, and what was read is neither sent nor kept.
class StoppedBatchTest : public DiskWaitsTest {
 protected:
  static constexpr std::uint32_t kRunCount = 400;

  // Waits until the engine has what it takes of them.
  void Begin(net::Channel& channel) {
    ASSERT_TRUE(Put(channel, id_, std::string(8 << 20, 'd')));
    ASSERT_TRUE(channel.Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {}, Soon(),
                             "a binding"));
    disk_.holds = true;
    taken_before_ = disk_.taken_count;
    net::BatchRead batch;
    for (std::uint32_t i = 0; i < kRunCount; ++i) batch.entries.push_back({0, i * 20'000, 100, 0});
    request_ = channel.Send(FrameType::kBatchRead, batch.Encode()).value();
    ASSERT_TRUE(channel.Flush(Soon()));
    ASSERT_TRUE(test::Eventually([&] { return taken_count() == DiskReader::kDepth; }));
  }
  std::size_t taken_count() const { return disk_.taken_count - taken_before_; }
  std::uint64_t held_bytes() const {
    return test::MetricOf(*one_.server().admin_address(), "ffrecord_inflight_bytes");
  }

  std::uint64_t request_ = 0;
  std::size_t taken_before_ = 0;
};

TEST_P(StoppedBatchTest, ABatchThatIsCancelledReadsAndSendsNothingMore) {
  auto channel = ConnectTo(one_);
  Begin(*channel);
  ASSERT_TRUE(test::Eventually([&] { return held_bytes() == kRunCount * 100; }));
  ASSERT_TRUE(channel->Send(FrameType::kCancel, net::Cancel{request_}.Encode()));
  ASSERT_TRUE(channel->Flush(Soon()));
  // What the engine has not taken is freed at once.
  EXPECT_TRUE(test::Eventually([&] { return held_bytes() == DiskReader::kDepth * 100; }));
  disk_.holds = false;

  const auto header = channel->Receive(request_, Soon(), "the end of the batch");

  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header.value().type, net::ReplyTo(FrameType::kBatchRead));  // No data before it.
  const auto done = net::BatchDone::Decode(channel->body()).value();
  EXPECT_EQ(done.statuses, std::vector(kRunCount, net::EntryStatus::kCancelled));
  EXPECT_EQ(taken_count(), DiskReader::kDepth);
  EXPECT_TRUE(test::Eventually([&] { return held_bytes() == 0; }));
  EXPECT_TRUE(Read(*channel, {id_}, {{0, 7, 1000, 0}}));
}

TEST_P(StoppedBatchTest, ABatchWhoseClientIsGoneReadsNothingMore) {
  auto channel = ConnectTo(one_);
  Begin(*channel);
  channel.reset();
  EXPECT_TRUE(test::Eventually([&] { return held_bytes() == DiskReader::kDepth * 100; }));
  disk_.holds = false;
  EXPECT_TRUE(test::Eventually([&] { return held_bytes() == 0; }));
  EXPECT_EQ(taken_count(), DiskReader::kDepth);
}

INSTANTIATE_TEST_SUITE_P(AllEngines, DiskWaitsTest,
                         testing::Values(Engine{"any", MakeIoEngine, true},
                                         Engine{"threads", MakeThreadsEngine, true},
                                         Engine{"at_once", MakeInlineEngine, true},
                                         Engine{"without", MakeIoEngine, false}),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(AllEngines, StoppedBatchTest,
                         testing::Values(Engine{"any", MakeIoEngine, true},
                                         Engine{"threads", MakeThreadsEngine, true},
                                         Engine{"at_once", MakeInlineEngine, true},
                                         Engine{"without", MakeIoEngine, false}),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(AllEngines, FullPartTest,
                         testing::Values(Engine{"any", MakeIoEngine, true},
                                         Engine{"without", MakeIoEngine, false}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord::server
