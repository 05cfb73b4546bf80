// Goal: an upload to a daemon waits in front of the socket while a phase is under way, goes on at
// its end, and ends in time whatever is signalled.
// Method: a daemon that is a script counts the bytes that reach it, on a virtual clock.

#include <ffrecord/runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "client/dataset/upload.h"
#include "fake_daemon.h"
#include "libffrecord/base/checksum.h"
#include "one_daemon.h"
#include "test_file.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::FakeDaemon;
using namespace std::chrono_literals;

// Nothing goes but in gaps.
const PacingOptions kPatient{.prefetch = {0, 60'000ms},
                             .checkpoint = {0, 60'000ms},
                             .repair = {0, 60'000ms},
                             .phase_limit = 3'600'000ms,
                             .stale_after = 3'600'000ms};

class PacedUploadTest : public testing::Test {
 protected:
  ~PacedUploadTest() override { StopPacing(); }

  bool Answer(FakeDaemon::Request& request) {
    if (request.header.type == FrameType::kPutBegin) {
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutBegin),
                       net::PutBeginReply{false}.Encode());
    } else if (request.header.type == FrameType::kPutData) {
      taken_bytes_ += request.received.size();
      largest_ = std::max<std::size_t>(largest_, request.received.size());
    } else if (request.header.type == FrameType::kPutSeal) {
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutSeal), {});
    }
    return true;
  }

  // What a thread of its own has put.
  std::thread Put(std::chrono::milliseconds timeout) {
    return std::thread([this, timeout] {
      Upload upload(test::OneDaemon(daemon_->address(), {timeout}));
      const auto bytes = test::AsBytes(data_);
      put_.emplace(upload.PutBytes("name", {&bytes, 1}));
    });
  }
  void ExpectPut() {
    ASSERT_TRUE(put_);
    ASSERT_TRUE(*put_) << put_->error().message;
    EXPECT_EQ(put_->value().extents.front().xxh3, Xxh3(test::AsBytes(data_)));
    EXPECT_EQ(taken_bytes_, data_.size());
  }
  static PacingCounters::Class Counters() {
    return GetPacingCounters().classes[static_cast<std::size_t>(TrafficClass::kCheckpoint)];
  }

  test::VirtualClock clock_;
  std::atomic<std::size_t> taken_bytes_ = 0, largest_ = 0;
  std::optional<FakeDaemon> daemon_{std::in_place,
                                    [this](auto& request) { return Answer(request); }};
  std::mt19937_64 random_{7};
  const std::string data_ = test::RandomText(5'000'000, random_);
  std::optional<Result<ManifestFile>> put_;
};

TEST_F(PacedUploadTest, AnUploadIsHeldInAPhaseAndGoesOnAtItsEnd) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  std::thread putting = Put(600s);
  clock_.RunFor(10s);
  EXPECT_EQ(taken_bytes_, 0U);

  EndPhase(PhaseKind::kCollective);
  putting.join();

  ExpectPut();
  EXPECT_LE(largest_, kPatient.chunk_size_bytes);
  EXPECT_EQ(Counters().size_bytes, data_.size());
  EXPECT_EQ(Counters().held_chunks, 1U);
}

TEST_F(PacedUploadTest, AnUploadEndsAlthoughThePhaseDoesNot) {
  auto options = kPatient;
  options.checkpoint = {1 << 20, 500ms};
  ASSERT_TRUE(StartPacing(options));
  BeginPhase(PhaseKind::kCollective, 1);
  Put(600s).join();
  ExpectPut();
  EXPECT_GT(Counters().floor_chunks, 0U);
  EXPECT_EQ(Counters().stale_chunks, 0U);
}

TEST_F(PacedUploadTest, PacingTakesHalfOfTheTimeOfAnUploadAtMost) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  const auto began = Clock::now();
  Put(20s).join();
  ExpectPut();
  EXPECT_GE(Clock::now() - began, 9s);
}

TEST_F(PacedUploadTest, WithoutPacingPiecesAreAsLargeAsBefore) {
  Put(600s).join();
  ExpectPut();
  EXPECT_EQ(largest_, std::size_t{2} << 20);
}

}  // namespace
}  // namespace ffrecord::client
