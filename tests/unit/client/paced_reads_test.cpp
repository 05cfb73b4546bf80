// Goal: a group that is read ahead is asked for in gaps between phases, one that the program waits
// for at once, and one that is read ahead for a hungry loader too.
// Method: a daemon that is a script counts what it is asked for, on a virtual clock.

#include <ffrecord/runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "libffrecord/pace/gate.h"
#include "remote_queue_fixture.h"

namespace ffrecord::net {
namespace {

using namespace std::chrono_literals;

class PacedReadsTest : public test::RemoteQueueFixture {
 protected:
  void SetUp() override {
    Start([](test::FakeDaemon::Request& request, int) {
      test::BatchScript::Answer(request);
      return true;
    });
    ASSERT_TRUE(StartPacing({.prefetch = {0, 60'000ms}, .stale_after = 3'600'000ms}));
    BeginPhase(PhaseKind::kCollective, 1);
  }
  ~PacedReadsTest() override { StopPacing(); }

  std::thread ReadAhead() {
    return std::thread([this] {
      const pace::TrafficScope scope(TrafficClass::kPrefetch);
      Submit();
      PollUntilAllEnded();
    });
  }
};

TEST_F(PacedReadsTest, WhatIsReadAheadIsAskedForAtTheEndOfThePhase) {
  std::thread reading = ReadAhead();
  clock_.RunFor(1s);
  EXPECT_EQ(script_->batch_count, 0);

  EndPhase(PhaseKind::kCollective);
  reading.join();

  EXPECT_TRUE(groups_.front()->is_good());
}

TEST_F(PacedReadsTest, WhatTheProgramWaitsForIsAskedForAtOnce) {
  Submit();
  PollUntilAllEnded();
  EXPECT_TRUE(groups_.front()->is_good());
}

TEST_F(PacedReadsTest, WhatIsReadAheadForAHungryLoaderIsAskedForAtOnce) {
  ReportLoaderQueue(true);
  ReadAhead().join();
  EXPECT_TRUE(groups_.front()->is_good());
  ReportLoaderQueue(false);
}

// A daemon that sends what it is granted, and learns of a phase as soon as it is asked.
class PacedGrantsTest : public test::RemoteQueueFixture {
 protected:
  static constexpr std::uint32_t kGroupBytes = 1'000'000;

  void SetUp() override {
    script_.emplace([this](test::FakeDaemon::Request& request, int) {
      first_grant_ = BatchRead::Decode(request.body).value().initial_grant_bytes;
      BeginPhase(PhaseKind::kCollective, 1);
      SendUpTo(request, first_grant_);
      return true;
    });
    daemon_.emplace([this](test::FakeDaemon::Request& request) {
      if (request.header.type != FrameType::kGrant) return (*script_)(request);
      ++grant_count_;
      const auto grant = Grant::Decode(request.body).value();
      request.header.request_id = grant.request_id;
      SendUpTo(request, grant.total_bytes);
      return true;
    });
    files_.emplace(Session::Get(daemon_->address()), test::OneFile(kGroupBytes), "location",
                   SessionOptions{100s});
    queue_ = files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
    ASSERT_TRUE(StartPacing({.prefetch = {0, 60'000ms}, .stale_after = 3'600'000ms}));
  }
  ~PacedGrantsTest() override { StopPacing(); }

  void SendUpTo(test::FakeDaemon::Request& request, std::uint64_t total_bytes) {
    // A read that is begun is sent as a whole.
    const std::uint64_t read_bytes =
        (total_bytes + read_size_bytes_ - 1) / read_size_bytes_ * read_size_bytes_;
    const auto end = static_cast<std::uint32_t>(std::min<std::uint64_t>(read_bytes, kGroupBytes));
    if (end <= sent_bytes_) return;
    const std::vector<std::byte> payload(end - sent_bytes_, std::byte{0x11});
    test::FakeDaemon::Send(request, FrameType::kBatchData,
                           BatchData{{{0, sent_bytes_, end - sent_bytes_}}}.Encode(), payload);
    sent_bytes_ = end;
    if (sent_bytes_ < kGroupBytes) return;
    BatchDone done;
    done.ok_count = 1;
    done.size_bytes = kGroupBytes;
    test::FakeDaemon::Send(request, ReplyTo(FrameType::kBatchRead), done.Encode());
  }

  std::atomic<std::uint32_t> first_grant_ = 0, grant_count_ = 0;
  std::uint32_t sent_bytes_ = 0;  // Of the daemon's thread.
  std::uint64_t read_size_bytes_ = 1;
};

TEST_F(PacedGrantsTest, WhatIsReadAheadIsGrantedNoMoreInAPhase) {
  std::vector<std::byte> memory(kGroupBytes);
  RangeRead range{0, 0, memory};
  test::NotedGroup group(std::span(&range, 1));
  std::thread reading([&] {
    const pace::TrafficScope scope(TrafficClass::kPrefetch);
    queue_->Submit(group);
    PollUntil([&] { return group.ended.has_value(); });
  });
  clock_.RunFor(1s);
  EXPECT_EQ(first_grant_, 256U << 10);
  EXPECT_EQ(grant_count_, 0U);

  EndPhase(PhaseKind::kCollective);
  reading.join();

  EXPECT_GE(grant_count_, 3U);
  EXPECT_EQ(range.status, ErrorCode::kOk);
  EXPECT_EQ(memory, std::vector<std::byte>(kGroupBytes, std::byte{0x11}));
  const auto counters = GetPacingCounters();
  EXPECT_EQ(counters.classes[static_cast<std::size_t>(TrafficClass::kPrefetch)].size_bytes,
            kGroupBytes);
}

TEST_F(PacedGrantsTest, AReadThatIsGivenUpIsNoLongerHeld) {
  std::vector<std::byte> memory(kGroupBytes);
  RangeRead range{0, 0, memory};
  test::NotedGroup group(std::span(&range, 1));
  const auto held = [] {
    const auto counters = GetPacingCounters();
    return counters.classes[static_cast<std::size_t>(TrafficClass::kPrefetch)].held_now;
  };
  std::atomic<bool> was_held = false;
  std::thread reading([&] {
    const pace::TrafficScope scope(TrafficClass::kPrefetch);
    queue_->Submit(group);
    PollUntil([&] { return held() == 1; });
    was_held = true;
    queue_->GiveUp(group);
    PollUntil([&] { return group.ended.has_value(); });
  });
  reading.join();

  EXPECT_TRUE(was_held);
  EXPECT_EQ(held(), 0U);  // The queue is there, and nobody polls it.
}

TEST_F(PacedGrantsTest, ADaemonThatHasSentMoreThanItsGrantIsGrantedMoreThanThat) {
  read_size_bytes_ = 700'000;
  std::vector<std::byte> memory(kGroupBytes);
  RangeRead range{0, 0, memory};
  test::NotedGroup group(std::span(&range, 1));
  std::thread reading([&] {
    const pace::TrafficScope scope(TrafficClass::kPrefetch);
    queue_->Submit(group);
    PollUntil([&] { return group.ended.has_value(); });
  });
  clock_.RunFor(1s);
  EndPhase(PhaseKind::kCollective);
  reading.join();

  EXPECT_EQ(range.status, ErrorCode::kOk);
  EXPECT_EQ(memory, std::vector<std::byte>(kGroupBytes, std::byte{0x11}));
}

}  // namespace
}  // namespace ffrecord::net
