// Goal: for a caller that has other daemons to turn to, a queue ends what is under way as soon as a
// connection is lost or a daemon is busy, and says what it knows of the daemon.
// Method: a daemon that is a script answers batches as a test wants.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "libffrecord/net/rpc/remote_queue.h"
#include "remote_queue_fixture.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::FakeDaemon;
using Request = test::FakeDaemon::Request;
using Script = test::BatchScript;
using namespace std::chrono_literals;

class NoRetriesTest : public test::RemoteQueueFixture {
 protected:
  // Nothing waits for the timeout.
  void Start(Script::OnBatch on_batch) {
    RemoteQueueFixture::Start(std::move(on_batch), 1h);
    auto queue = std::make_unique<net::RemoteQueue>(*files_, net::RemoteQueue::Connects::kApart,
                                                    net::RemoteQueue::Retries::kNever);
    remote_ = queue.get();
    queue_ = std::move(queue);
  }
  static ErrorCode EndOf(const Group& group) {
    return *group.noted->ended ? ErrorCode::kOk : group.noted->ended->error().code;
  }
  net::RemoteQueue* remote_ = nullptr;
};

TEST_F(NoRetriesTest, ALostConnectionEndsItsGroupsAtOnceWithoutTellingOfRanges) {
  Start([&](Request& request, int number) {
    if (number == 0) Script::Answer(request);
    return number == 0;
  });
  Submit();
  PollUntilAllEnded();
  EXPECT_TRUE(groups_[0]->is_good());
  Group& lost = Submit();
  PollUntilAllEnded();
  EXPECT_EQ(EndOf(lost), ErrorCode::kUnavailable);
  EXPECT_EQ(lost.noted->arrived_count, 0U);
  EXPECT_EQ(script_->batch_count, 2);
}

TEST_F(NoRetriesTest, ADaemonThatIsGoneEndsAGroupLongBeforeTheTimeout) {
  Start([](Request&, int) { return true; });
  daemon_.reset();
  Group& group = Submit();
  PollUntilAllEnded();
  EXPECT_EQ(EndOf(group), ErrorCode::kUnavailable);
}

TEST_F(NoRetriesTest, ABusyDaemonIsNotWaitedForAndSaysForHowLong) {
  Start([&](Request& request, int) {
    FakeDaemon::Send(request, FrameType::kBusy, net::Busy{3000}.Encode());
    return true;
  });
  const auto begin = Clock::now();
  Group& group = Submit();
  PollUntilAllEnded();
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(EndOf(group), ErrorCode::kUnavailable);
  EXPECT_GE(remote_->busy_until(), begin + 3s);
}

TEST_F(NoRetriesTest, AnEntryThatTheDaemonIsTooBusyForEndsAlone) {
  Start([&](Request& request, int) {
    const std::vector<std::byte> payload(kSizeBytes, std::byte{0x11});
    FakeDaemon::Send(request, FrameType::kBatchData, net::BatchData{{{1, 0, kSizeBytes}}}.Encode(),
                     payload);
    net::BatchDone done;
    done.ok_count = done.failed_count = 1;
    done.size_bytes = kSizeBytes;
    done.statuses = {net::EntryStatus::kBusy, net::EntryStatus::kOk};
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kBatchRead), done.Encode());
    return true;
  });
  std::vector<std::byte> memory(2 * kSizeBytes);
  std::array<RangeRead, 2> ranges{RangeRead{0, 0, std::span(memory).first(kSizeBytes)},
                                  RangeRead{0, 5000, std::span(memory).last(kSizeBytes)}};
  test::NotedGroup group(ranges);
  queue_->Submit(group);
  PollUntil([&] { return group.ended.has_value(); });
  EXPECT_TRUE(*group.ended);
  EXPECT_EQ(group.arrived_count, 2U);
  EXPECT_EQ(ranges[0].status, ErrorCode::kUnavailable);
  EXPECT_EQ(ranges[1].status, ErrorCode::kOk);
  EXPECT_EQ(script_->batch_count, 1);
}

TEST_F(NoRetriesTest, ADroppedConnectionEndsWhatIsUnderWayAndTheNextGroupHasANewOne) {
  Start([&](Request& request, int number) {
    if (number > 1) Script::Answer(request);
    return true;
  });
  Group& first = Submit();
  Group& second = Submit();
  PollUntil([&] { return script_->batch_count == 2; });
  remote_->DropConnection();
  PollUntilAllEnded();
  EXPECT_EQ(EndOf(first), ErrorCode::kUnavailable);
  EXPECT_EQ(EndOf(second), ErrorCode::kUnavailable);
  Group& third = Submit();
  PollUntilAllEnded();
  EXPECT_TRUE(third.is_good());
  EXPECT_EQ(daemon_->connection_count(), 2);
}

TEST_F(NoRetriesTest, TheTimeOfTheLastBytesIsKnown) {
  Start([&](Request& request, int number) {
    if (number == 0) Script::Answer(request);
    return true;
  });
  Submit();
  PollUntilAllEnded();
  EXPECT_LE(remote_->heard_at(), Clock::now());
  Submit();
  PollUntil([&] { return script_->batch_count == 2; });
  const auto last = remote_->heard_at();
  queue_->Poll(50ms);
  EXPECT_EQ(remote_->heard_at(), last);
}

}  // namespace
}  // namespace ffrecord::client
