// Goal: many batches are under way on one connection, each with answers, failures and an end of its
// own; what is given up is not written to, and what a connection leaves is asked for elsewhere.
// Method: a daemon that is a script answers batches in the order, and as often, as a test wants.

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/net/rpc/remote_queue.h"
#include "remote_queue_fixture.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::Eventually;
using test::FakeDaemon;
using Held = test::HeldBatch;
using Request = test::FakeDaemon::Request;
using Script = test::BatchScript;
using RemoteQueueTest = test::RemoteQueueFixture;
using namespace std::chrono_literals;

TEST_F(RemoteQueueTest, BatchesOfOneConnectionAreAnsweredInAnyOrder) {
  std::vector<Held> held;
  Start([&](Request& request, int number) {
    held.emplace_back(request);
    if (number == 4)
      for (auto one = held.rbegin(); one != held.rend(); ++one) one->Answer();
    return true;
  });
  for (int i = 0; i < 4; ++i) Submit();
  PollUntil([&] { return script_->batch_count == 4; });
  for (const auto& group : groups_) EXPECT_FALSE(group->noted->ended);
  Submit();

  PollUntil([&] { return groups_[4]->noted->ended.has_value(); });
  EXPECT_FALSE(groups_[0]->noted->ended);  // Poll() returns after the first that has ended.
  PollUntilAllEnded();

  for (const auto& group : groups_) EXPECT_TRUE(group->is_good());
  EXPECT_EQ(daemon_->connection_count(), 1);
}

TEST_F(RemoteQueueTest, NoThreadIsThereForABatchUnderWay) {
  std::vector<Held> held;
  Start([&](Request& request, int number) {
    held.emplace_back(request);
    if (number == 7)
      for (Held& one : held) one.Answer();
    return true;
  });
  const auto thread_count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = thread_count();
  for (int i = 0; i < 7; ++i) Submit();
  PollUntil([&] { return script_->batch_count == 7; });
  EXPECT_EQ(thread_count(), before);
  Submit();
  PollUntilAllEnded();
}

TEST_F(RemoteQueueTest, NoMoreBatchesAreUnderWayThanTheDaemonTakes) {
  std::vector<Held> held;
  Start([&](Request& request, int number) {
    if (number < 8)
      held.emplace_back(request);
    else
      Script::Answer(request);
    return true;
  });
  script_->on_cancel = [&] {
    for (Held& one : held) one.Answer();
  };
  for (int i = 0; i < 12; ++i) Submit();
  PollUntil([&] { return script_->batch_count == 8; });
  queue_->Poll(50ms);
  EXPECT_EQ(script_->batch_count, 8);
  queue_->GiveUp(*groups_[0]->noted);
  PollUntilAllEnded();
  for (std::size_t i = 1; i < groups_.size(); ++i) EXPECT_TRUE(groups_[i]->is_good());
  EXPECT_EQ(daemon_->connection_count(), 1);
}

TEST_F(RemoteQueueTest, WhatALostConnectionLeavesIsAskedForOverAnother) {
  Start([&](Request& request, int number) {
    if (number == 1) Script::Answer(request);  // Its answer arrives before the end.
    if (number == 2) {
      Script::Data(request);  // Of this one all arrives, but not its end.
      (void)request.endpoint.Poll();
      return false;
    }
    if (number > 2) Script::Answer(request);
    return true;
  });
  for (int i = 0; i < 3; ++i) Submit();

  PollUntilAllEnded();

  for (const auto& group : groups_) EXPECT_TRUE(group->is_good());
  EXPECT_EQ(daemon_->connection_count(), 2);
  EXPECT_EQ(script_->batch_count, 4);
}

TEST_F(RemoteQueueTest, ABatchThatIsRefusedHoldsUpNoOther) {
  Start([&](Request& request, int number) {
    if (number == 0)
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{150}.Encode());
    else if (number == 1)
      FakeDaemon::SendError(request, ErrorCode::kDenied);
    else
      Script::Answer(request);
    return true;
  });
  Group& busy = Submit();
  Group& denied = Submit();
  Group& good = Submit();

  PollUntil([&] { return good.noted->ended && denied.noted->ended; });
  EXPECT_FALSE(busy.noted->ended);
  PollUntilAllEnded();

  EXPECT_TRUE(busy.is_good());
  EXPECT_TRUE(good.is_good());
  EXPECT_TRUE(*denied.noted->ended);
  EXPECT_EQ(denied.range.status, ErrorCode::kDenied);
  EXPECT_NE(files_->Trouble(0, ErrorCode::kDenied), "");
  EXPECT_EQ(daemon_->connection_count(), 1);
}

// The answer comes after the group has ended. Method: with and without a daemon that takes CANCEL.
TEST_F(RemoteQueueTest, TheAnswerToWhatWasGivenUpIsReceivedIntoNothing) {
  for (const bool takes_cancel : {true, false}) {
    std::optional<Held> held;
    Start(
        [&](Request& request, int number) {
          if (number == 0) {
            held.emplace(request);
            return true;
          }
          if (number == 2) held->Answer();
          Script::Answer(request);
          return true;
        },
        10s, takes_cancel ? std::uint64_t{net::kCapabilityCancel} : 0);
    Group& given_up = Submit();
    Group& other = Submit();
    PollUntil([&] { return other.noted->ended.has_value(); });
    queue_->GiveUp(*given_up.noted);
    PollUntilAllEnded();
    Group& next = Submit();
    PollUntilAllEnded();

    EXPECT_EQ(given_up.noted->ended->error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(given_up.noted->arrived_count, 0U);
    EXPECT_TRUE(std::ranges::all_of(given_up.memory,
                                    [](std::byte byte) { return byte == std::byte{0xEE}; }));
    EXPECT_TRUE(other.is_good());
    EXPECT_TRUE(next.is_good());
    EXPECT_EQ(daemon_->connection_count(), 1);
    EXPECT_EQ(script_->cancel_count, takes_cancel ? 1 : 0);
    groups_.clear();
    TearDown();
  }
}

// The daemon is silent on its first connection.
TEST_F(RemoteQueueTest, ABatchThatIsLateEndsAloneAndTheOthersAreAskedForElsewhere) {
  Start(
      [&](Request& request, int) {
        if (request.connection > 0) Script::Answer(request);
        return true;
      },
      3s);
  Group& late = Submit();
  const auto end = Clock::now() + 1'500ms;
  while (Clock::now() < end) queue_->Poll(10ms);
  Group& other = Submit();

  PollUntilAllEnded();

  EXPECT_TRUE(*late.noted->ended);
  EXPECT_EQ(late.range.status, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(other.is_good());
  EXPECT_EQ(daemon_->connection_count(), 2);
}

TEST_F(RemoteQueueTest, TheTimeInWhichNobodyPollsIsNoneOfABatchs) {
  Start(
      [&](Request& request, int number) {
        if (number != 1) Script::Answer(request);
        return number != 1;
      },
      400ms);
  Submit();
  PollUntilAllEnded();
  Submit();
  Submit();
  clock_.RunFor(1500ms);

  PollUntilAllEnded();

  for (const auto& group : groups_) EXPECT_TRUE(group->is_good());
}

TEST_F(RemoteQueueTest, BatchesThatNobodyWantsMakeRoomForThoseThatAreWanted) {
  Start([&](Request& request, int) {
    if (request.connection > 0) Script::Answer(request);
    return true;
  });
  for (int i = 0; i < 8; ++i) Submit();
  PollUntil([&] { return script_->batch_count == 8; });
  for (const auto& group : groups_) queue_->GiveUp(*group->noted);
  PollUntilAllEnded();

  EXPECT_TRUE(Eventually([&] { return script_->cancel_count == 8; }));
  Group& wanted = Submit();
  PollUntilAllEnded();
  EXPECT_TRUE(wanted.is_good());
}

// Until it has ended, the thread that connects has the connection to itself. Each serves one batch.
TEST_F(RemoteQueueTest, WhileItConnectsTheOwnerMayDoAnything) {
  Start([&](Request& request, int) {
    Script::Answer(request);
    (void)request.endpoint.Poll();
    return false;
  });
  for (int i = 0; i < 60; ++i) {
    Group& given_up = Submit();
    Group& kept = Submit();
    for (int k = 0; k < i % 20; ++k) queue_->Poll(0ms);
    // Of a queue only until it has ended: a quick daemon has answered by now.
    if (!given_up.noted->ended) queue_->GiveUp(*given_up.noted);
    if (i % 3 == 0) {
      queue_ = files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
      continue;
    }
    PollUntil([&] { return kept.noted->ended && given_up.noted->ended; });
    EXPECT_TRUE(kept.is_good()) << i;
  }
}

// What it has made is the owner's only once it is joined, in Poll(): ThreadSanitizer sees an owner
// that looks before. Whether the thread has ended is told by the kernel, which orders nothing.
TEST_F(RemoteQueueTest, AConnectionIsNotTouchedBeforeItsThreadIsJoined) {
  Start([&](Request& request, int) {
    Script::Answer(request);
    return true;
  });
  const auto thread_count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = thread_count();
  Submit();
  ASSERT_TRUE(Eventually([&] { return thread_count() == before; }));
  Group& given_up = Submit();
  queue_->GiveUp(*given_up.noted);
  PollUntilAllEnded();
  EXPECT_TRUE(groups_[0]->is_good());
  EXPECT_EQ(daemon_->connection_count(), 1);
}

// Its silence counts from when the owner is back: only then could it have been heard.
TEST_F(RemoteQueueTest, AnOwnerThatWasAwayDoesNotBlameTheDaemon) {
  std::vector<Held> held;
  Start([&](Request& request, int) {
    held.emplace_back(request);
    return true;
  });
  Submit();
  PollUntil([&] { return script_->batch_count == 1; });
  const auto& queue = static_cast<const net::RemoteQueue&>(*queue_);
  const auto before = queue.heard_at();
  clock_.RunFor(300ms);
  queue_->Poll(0ms);
  EXPECT_GE(queue.heard_at() - before, 300ms);
}

// Over sixteen connections calls would wait.
TEST_F(RemoteQueueTest, AQueueWithoutGroupsKeepsNoConnection) {
  Start([&](Request& request, int) {
    Script::Answer(request);
    return true;
  });
  std::vector<std::unique_ptr<RangeQueue>> queues;
  for (int i = 0; i < 20; ++i) {
    queues.push_back(files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value());
    Group group;
    queues.back()->Submit(*group.noted);
    while (!group.noted->ended) queues.back()->Poll(20ms);
    EXPECT_TRUE(group.is_good());
  }
  EXPECT_EQ(daemon_->connection_count(), 1);
}

// Ranges of nothing, and past the end, need no answer: their group may end as soon as it begins.
TEST_F(RemoteQueueTest, AGroupThatIsSubmittedByOneThatIsToldIsToldOfEachRange) {
  Start([&](Request& request, int) {
    Script::Answer(request);
    return true;
  });
  std::byte byte{};
  RangeRead ranges[] = {{0, 0, {}}, {0, 1'000'000, {&byte, 1}}};
  test::NotedGroup next(ranges);
  Group first;
  test::NotedGroup group({&first.range, 1}, [&](RangeRead&) { queue_->Submit(next); });
  queue_->Submit(group);
  PollUntil([&] { return next.ended && group.ended; });
  EXPECT_TRUE(*next.ended);
  EXPECT_EQ(next.arrived_count, 2U);
  EXPECT_EQ(ranges[0].status, ErrorCode::kOk);
  EXPECT_EQ(ranges[1].status, ErrorCode::kCorruption);
}

// As those of readers that have read their last batch, of which another daemon was quicker.
TEST_F(RemoteQueueTest, AQueueThatOnlyWaitsForLateAnswersHoldsUpNobody) {
  std::vector<Held> held;
  std::atomic<bool> is_silent = true;
  Start([&](Request& request, int) {
    if (is_silent)
      held.emplace_back(request);
    else
      Script::Answer(request);
    return true;
  });
  const auto session = net::Session::Get(daemon_->address());
  constexpr int kCount = 40;
  std::vector<std::unique_ptr<RangeQueue>> queues;
  for (int i = 0; i < kCount; ++i) {
    queues.push_back(files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value());
    Group group;
    queues.back()->Submit(*group.noted);
    const auto end = Clock::now() + 5s;
    while (script_->batch_count == i && Clock::now() < end) queues.back()->Poll(5ms);
    ASSERT_EQ(script_->batch_count, i + 1) << "no connection was left for it";
    queues.back()->GiveUp(*group.noted);
    while (!group.noted->ended) queues.back()->Poll(5ms);
  }
  EXPECT_TRUE(session->Ping(net::Clock::now() + 5s));
  EXPECT_EQ(daemon_->connection_count(), kCount + 1);

  // Those that could keep their connection go on with it.
  is_silent = false;
  for (auto& queue : queues) {
    Group group;
    queue->Submit(*group.noted);
    while (!group.noted->ended) queue->Poll(5ms);
    EXPECT_TRUE(group.is_good());
  }
  EXPECT_EQ(daemon_->connection_count(), kCount + 1);
  EXPECT_TRUE(session->Ping(net::Clock::now() + 5s));
}

// Its place may have been taken meanwhile.
TEST_F(RemoteQueueTest, AQueueThatAsksAgainWaitsForAPlaceAsOthersDo) {
  std::deque<Held> held;
  Start([&](Request& request, int number) {
    if (number > 16)
      Script::Answer(request);
    else
      held.emplace_back(request);
    if (number == 17) {
      for (Held& one : held)
        if (one.connection > 0 && one.connection < 16) one.Answer();
    }
    return true;
  });
  Group& late = Submit();
  PollUntil([&] { return script_->batch_count == 1; });
  queue_->GiveUp(*late.noted);
  PollUntilAllEnded();
  std::vector<std::unique_ptr<RangeQueue>> queues;
  std::deque<Group> others;
  for (int i = 0; i < 16; ++i) {
    queues.push_back(files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value());
    queues.back()->Submit(*others.emplace_back().noted);
    const auto end = Clock::now() + 5s;
    while (script_->batch_count < i + 2 && Clock::now() < end) queues.back()->Poll(5ms);
  }
  ASSERT_EQ(script_->batch_count, 17);

  Group& again = Submit();
  queue_->Poll(100ms);
  EXPECT_FALSE(again.noted->ended);
  EXPECT_EQ(script_->batch_count, 17) << "it has more than its share";
  queues.pop_back();  // Leaves its place.
  others.pop_back();
  PollUntil([&] { return again.noted->ended.has_value(); });
  EXPECT_TRUE(again.is_good());
  for (std::size_t i = 0; i < queues.size(); ++i) {
    while (!others[i].noted->ended) queues[i]->Poll(5ms);
    EXPECT_TRUE(others[i].is_good());
  }
}

TEST_F(RemoteQueueTest, TheDescriptorTellsOfADaemonThatIsNotThereAndOfDeadlines) {
  std::optional<net::RemoteFiles> nobody;
  {
    const FakeDaemon gone([](Request&) { return true; });
    nobody.emplace(net::Session::Get(gone.address()), test::OneFile(1000), "location",
                   SessionOptions{400ms});
  }
  const auto queue = nobody->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
  const int fd = queue->EventDescriptor().value();
  Group group;
  queue->Submit(*group.noted);
  queue->Poll(0ms);
  while (!group.noted->ended) {
    pollfd ready{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 10'000), 1) << "nobody said so";
    queue->Poll(0ms);
  }
  EXPECT_TRUE(*group.noted->ended);
  EXPECT_EQ(group.range.status, ErrorCode::kUnavailable);
  EXPECT_NE(nobody->Trouble(0, ErrorCode::kUnavailable).find("until the timeout"),
            std::string::npos);
}

// An owner that waits for the descriptor is not away.
TEST_F(RemoteQueueTest, TheDescriptorTellsOfTheDeadlineAtADaemonThatIsSilent) {
  Start([](Request&, int) { return true; }, 500ms);
  const int fd = queue_->EventDescriptor().value();
  const auto begin = Clock::now();
  Group& group = Submit();
  queue_->Poll(0ms);
  while (!group.noted->ended && Clock::now() < begin + 10s) {
    pollfd ready{fd, POLLIN, 0};
    (void)PollFor({&ready, 1}, 2s);
    queue_->Poll(0ms);
  }
  ASSERT_TRUE(group.noted->ended);
  EXPECT_TRUE(*group.noted->ended);
  EXPECT_EQ(group.range.status, ErrorCode::kDeadlineExceeded);
  EXPECT_LT(Clock::now() - begin, 1s);
}

// The group that ends first keeps the queue until the next one is late too.
TEST_F(RemoteQueueTest, ADeadlineThatPassesWhileGroupsAreCalledIsNotForgotten) {
  struct SlowGroup final : RangeGroup {
    explicit SlowGroup(Group& group) : inner(group) {}
    std::span<RangeRead> ranges() noexcept override { return {&inner.range, 1}; }
    void Arrived(RangeRead&) override {}
    void Ended(Result<void>) override {
      SleepFor(300ms);
      has_ended = true;
    }
    Group& inner;
    bool has_ended = false;
  };
  Start(
      [](Request& request, int number) {
        if (number == 2) Script::Answer(request);  // The connection is not silent.
        return true;
      },
      1000ms);
  const int fd = queue_->EventDescriptor().value();
  Group memory;
  SlowGroup slow(memory);
  queue_->Submit(slow);
  PollUntil([&] { return script_->batch_count == 1; });
  queue_->Poll(50ms);
  Group& next = Submit();
  const auto later = Clock::now() + 750ms;
  while (Clock::now() < later) queue_->Poll(20ms);
  Group& answered = Submit();
  PollUntil([&] { return answered.noted->ended.has_value(); });
  PollUntil([&] { return slow.has_ended; });

  ASSERT_FALSE(next.noted->ended);
  pollfd ready{fd, POLLIN, 0};
  EXPECT_EQ(PollFor({&ready, 1}, 5s), 1) << "nobody said so";
  PollUntilAllEnded();
  EXPECT_EQ(next.range.status, ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ffrecord::client
