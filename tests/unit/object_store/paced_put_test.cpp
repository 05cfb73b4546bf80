// Goal: an upload to an object store waits for its turn while a phase is under way, and arrives
// whole whether it was paced or not.
// Method: a bucket in this process.

#include <ffrecord/runtime.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <thread>

#include "bytes.h"
#include "eventually.h"
#include "fake_bucket.h"
#include "libffrecord/object_store/s3_bucket.h"

namespace ffrecord::object_store {
namespace {

using namespace std::chrono_literals;

class PacedPutTest : public testing::Test {
 protected:
  ~PacedPutTest() override { StopPacing(); }

  Result<void> Put(const std::string& key) {
    const auto store = FFR_TRY(S3Bucket::Open("bucket", bucket_.settings(), 60s));
    return store->Put(key, test::AsBytes(data_), S3Bucket::Existing::kReplace);
  }
  static PacingCounters::Class Counters() {
    return GetPacingCounters().classes[static_cast<std::size_t>(TrafficClass::kCheckpoint)];
  }

  test::FakeBucket bucket_{{}};
  std::mt19937_64 random_{3};
  const std::string data_ = test::RandomText(3'000'000, random_);
};

TEST_F(PacedPutTest, AnObjectWaitsForTheEndOfThePhase) {
  ASSERT_TRUE(StartPacing({.checkpoint = {0, 60'000ms},
                           .chunk_size_bytes = 64 << 10,
                           .phase_limit = 600'000ms,
                           .stale_after = 600'000ms}));
  BeginPhase(PhaseKind::kCollective, 1);
  std::optional<Result<void>> put;
  std::thread putting([&] { put.emplace(Put("key")); });
  EXPECT_TRUE(test::Eventually([] { return Counters().held_now == 1; }));
  EXPECT_EQ(bucket_.write_count(), 0U);

  EndPhase(PhaseKind::kCollective);
  putting.join();

  ASSERT_TRUE(*put) << put->error().message;
  EXPECT_EQ(bucket_.Get("key"), data_);
  EXPECT_EQ(Counters().size_bytes, data_.size());
  EXPECT_GE(Counters().chunks, data_.size() / (64 << 10));
}

TEST_F(PacedPutTest, WithoutPacingAnObjectGoesAsOnePiece) {
  const auto before = Counters().chunks;
  const auto put = Put("key");
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(bucket_.Get("key"), data_);
  EXPECT_EQ(Counters().chunks, before);
}

}  // namespace
}  // namespace ffrecord::object_store
