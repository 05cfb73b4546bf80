// Goal: a group that is read ahead is asked for in gaps between phases, one that the program waits
// for at once, and one that is read ahead for a hungry loader too.
// Method: a daemon that is a script counts what it is asked for, on a virtual clock.

#include <ffrecord/runtime.h>
#include <gtest/gtest.h>

#include <thread>

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

}  // namespace
}  // namespace ffrecord::net
