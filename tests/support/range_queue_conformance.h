#pragma once

// Goal: many groups of ranges are on their way at a time through each form's queue, and one that is
// given up, left or never asked for is neither told nor written to.
// Method: the same tests over the queue of each form; a form's program includes this header beside
// range_reader_conformance.h and instantiates RangeQueueConformance.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.h"
#include "child.h"
#include "child_threads.h"
#include "libffrecord/source/range_queue.h"
#include "queued_reader.h"
#include "range_reader_conformance.h"

namespace ffrecord::test {

class RangeQueueConformance : public RangeReaderConformance {
 protected:
  static constexpr std::chrono::milliseconds kLong{10'000};

  void SetUp() override {
    RangeReaderConformance::SetUp();
    if (reader_ == nullptr) return;
    auto queue = reader_->MakeQueue(RangeReader::QueueUse::kAnyThread);
    ASSERT_TRUE(queue) << queue.error().message;
    queue_ = std::move(queue).value();
  }
  // The queue goes before its reader.
  void TearDown() override { queue_.reset(); }

  // Ranges of one group, and the group.
  struct Asked {
    Asked(const RangeReader& reader, const Contents& contents, std::mt19937& random,
          std::size_t count)
        : wanted(reader, contents) {
      wanted.AddRandomly(count, random);
      group = std::make_unique<NotedGroup>(wanted.Prepare());
    }
    RangesWanted wanted;
    std::unique_ptr<NotedGroup> group;

    void ExpectRight() const {
      ASSERT_TRUE(group->ended);
      EXPECT_TRUE(*group->ended);
      EXPECT_EQ(group->arrived_count, group->ranges().size());
      for (const RangeRead& range : group->ranges()) ASSERT_EQ(range.status, ErrorCode::kOk);
      wanted.ExpectRight();
    }
  };
  std::unique_ptr<Asked> Ask(std::size_t count) {
    auto asked = std::make_unique<Asked>(*reader_, contents_, random_, count);
    queue_->Submit(*asked->group);
    return asked;
  }
  void PollUntilEnded(const Asked& asked) {
    while (!asked.group->ended) queue_->Poll(kLong);
  }

  // As an event loop: waits for the descriptor alone, and polls once more after a poll in which
  // groups were called, for they may have submitted others or given them up.
  template <class Done>
  void RunLoopUntil(const Done& done) {
    const auto descriptor = queue_->EventDescriptor();
    ASSERT_TRUE(descriptor) << descriptor.error().message;
    for (;;) {
      std::size_t told_before = 0;
      do {
        told_before = told_;
        queue_->Poll(std::chrono::milliseconds(0));
      } while (told_ != told_before);
      if (done()) return;
      pollfd ready{descriptor.value(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1) << "nobody said so";
    }
  }

  // A group of the loop's, which does something else when it is called.
  class LoopGroup final : public NotedGroup {
   public:
    LoopGroup(RangeQueueConformance& test, std::span<RangeRead> ranges)
        : NotedGroup(ranges), test_(test) {}
    void Arrived(RangeRead& range) override {
      NotedGroup::Arrived(range);
      ++test_.told_;
      if (on_arrived) on_arrived();
    }
    void Ended(Result<void> result) override {
      EXPECT_FALSE(ended) << "twice";
      NotedGroup::Ended(std::move(result));
      ++test_.told_;
      if (on_ended) on_ended();
    }

    std::function<void()> on_arrived, on_ended;

   private:
    RangeQueueConformance& test_;
  };

  // A group that loses its memory at its end.
  class LostGroup final : public RangeGroup {
   public:
    // `is_mapped`: its memory is its own and goes away; else it is the reader's, as that of
    // batches.
    LostGroup(const RangeReader& reader, const Contents& contents, std::mt19937& random,
              bool is_mapped)
        : wanted_(reader, contents) {
      wanted_.AddRandomly(random() % 6, random);
      ranges_ = wanted_.Prepare();
      if (!is_mapped) return;
      const std::size_t size = wanted_.memory().size();
      void* const place =
          ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT_NE(place, MAP_FAILED);
      mapped_ = {static_cast<std::byte*>(place), size};
      for (RangeRead& range : ranges_)
        range.destination = mapped_.subspan(
            static_cast<std::size_t>(range.destination.data() - wanted_.memory().data()),
            range.destination.size());
    }
    ~LostGroup() {
      if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    }

    std::span<RangeRead> ranges() noexcept override { return ranges_; }
    void Arrived(RangeRead& range) override {
      EXPECT_FALSE(ended);
      EXPECT_EQ(range.status, ErrorCode::kOk);
    }
    void Ended(Result<void> result) override {
      EXPECT_FALSE(ended) << "twice";
      EXPECT_TRUE(result || is_given_up);
      ended = true;
      if (result && mapped_.empty()) wanted_.ExpectRight();
      Lose();
    }
    void Lose() {
      if (mapped_.empty())
        Fill(wanted_.memory(), RangesWanted::kGuard);
      else
        EXPECT_EQ(::mprotect(mapped_.data(), mapped_.size(), PROT_NONE), 0);
    }
    void ExpectUntouched() const {
      if (mapped_.empty()) wanted_.ExpectUntouched();
    }

    bool is_given_up = false;
    bool ended = false;

   private:
    RangesWanted wanted_;
    std::span<RangeRead> ranges_;
    std::span<std::byte> mapped_;
  };

  std::unique_ptr<RangeQueue> queue_;
  std::size_t told_ = 0;  // Calls of groups of the loop.
};

TEST_P(RangeQueueConformance, ManyGroupsAreOnTheirWayAtATime) {
  const std::uint64_t count = GetParam().range_count / 50;
  std::vector<std::unique_ptr<Asked>> all;
  for (std::size_t i = 0; i < 20; ++i) all.push_back(Ask(1 + i * count / 10));
  for (const auto& asked : all) PollUntilEnded(*asked);
  for (const auto& asked : all) asked->ExpectRight();
}

TEST_P(RangeQueueConformance, NobodyIsCalledButByPoll) {
  const auto asked = Ask(20);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(asked->group->arrived_count, 0U);
  EXPECT_FALSE(asked->group->ended);
  PollUntilEnded(*asked);
  asked->ExpectRight();
}

TEST_P(RangeQueueConformance, AGroupOfNothingEnds) {
  NotedGroup group({});
  queue_->Submit(group);
  while (!group.ended) queue_->Poll(kLong);
  EXPECT_TRUE(*group.ended);
  EXPECT_EQ(group.arrived_count, 0U);
}

TEST_P(RangeQueueConformance, AGroupOfNothingMayBeGivenUpOrLeft) {
  NotedGroup group({});
  queue_->Submit(group);
  queue_->GiveUp(group);
  while (!group.ended) queue_->Poll(kLong);
  NotedGroup left({});
  queue_->Submit(left);
  queue_.reset();
  EXPECT_FALSE(left.ended);
}

TEST_P(RangeQueueConformance, AGroupOfNothingIsToldOfThroughTheDescriptor) {
  for (const bool is_given_up : {false, true}) {
    LoopGroup first(*this, {}), second(*this, {});
    queue_->Submit(first);
    ASSERT_NO_FATAL_FAILURE(RunLoopUntil([&] { return first.ended.has_value(); }));
    EXPECT_TRUE(*first.ended);
    // Beside a group that takes longer.
    const auto others = Ask(GetParam().range_count / 50);
    queue_->Submit(second);
    if (is_given_up) queue_->GiveUp(second);
    ASSERT_NO_FATAL_FAILURE(RunLoopUntil([&] { return second.ended && others->group->ended; }));
    EXPECT_TRUE(is_given_up || *second.ended);
    EXPECT_EQ(first.arrived_count + second.arrived_count, 0U);
    others->ExpectRight();
  }
}

// A thread that waits for one group polls for all: none of them is called twice, or never.
TEST_P(RangeQueueConformance, AGroupThatAnothersPollHasToldOfIsToldOfOnce) {
  for (std::size_t waited_for = 0; waited_for < 5; ++waited_for) {
    std::vector<std::unique_ptr<Asked>> asked;
    std::vector<std::unique_ptr<LoopGroup>> groups;
    for (std::size_t i = 0; i < 5; ++i) {
      asked.push_back(std::make_unique<Asked>(*reader_, contents_, random_, i % 2 == 0 ? 0 : 5));
      groups.push_back(std::make_unique<LoopGroup>(*this, asked.back()->group->ranges()));
      queue_->Submit(*groups.back());
    }
    while (!groups[waited_for]->ended) queue_->Poll(kLong);
    ASSERT_NO_FATAL_FAILURE(RunLoopUntil([&] {
      return std::ranges::all_of(groups,
                                 [](const auto& group) { return group->ended.has_value(); });
    }));
    for (const auto& group : groups) {
      EXPECT_TRUE(*group->ended);
      EXPECT_EQ(group->arrived_count, group->ranges().size());
    }
    for (const auto& one : asked) one->wanted.ExpectRight();
  }
}

// Groups that are submitted and given up by others in Poll() are called as well, in a loop that
// polls once more after that.
TEST_P(RangeQueueConformance, GroupsThatOthersSubmitOrGiveUpAreToldOfThroughTheDescriptor) {
  for (const std::size_t count : {0U, 5U}) {
    std::vector<std::unique_ptr<Asked>> asked;
    std::vector<std::unique_ptr<LoopGroup>> groups;
    for (int i = 0; i < 4; ++i) {
      asked.push_back(std::make_unique<Asked>(*reader_, contents_, random_, i == 0 ? 5 : count));
      groups.push_back(std::make_unique<LoopGroup>(*this, asked.back()->group->ranges()));
    }
    const auto& given_up = groups[3];
    bool is_submitted = false;
    groups[0]->on_arrived = [&] {
      if (!std::exchange(is_submitted, true)) queue_->Submit(*groups[1]);
    };
    groups[0]->on_ended = [&] {
      queue_->Submit(*groups[2]);
      if (!given_up->ended) queue_->GiveUp(*given_up);
    };
    queue_->Submit(*groups[0]);
    queue_->Submit(*given_up);
    ASSERT_NO_FATAL_FAILURE(RunLoopUntil([&] {
      return std::ranges::all_of(groups,
                                 [](const auto& group) { return group->ended.has_value(); });
    }));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(*groups[static_cast<std::size_t>(i)]->ended);
      asked[static_cast<std::size_t>(i)]->wanted.ExpectRight();
    }
  }
}

// As one does that wants no more of what failed.
TEST_P(RangeQueueConformance, AGroupThatIsToldMayGiveUpAnother) {
  class Other final : public NotedGroup {
   public:
    Other(std::span<RangeRead> ranges, RangeQueue& queue, NotedGroup& other)
        : NotedGroup(ranges), queue_(queue), other_(other) {}
    void Arrived(RangeRead& range) override {
      NotedGroup::Arrived(range);
      if (!other_.ended) queue_.GiveUp(other_);
    }

   private:
    RangeQueue& queue_;
    NotedGroup& other_;
  };
  for (int i = 0; i < 20; ++i) {
    Asked first(*reader_, contents_, random_, 3);
    Asked second(*reader_, contents_, random_, 3);
    Other giver(first.group->ranges(), *queue_, *second.group);
    queue_->Submit(giver);
    queue_->Submit(*second.group);
    while (!giver.ended || !second.group->ended) queue_->Poll(kLong);
    EXPECT_TRUE(*giver.ended);
  }
}

TEST_P(RangeQueueConformance, WithoutGroupsPollReturnsAtOnce) {
  queue_->Poll(std::chrono::hours(1));
}

TEST_P(RangeQueueConformance, AGroupThatHasEndedMaySubmitTheNext) {
  class Chain final : public NotedGroup {
   public:
    Chain(std::span<RangeRead> ranges, RangeQueue& queue, NotedGroup& next)
        : NotedGroup(ranges), queue_(queue), next_(next) {}
    void Ended(Result<void> result) override {
      NotedGroup::Ended(std::move(result));
      queue_.Submit(next_);
    }

   private:
    RangeQueue& queue_;
    NotedGroup& next_;
  };
  Asked second(*reader_, contents_, random_, 30);
  Asked first(*reader_, contents_, random_, 30);
  Chain chain(first.group->ranges(), *queue_, *second.group);
  queue_->Submit(chain);
  PollUntilEnded(second);
  EXPECT_TRUE(chain.ended);
  first.wanted.ExpectRight();
  second.ExpectRight();
}

TEST_P(RangeQueueConformance, AGroupThatIsGivenUpEndsAndIsNotWrittenToAnyMore) {
  std::vector<std::unique_ptr<Asked>> all;
  for (std::size_t i = 0; i < 12; ++i) all.push_back(Ask(GetParam().range_count / 50));
  for (std::size_t i = 0; i < all.size(); i += 2) queue_->GiveUp(*all[i]->group);
  for (const auto& asked : all) PollUntilEnded(*asked);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const NotedGroup& group = *all[i]->group;
    if (i % 2 == 1) {
      all[i]->ExpectRight();
    } else if (*group.ended) {  // All of it had arrived.
      all[i]->ExpectRight();
    } else {
      EXPECT_EQ(group.ended->error().code, ErrorCode::kDeadlineExceeded);
      Fill(all[i]->wanted.memory(), RangesWanted::kGuard);
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (std::size_t i = 0; i < all.size(); i += 2)
    if (!*all[i]->group->ended) all[i]->wanted.ExpectUntouched();
}

// Groups that are begun, given up and left at random moments. The memory of every other one goes
// away at its end, so that a write there kills the program; the others' is looked at later, for the
// kernel and daemons do not die of it.
TEST_P(RangeQueueConformance, NothingIsWrittenWhereAGroupHasEnded) {
  for (int round = 0; round < 8; ++round) {
    queue_ = reader_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
    std::vector<std::unique_ptr<LostGroup>> groups;
    for (std::size_t i = 0; i < 16; ++i) {
      groups.push_back(std::make_unique<LostGroup>(*reader_, contents_, random_, i % 2 == 0));
      queue_->Submit(*groups.back());
      for (const auto& group : groups)
        if (!group->ended && !group->is_given_up && random_() % 8 == 0) {
          group->is_given_up = true;
          queue_->GiveUp(*group);
        }
      if (random_() % 2 == 0) queue_->Poll(std::chrono::milliseconds(random_() % 2));
    }
    for (auto polls = random_() % 4; polls > 0; --polls)
      queue_->Poll(std::chrono::milliseconds(random_() % 3));
    queue_.reset();
    for (const auto& group : groups) group->Lose();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (const auto& group : groups) group->ExpectUntouched();
  }
}

TEST_P(RangeQueueConformance, AQueueThatIsLeftWithGroupsTellsAndWritesNothing) {
  std::vector<std::unique_ptr<Asked>> all;
  for (std::size_t i = 0; i < 12; ++i) all.push_back(Ask(GetParam().range_count / 50));
  queue_.reset();
  for (const auto& asked : all) {
    EXPECT_EQ(asked->group->arrived_count, 0U);
    EXPECT_FALSE(asked->group->ended);
    Fill(asked->wanted.memory(), RangesWanted::kGuard);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (const auto& asked : all) asked->wanted.ExpectUntouched();
}

TEST_P(RangeQueueConformance, ItsDescriptorTellsWhenToPoll) {
  const auto descriptor = queue_->EventDescriptor();
  ASSERT_TRUE(descriptor) << descriptor.error().message;
  std::vector<std::unique_ptr<Asked>> all;
  for (std::size_t i = 0; i < 10; ++i) all.push_back(Ask(GetParam().range_count / 50));
  const auto no_wait = std::chrono::milliseconds(0);
  queue_->Poll(no_wait);
  const auto has_ended = [](const auto& asked) { return asked->group->ended.has_value(); };
  while (!std::ranges::all_of(all, has_ended)) {
    pollfd ready{descriptor.value(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1) << "nobody said so";
    queue_->Poll(no_wait);
  }
  for (const auto& asked : all) asked->ExpectRight();
}

// Else an event loop that has nothing to read would be woken for ever. Once it may be: the kernel
// may tell of the last completion after that was taken.
TEST_P(RangeQueueConformance, ItsDescriptorIsQuietWithoutGroups) {
  const auto descriptor = queue_->EventDescriptor();
  ASSERT_TRUE(descriptor) << descriptor.error().message;
  for (int i = 0; i < 5; ++i) {
    const auto asked = Ask(GetParam().range_count / 50);
    PollUntilEnded(*asked);
    pollfd ready{descriptor.value(), POLLIN, 0};
    for (int woken_count = 0; ::poll(&ready, 1, 150) != 0; ++woken_count) {
      ASSERT_LT(woken_count, 1) << "it does not rest";
      queue_->Poll(std::chrono::milliseconds(0));
    }
  }
}

TEST_P(RangeQueueConformance, AChildLeavesItAlone) {
  if (!GetParam().may_be_forked) GTEST_SKIP() << "no child may use this form";
  const auto asked = Ask(GetParam().range_count / 50);
  EXPECT_EQ(RunInChild([&] {
              queue_.reset();
              if (!kChildMayHaveThreads) return 0;
              return ReadsRight(5) ? 0 : 1;
            }),
            0);
  PollUntilEnded(*asked);
  asked->ExpectRight();
}

}  // namespace ffrecord::test
