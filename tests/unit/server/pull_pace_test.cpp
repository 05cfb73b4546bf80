// Goal: the copies of a node together keep to its rate, time that was not used is made up for in
// part only, and nothing waits without a rate. At each rate they come to their end in time.
// Method: a clock that the test moves.

#include "server/service/cluster/pull_pace.h"

#include <gtest/gtest.h>

#include "libffrecord/base/erasure_code.h"
#include "libffrecord/format/dataset_manifest.h"
#include "server/service/cluster/pull_patience.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

constexpr PullPace::Time kStart{1000s};

TEST(PullPaceTest, BytesThatFollowWaitForThoseBefore) {
  PullPace pace(1'000'000);
  EXPECT_EQ(pace.Take(kStart, 500'000), kStart - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(kStart, 2'000'000), kStart + 500ms - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(kStart, 1), kStart + 2500ms - PullPace::kUnusedMax);
}

TEST(PullPaceTest, ALongPauseIsMadeUpForInPartOnly) {
  PullPace pace(1'000'000);
  pace.Take(kStart, 1'000'000);
  const auto later = kStart + 1h;
  EXPECT_EQ(pace.Take(later, 1'000'000), later - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(later, 1), later + 1s - PullPace::kUnusedMax);
}

TEST(PullPaceTest, AShortPauseIsMadeUpFor) {
  PullPace pace(1'000'000);
  const auto first = pace.Take(kStart, 1'000'000);
  EXPECT_EQ(pace.Take(first + 1100ms, 1'000'000), first + 1s);
}

TEST(PullPaceTest, WithoutARateNothingWaits) {
  PullPace pace(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pace.Take(kStart, 1ULL << 40), kStart);
}

TEST(PullPaceTest, LargeSizesDoNotOverflow) {
  PullPace pace(1ULL << 20);
  pace.Take(kStart, 1ULL << 40);  // The whole of a large disk.
  EXPECT_EQ(pace.Take(kStart, 1), kStart - PullPace::kUnusedMax + std::chrono::seconds(1 << 20));
}

// The largest ones: each computes a member of the widest stripe. They take turns, so that none
// ends before the others: if the last one had no time, they would begin again for ever.
TEST(PullPaceTest, PullsHaveTheTimeThatTheirRateTakes) {
  constexpr std::uint64_t kRequestBytes = 1 << 20;
  const cluster::Replication::Options options;
  for (const std::uint64_t mib_per_s : {1U, 5U, 128U}) {
    PullPace pace(mib_per_s << 20);
    const std::uint64_t all_bytes = options.pulls_max * ErasureCode::kDataMax * kExtentSizeMax;
    auto last = kStart;
    for (std::uint64_t done = 0; done < all_bytes; done += kRequestBytes)
      last = pace.Take(kStart, kRequestBytes);
    EXPECT_LT(last - kStart, PullPatienceAt(mib_per_s << 20, options)) << mib_per_s << " MiB/s";
  }
  EXPECT_EQ(PullPatienceAt(0, options), options.pull_patience) << "no limit";
}

}  // namespace
}  // namespace ffrecord::server
