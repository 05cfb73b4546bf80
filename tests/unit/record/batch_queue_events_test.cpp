// Goal: the descriptor of a batch queue tells of all that there is to do, and rests after it.
// Method: sources whose queues have no event, or ring theirs late; a child without threads.

#include <ffrecord/batch_queue.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/range_queue.h"
#include "memory_files.h"
#include "refused_calls.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::FileOf;

constexpr milliseconds kNoWait{0};

std::vector<std::string> Records() { return std::vector<std::string>(60, "a record"); }

// Ends what is given up in the next Poll(), and has no event of its own: as a queue of a daemon
// that is silent.
class SilentFiles final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse /*use*/) const override {
    return std::unique_ptr<RangeQueue>(std::make_unique<Queue>(needs_poll));
  }

  // Whether Poll() was not called since the last Submit() or GiveUp(): then the descriptor of a
  // queue need not tell of anything.
  mutable std::atomic<bool> needs_poll = false;

 private:
  class Queue final : public RangeQueue {
   public:
    explicit Queue(std::atomic<bool>& needs_poll) : needs_poll_(needs_poll) {}
    void Submit(RangeGroup& group) override {
      needs_poll_ = true;
      groups_.emplace_back(&group, false);
    }
    void GiveUp(RangeGroup& group) override {
      needs_poll_ = true;
      std::ranges::find(groups_, &group, &Asked::first)->second = true;
    }
    void Poll(milliseconds timeout) override {
      EXPECT_EQ(timeout, kNoWait);
      needs_poll_ = false;
      const auto is_over = std::ranges::find(groups_, true, &Asked::second);
      if (is_over == groups_.end()) return;
      RangeGroup& group = *is_over->first;
      groups_.erase(is_over);
      group.Ended(GivenUp());
    }
    Result<int> EventDescriptor() override { return quiet_.fd(); }

   private:
    using Asked = std::pair<RangeGroup*, bool>;  // True: it was given up.
    std::atomic<bool>& needs_poll_;
    std::vector<Asked> groups_;
    const EventFd quiet_ = EventFd::Make().value();
  };
};

TEST(BatchQueueTest, TheDescriptorTellsOfTheRoomThatACancelledBatchLeaves) {
  const auto files = std::make_shared<SilentFiles>(std::vector<std::string>{FileOf(Records())});
  const auto reader = OpenRecords(files, {}).value();
  auto queue = reader.OpenQueue({.batches_in_flight = 1}).value();
  const int descriptor = queue.EventDescriptor().value();
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  const std::uint64_t held_bytes = queue.held_bytes();
  EXPECT_GT(held_bytes, 0U);

  EXPECT_TRUE(queue.Cancel(0));
  pollfd ready{descriptor, POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 0), 1) << "the next batch would wait for ever";
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  EXPECT_FALSE(files->needs_poll) << "the next batch has begun, and nobody would tell of it";
  EXPECT_EQ(::poll(&ready, 1, 0), 0) << "it does not rest";
  EXPECT_TRUE(queue.Cancel(1));  // It has begun, or else there would be no event.
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  EXPECT_EQ(queue.held_bytes(), 0U);
}

// Rings its descriptor again after it has ended a group, as a ring does whose last completion comes
// while its owner takes the others off.
class LateRinger final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse /*use*/) const override {
    return std::unique_ptr<RangeQueue>(std::make_unique<Queue>(*this));
  }

 private:
  class Queue final : public RangeQueue {
   public:
    explicit Queue(const LateRinger& files) : files_(files) {}
    void Submit(RangeGroup& group) override { group_ = &group; }
    void GiveUp(RangeGroup&) override {}
    void Poll(milliseconds) override {
      event_.Clear();
      if (group_ == nullptr) return;
      RangeGroup& group = *std::exchange(group_, nullptr);
      const auto arrived = [&](RangeRead& range) { group.Arrived(range); };
      group.Ended(files_.ReadEach(group.ranges(), arrived, Patience::OfThread()));
      event_.Ring();
    }
    Result<int> EventDescriptor() override { return event_.fd(); }

   private:
    const LateRinger& files_;
    RangeGroup* group_ = nullptr;
    EventFd event_ = EventFd::Make().value();
  };
};

TEST(BatchQueueTest, ADescriptorThatIsRungLateRestsOnceThereIsNothingToDo) {
  const auto files = std::make_shared<LateRinger>(std::vector<std::string>{FileOf(Records())});
  const auto reader = OpenRecords(files, {}).value();
  auto queue = reader.OpenQueue().value();
  const int descriptor = queue.EventDescriptor().value();
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  EXPECT_TRUE(queue.Poll(milliseconds(20'000)).value());
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  pollfd ready{descriptor, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0) << "an event loop would spin";
}

// A process that may have no more threads: whoever polls reads.
TEST(BatchQueueTest, WithoutThreadsTheDescriptorTellsOfBatchesThatAreToBeRead) {
  const int status = test::RunInChild([] {
    const std::vector<std::string> records = Records();
    const auto files = std::make_shared<test::MemoryFiles>(std::vector{FileOf(records)});
    const auto reader = OpenRecords(files, {}).value();
    if (!test::RefuseCalls({{SYS_clone, EAGAIN}, {SYS_clone3, EAGAIN}})) return test::kSkipped;
    auto queue = reader.OpenQueue({.batches_in_flight = 4}).value();
    pollfd ready{queue.EventDescriptor().value(), POLLIN, 0};
    for (std::uint64_t token = 0; token < 4; ++token)
      if (!queue.Submit({{token, token + 10}}, token)) return 1;
    if (!queue.Cancel(0)) return 2;
    std::uint64_t next = 1;
    for (int turn = 0; next < 4; ++turn) {  // As an event loop.
      if (turn == 100 || ::poll(&ready, 1, 0) != 1) return 3;
      while (auto complete = queue.Poll(kNoWait).value()) {
        if (complete->token != next || !complete->batch) return 4;
        if (test::AsString(complete->batch.value().record(1)) != records[next + 10]) return 5;
        ++next;
      }
    }
    return ::poll(&ready, 1, 0) == 0 ? 0 : 6;
  });
  if (status == test::kSkipped) GTEST_SKIP() << "no system call can be refused here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ffrecord
