// Goal: urgent reads pass others wherever they wait for the same thing, and never stop them.
// Method: the queue of a disk, by itself; and a disk that ends reads when the test says so, with
// connections that read from it.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/base/clock.h"
#include "new_extents.h"
#include "open_at_once.h"
#include "server/service/read/batch_reads.h"
#include "server/service/read/disk_reader.h"
#include "server/service/read/run_queue.h"
#include "server_peers.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

constexpr std::size_t kMiB = 1 << 20;

// --- The queue of a disk -------------------------------------------------------------------------

class RunQueueTest : public testing::Test {
 protected:
  // Pushes runs: 'u' is urgent, 'b' is not.
  void Push(const std::string& kinds) {
    for (const char kind : kinds) {
      runs_.emplace_back();
      names_[&runs_.back()] = std::string(1, kind) + std::to_string(counts_[kind]++);
      queue_.Push(&runs_.back(), kind == 'u');
    }
  }
  std::string Names() {
    std::string names;
    for (IoRequest* const run : queue_.First(queue_.size())) names += names_[run] + " ";
    return names;
  }

  RunQueue queue_;
  std::deque<IoRequest> runs_;
  std::map<IoRequest*, std::string> names_;
  std::map<char, int> counts_;
};

TEST_F(RunQueueTest, UrgentRunsGoFirstAndEachKindInItsOrder) {
  Push("bubuu");
  EXPECT_EQ(Names(), "u0 u1 u2 b0 b1 ");
  queue_.DropFirst(2);
  Push("ub");
  EXPECT_EQ(Names(), "u2 u3 b0 b1 b2 ");
  queue_.DropIf([&](IoRequest* run) { return names_[run] == "u3" || names_[run] == "b1"; });
  Push("u");
  EXPECT_EQ(Names(), "u2 u4 b0 b2 ");
  queue_.DropFirst(4);
  EXPECT_TRUE(queue_.empty());
  Push("bu");
  EXPECT_EQ(Names(), "u5 b3 ");
}

// One that comes when the queue was empty of others has not been passed by anything yet.
TEST_F(RunQueueTest, RunsThatAreGoneDoNotCount) {
  Push("b" + std::string(RunQueue::kUrgentInRow, 'u'));
  queue_.DropFirst(queue_.size());
  Push("ubu");
  EXPECT_EQ(Names(), "u8 u9 b1 ");
}

TEST_F(RunQueueTest, ARunThatManyHavePassedGoesNext) {
  Push("b" + std::string(RunQueue::kUrgentInRow, 'u') + "bu");
  EXPECT_EQ(Names(), "u0 u1 u2 u3 u4 u5 u6 u7 b0 u8 b1 ");
  // As if urgent runs came for ever: one of nine is another, while there are others.
  Push(std::string(30, 'b'));
  std::string served;
  for (int i = 0; i < 100; ++i) {
    Push("u");
    served += names_[queue_.First(1).front()][0];
    queue_.DropFirst(1);
  }
  EXPECT_GE(std::ranges::count(served, 'b'), 10) << served;
}

// --- A disk --------------------------------------------------------------------------------------

// Takes all reads, and ends them when the test is over.
class StillEngine final : public IoEngine {
 public:
  explicit StillEngine(bool& is_over) : is_over_(is_over) {}
  std::string_view name() const noexcept override { return "still"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    taken_.insert(taken_.end(), requests.begin(), requests.end());
    return static_cast<std::uint32_t>(requests.size());
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t /*count_min*/,
                             std::chrono::milliseconds /*timeout*/) override {
    std::uint32_t count = 0;
    for (; is_over_ && !taken_.empty() && count < done.size(); ++count) {
      done[count] = taken_.back();
      done[count]->result = -EIO;
      taken_.pop_back();
    }
    return count;
  }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(taken_.size());
  }

 private:
  bool& is_over_;
  std::vector<IoRequest*> taken_;
};

class TrafficClassesOfDisksTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kHeldMax = 64 * kMiB;

  TrafficClassesOfDisksTest() {
    ExtentStore::Disks disks;
    disks.present.push_back(Disk::Open(folder_ / "disk").value());
    store_ = ExtentStore::Open(std::move(disks)).value();
    const std::string data(4 * kMiB, 'x');
    auto writer = test::Create(*store_, MakeExtentId(1, 0, 0), data.size()).value();
    EXPECT_TRUE(writer.Append(AsBytes(data)));
    extent_ = writer.Seal(Xxh3(AsBytes(data))).value();
  }
  ~TrafficClassesOfDisksTest() override { is_over_ = true; }

  void Start(TrafficClass traffic) { reader_.Start({1, 1, 0, traffic}, {&extent_, 0, kMiB}); }
  void StartUrgent() { Start(TrafficClass::kUrgent); }
  // Starts reads while there is room. Returns their size.
  std::uint64_t StartAll(TrafficClass traffic) {
    std::uint64_t size_bytes = 0;
    for (; reader_.HasRoomFor(*extent_, traffic); size_bytes += kMiB) Start(traffic);
    return size_bytes;
  }
  void EndAll() {
    std::vector<DiskReader::Completed> completed;
    is_over_ = true;
    while (reader_.reading_count() > 0) ASSERT_TRUE(reader_.Poll(1ms, completed));
    is_over_ = false;
    reader_.Release(static_cast<std::uint32_t>(reader_.held_bytes()));
  }

  const test::TempFolder folder_;
  std::unique_ptr<ExtentStore> store_;
  ExtentPtr extent_;
  bool is_over_ = false;
  DiskReader reader_{
      std::make_unique<StillEngine>(is_over_), {16, 0, kHeldMax, 1}, test::OpenAtOnce(reader_)};
};

TEST_F(TrafficClassesOfDisksTest, OthersLeaveRoomForUrgentReads) {
  EXPECT_EQ(StartAll(TrafficClass::kPrefetch), kHeldMax - kHeldMax / 4);
  EXPECT_EQ(StartAll(TrafficClass::kUrgent), kHeldMax / 4);
}

TEST_F(TrafficClassesOfDisksTest, BesideUrgentReadsOthersAreAsManyAsKeepADiskBusy) {
  StartUrgent();
  EXPECT_EQ(StartAll(TrafficClass::kRepair), DiskReader::kBesideUrgentBytes);
  EndAll();
  StartUrgent();
  EXPECT_EQ(StartAll(TrafficClass::kRepair), DiskReader::kBesideUrgentBytes);
}

// --- A connection --------------------------------------------------------------------------------

// Beside an urgent read and as many others as a disk takes then.
class TrafficClassesTest : public TrafficClassesOfDisksTest {
 protected:
  TrafficClassesTest() {
    StartUrgent();
    EXPECT_EQ(StartAll(TrafficClass::kRepair), DiskReader::kBesideUrgentBytes);
    others_ = reader_.reading_count();
  }

  // Asks for so many pieces of 1 MiB in a batch.
  void Ask(BatchReads& reads, std::uint32_t count, net::BatchRead::Class traffic) {
    net::BatchRead batch;
    batch.traffic_class = traffic;
    for (std::uint32_t i = 0; i < count; ++i)
      batch.entries.push_back({0, static_cast<std::uint32_t>(i * kMiB), kMiB, 0});
    reads.Begin(++request_, batch, {&extent_, 1}, nullptr);
  }
  std::size_t started() const { return reader_.reading_count() - others_; }

  WorkerMetrics metrics_;
  ReadAhead::Metrics ahead_metrics_;
  ReadAhead ahead_{0, ahead_metrics_, [](std::string_view, std::function<void()> job) { job(); }};
  ReadAheadPort port_{ahead_};
  std::uint64_t request_ = 0;
  std::size_t others_ = 0;
};

TEST_F(TrafficClassesTest, UrgentBatchesBeginWhereOthersWaitAndEachConnectionGoesOn) {
  BatchReads urgent(reader_, port_, 2, metrics_);
  Ask(urgent, 3, net::BatchRead::Class::kDemand);
  EXPECT_FALSE(urgent.Start());
  EXPECT_EQ(started(), 3U);
  for (const auto traffic : {net::BatchRead::Class::kPrefetch, net::BatchRead::Class::kCheckpoint,
                             net::BatchRead::Class::kRepair}) {
    BatchReads other(reader_, port_, 3, metrics_);
    const std::size_t before = started();
    Ask(other, 3, traffic);
    EXPECT_TRUE(other.Start());
    EXPECT_EQ(started(), before + 1);
    EndAll();
    StartUrgent();
    StartAll(TrafficClass::kRepair);
    others_ = reader_.reading_count();
  }
}

TEST_F(TrafficClassesTest, WhatIsBeforeAnUrgentBatchOfItsConnectionIsAsUrgent) {
  BatchReads reads(reader_, port_, 2, metrics_);
  Ask(reads, 3, net::BatchRead::Class::kPrefetch);
  EXPECT_TRUE(reads.Start());
  EXPECT_EQ(started(), 1U);
  Ask(reads, 1, net::BatchRead::Class::kDemand);
  EXPECT_FALSE(reads.Start());
  EXPECT_EQ(started(), 4U);
}

}  // namespace
}  // namespace ffrecord::server
