// Goal: a TransferQueue submits in order as far as there is room, continues what stops short, and
// gives back each transfer once.
// Method: an engine that completes what the test says, and rings whose threads exit.

#include "libffrecord/io/transfer_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "libffrecord/base/unique_fd.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using Wants = TransferQueue::Wants;

constexpr milliseconds kNoWait{0};

// Completes requests when the test says so; a Wait() for more than that completes all.
class ScriptedEngine final : public IoEngine {
 public:
  std::string_view name() const noexcept override { return "scripted"; }

  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    const auto taken = std::min<std::size_t>(requests.size(), room - std::min(room, in_flight()));
    for (IoRequest* request : requests.first(taken)) {
      begun.push_back(request->offset_bytes);
      under_way_.push_back(request);
    }
    in_flight_max = std::max(in_flight_max, in_flight());
    return static_cast<std::uint32_t>(taken);
  }

  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             milliseconds timeout) override {
    ++wait_count;
    if (timeout > kNoWait) waited_for = count_min;
    if (timeout > kNoWait && done_.size() < count_min) Complete(in_flight());
    const std::size_t count = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), count, done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<std::uint32_t>(count);
  }

  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(under_way_.size() + done_.size());
  }

  // The oldest `count`; each moves all, or `moved_max` bytes.
  void Complete(std::uint32_t count) {
    for (; count > 0 && !under_way_.empty(); --count) {
      IoRequest* const request = under_way_.front();
      under_way_.erase(under_way_.begin());
      request->result = static_cast<std::int64_t>(std::min(request->buffer.size(), moved_max));
      done_.push_back(request);
    }
  }

  std::uint32_t room = 64;
  std::size_t moved_max = SIZE_MAX;
  std::vector<std::uint64_t> begun;  // Their offsets.
  std::uint32_t in_flight_max = 0;
  std::uint32_t waited_for = 0;
  int wait_count = 0;

 private:
  std::vector<IoRequest*> under_way_;
  std::vector<IoRequest*> done_;
};

class TransferQueueTest : public testing::Test {
 protected:
  // Transfers of 100 bytes at 0, 1000, 2000, ...
  void Add(TransferQueue& queue, std::size_t count) {
    transfers_.reserve(64);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t offset = transfers_.size() * 1000;
      queue.Add(transfers_.emplace_back(IoRequest{.offset_bytes = offset, .buffer = buffer_}));
    }
  }
  // Which have ended, by number.
  std::vector<std::size_t> Ended() {
    std::vector<std::size_t> numbers;
    for (const Transfer* transfer : ended_)
      numbers.push_back(static_cast<std::size_t>(transfer - transfers_.data()));
    ended_.clear();
    return numbers;
  }

  ScriptedEngine engine_;
  TransferQueue::Memory memory_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(100);
  std::vector<Transfer> transfers_;
  std::vector<Transfer*> ended_;
};

using Numbers = std::vector<std::size_t>;

TEST_F(TransferQueueTest, BeginsSoManyAtATimeInOrder) {
  TransferQueue queue(engine_, 3, Wants::kAny, memory_);
  Add(queue, 8);
  while (queue.count() > 0) {
    engine_.Complete(1);
    ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
    EXPECT_EQ(queue.count() + ended_.size(), 8U);
  }
  EXPECT_EQ(Ended(), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(engine_.in_flight_max, 3U);
  EXPECT_EQ(engine_.begun,
            (std::vector<std::uint64_t>{0, 1000, 2000, 3000, 4000, 5000, 6000, 7000}));
}

TEST_F(TransferQueueTest, WaitsForWhatIsWanted) {
  for (const auto& [wants, count] : {std::pair(Wants::kAny, 1U), {Wants::kAll, 8U}}) {
    TransferQueue queue(engine_, 16, wants, memory_);
    Add(queue, 8);
    ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
    EXPECT_EQ(engine_.waited_for, count);
  }
}

// While others are still to be submitted, room for some of those is enough.
TEST_F(TransferQueueTest, WhoWantsAllWaitsForRoomFirst) {
  TransferQueue queue(engine_, 8, Wants::kAll, memory_);
  Add(queue, 20);
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(engine_.waited_for, 2U);
}

TEST_F(TransferQueueTest, WhatStopsShortIsContinuedBehindTheOthers) {
  TransferQueue queue(engine_, 1, Wants::kAny, memory_);
  Add(queue, 2);
  engine_.moved_max = 60;
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_TRUE(ended_.empty());
  EXPECT_EQ(queue.count(), 2U);
  engine_.moved_max = SIZE_MAX;
  while (queue.count() > 0) ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(Ended(), (Numbers{1, 0}));
  EXPECT_EQ(engine_.begun, (std::vector<std::uint64_t>{0, 1000, 60}));
  EXPECT_EQ(transfers_[0].result(), 100);
}

TEST_F(TransferQueueTest, WithdrawnAreThoseThatAreUnwantedAndWereNotSubmitted) {
  TransferQueue queue(engine_, 2, Wants::kAny, memory_);
  Add(queue, 6);
  ASSERT_TRUE(queue.Submit());
  queue.Withdraw([&](const Transfer& transfer) { return (&transfer - transfers_.data()) % 2 == 1; },
                 ended_);
  EXPECT_EQ(Ended(), (Numbers{3, 5}));
  EXPECT_EQ(queue.count(), 4U);
  while (queue.count() > 0) ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(Ended(), (Numbers{0, 1, 2, 4}));
}

TEST_F(TransferQueueTest, WhatIsInFlightIsWaitedForAtTheEndAndTheRestIsDropped) {
  {
    TransferQueue queue(engine_, 2, Wants::kAny, memory_);
    Add(queue, 6);
    ASSERT_TRUE(queue.Submit());
  }
  EXPECT_EQ(engine_.in_flight(), 0U);
  EXPECT_EQ(engine_.begun.size(), 2U);
  TransferQueue next(engine_, 2, Wants::kAny, memory_);  // Of the same memory.
  EXPECT_EQ(next.count(), 0U);
}

TEST_F(TransferQueueTest, AnEngineThatTakesNothingIsAnErrorOnlyIfItIsIdle) {
  TransferQueue queue(engine_, 8, Wants::kAny, memory_);
  Add(queue, 2);
  engine_.room = 1;
  ASSERT_TRUE(queue.Submit());
  ASSERT_TRUE(queue.Submit()) << "it is full";
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  engine_.room = 0;
  const auto refused = queue.Submit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, EAGAIN);
}

// An owner that processes each read at once gets reads from the page cache a few at a time.
TEST_F(TransferQueueTest, WhoTakesEachGetsThemAsTheyCome) {
  buffer_.resize(std::size_t{200} << 10);
  TransferQueue queue(engine_, 64, Wants::kEach, memory_);
  Add(queue, 12);
  ASSERT_TRUE(queue.Submit());
  EXPECT_EQ(engine_.begun.size(), 2U);
  engine_.Complete(2);
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(Ended(), (Numbers{0, 1}));
  EXPECT_LE(engine_.begun.size(), 4U);
  // Nothing is complete: the device has to work, and gets all that there is.
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(engine_.begun.size(), 12U);
}

TEST_F(TransferQueueTest, AnIdleEngineIsAskedForItsDescriptorsSake) {
  TransferQueue queue(engine_, 8, Wants::kEach, memory_);
  ASSERT_TRUE(queue.Poll(milliseconds(1), ended_));
  EXPECT_EQ(engine_.wait_count, 1);
}

// The kernel ends reads of a thread that exits: they were not made.
TEST(RovingTransferQueueTest, ReadsOfAThreadThatHasExitedAreMadeAllTheSame) {
  const test::TempFolder folder;
  const std::size_t size = std::size_t{8} << 20;
  test::WriteFile(folder / "file", std::string(size, 'x'));
  const UniqueFd fd(::open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(fd.get()), 0);
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto engine = MakeRovingIoEngine(64).value();
  TransferQueue::Memory memory;
  TransferQueue queue(*engine, 64, Wants::kAll, memory);
  std::vector<std::byte> bytes(size);
  std::vector<Transfer> transfers;
  transfers.reserve(64);
  for (std::size_t begin = 0; begin < size; begin += size / 64) {
    const IoRequest request{.fd = fd.get(),
                            .offset_bytes = begin,
                            .buffer = std::span(bytes).subspan(begin, size / 64)};
    queue.Add(transfers.emplace_back(request));
  }
  std::thread([&] { EXPECT_TRUE(queue.Submit()); }).join();
  std::vector<Transfer*> ended;
  while (queue.count() > 0) ASSERT_TRUE(queue.Poll(kIoForever, ended));
  EXPECT_EQ(ended.size(), 64U);
  for (const Transfer& transfer : transfers) EXPECT_EQ(transfer.result(), size / 64);
  EXPECT_EQ(std::ranges::count(bytes, std::byte{'x'}), std::ssize(bytes));
}

}  // namespace
}  // namespace ffrecord
