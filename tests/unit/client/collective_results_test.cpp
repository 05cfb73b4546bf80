// Goal: every rank gets the right result with the same bits.
// Method: threads as ranks, over TCP and through shared memory; the expected result is computed in
// integers or in fp64.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "collective_group.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;

void ExpectExactSums(std::uint32_t n, std::optional<Algorithm> algorithm, Where where) {
  SCOPED_TRACE(testing::Message() << "n " << n << " algorithm "
                                  << (algorithm ? static_cast<int>(*algorithm) : -1) << " where "
                                  << static_cast<int>(where));
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 256, .algorithm = algorithm}, where);
  group.Connect();
  const auto before = group.engines[0].stats().operations;
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{n - 1}, std::size_t{n}, std::size_t{n + 1},
          std::size_t{31}, std::size_t{n * 64 + 1}, std::size_t{5'003}}) {
      std::vector<std::int64_t> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = static_cast<std::int64_t>(i * 1'000'003 + rank * 7);

      const auto reduced = AllReduce(engine, data);

      ASSERT_TRUE(reduced) << reduced.error().message;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], static_cast<std::int64_t>(n * i * 1'000'003 + n * (n - 1) / 2 * 7))
            << "count " << count << " at " << i;
      }
    }
  });
  EXPECT_EQ(group.engines[0].stats().operations - before, 8U);
}

TEST(CollectiveResultsTest, IntegerSumsAreExactForEveryGroupAndArraySize) {
  for (const Where where : kEverywhere) {
    for (const std::uint32_t n : {1U, 2U, 3U, 4U, 5U, 6U, 8U, 13U}) {
      ExpectExactSums(n, std::nullopt, where);
      if (n > 6) continue;
      for (const Algorithm algorithm : kAlgorithms)
        if (IsPossible(algorithm, n, where)) ExpectExactSums(n, algorithm, where);
    }
  }
}

TEST(CollectiveResultsTest, FloatSumsAreCloseAndHaveTheSameBitsOnAllRanksAndInAllRuns) {
  const std::uint32_t seed = test::Seed();
  struct Case {
    std::uint32_t n;
    Algorithm algorithm;
    Where where;
  };
  std::vector<Case> cases;
  for (const std::uint32_t n : {2U, 3U, 4U, 5U})
    for (const Algorithm algorithm : kAlgorithms)
      for (const Where where : kEverywhere)
        if (IsPossible(algorithm, n, where)) cases.push_back({n, algorithm, where});
  for (const auto& [n, algorithm, where] : cases) {
    constexpr std::size_t kCount = 30'001;
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t rank = 0; rank < n; ++rank)
      inputs.push_back(RandomFloats(seed + rank, kCount));
    std::vector<float> first_run;
    for (int run = 0; run < 2; ++run) {
      auto outputs = inputs;
      Group group(n, {.timeout = 20s, .chunk_size_bytes = 4096, .algorithm = algorithm}, where);
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        ASSERT_TRUE(AllReduce(engine, outputs[rank]));
      });

      for (std::uint32_t rank = 1; rank < n; ++rank)
        ASSERT_EQ(std::memcmp(outputs[rank].data(), outputs[0].data(), kCount * 4), 0);
      if (run == 0) first_run = outputs[0];
      ASSERT_EQ(std::memcmp(outputs[0].data(), first_run.data(), kCount * 4), 0);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      double sum = 0;
      double sum_of_magnitudes = 0;
      for (const auto& input : inputs) {
        sum += static_cast<double>(input[i]);
        sum_of_magnitudes += std::abs(static_cast<double>(input[i]));
      }
      ASSERT_NEAR(static_cast<double>(first_run[i]), sum, (n - 1) * 0x1p-24 * sum_of_magnitudes);
    }
  }
}

TEST(CollectiveResultsTest, AveragesExtremesAndDoublesAreRight) {
  constexpr std::uint32_t n = 3;
  Group group(n, {.timeout = 20s});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    const float r = static_cast<float>(rank);
    const float nan = std::numeric_limits<float>::signaling_NaN();
    std::vector<float> average{r, 3 * r, 1, -r};
    ASSERT_TRUE(AllReduce(engine, average, ReduceOp::kAverage));
    EXPECT_EQ(average, (std::vector<float>{1, 3, 1, -1}));

    std::vector<float> least{r, -r, rank == 1 ? nan : r};
    ASSERT_TRUE(AllReduce(engine, least, ReduceOp::kMin));
    EXPECT_EQ(least[0], 0);
    EXPECT_EQ(least[1], -2);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(least[2]), 0x7FC00000U);

    std::vector<std::int32_t> most{static_cast<std::int32_t>(rank), -5};
    ASSERT_TRUE(AllReduce(engine, most, ReduceOp::kMax));
    EXPECT_EQ(most, (std::vector<std::int32_t>{2, -5}));

    std::vector<double> sum(7, 0x1p-40 + rank);
    ASSERT_TRUE(AllReduce(engine, sum));
    for (const double value : sum) EXPECT_EQ(value, 3 + 3 * 0x1p-40);
  });
}

// The sum of the ranks' values is beyond the type, their average is not.
TEST(CollectiveResultsTest, AnAverageOverflowsNowhere) {
  constexpr std::uint32_t n = 4;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const WireType wire : {WireType::kExact, WireType::kBf16, WireType::kF16}) {
      if (wire == WireType::kF16 && algorithm == Algorithm::kHalvingDoubling) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(algorithm) << static_cast<int>(wire));
      Group group(n, {.timeout = 20s, .algorithm = algorithm, .wire = wire});
      group.Connect();
      group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
        const auto average = [&](auto& data, ReduceType type) {
          const auto token =
              engine.AllReduce(data.data(), data.size(), type, ReduceOp::kAverage).value();
          EXPECT_TRUE(engine.Wait(token));
        };
        std::vector<std::uint16_t> halves(100, 0x7800);  // 2^15; the largest are below 2^16.
        average(halves, ReduceType::kF16);
        EXPECT_EQ(halves, std::vector<std::uint16_t>(100, 0x7800));
        std::vector<float> floats(100, 0x1p127F);
        average(floats, ReduceType::kF32);
        EXPECT_EQ(floats, std::vector<float>(100, 0x1p127F));
        std::vector<double> doubles(100, 0x1p1023);
        average(doubles, ReduceType::kF64);
        EXPECT_EQ(doubles, std::vector<double>(100, 0x1p1023));
      });
    }
  }
}

TEST(CollectiveResultsTest, ArraysNeedNoAlignment) {
  constexpr std::uint32_t n = 3;
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 100});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::byte> bytes(1 + 1000 * sizeof(double) + 1, std::byte{0xAA});
    for (std::size_t i = 0; i < 1000; ++i) {
      const double value = static_cast<double>(i * rank);
      std::memcpy(bytes.data() + 1 + i * sizeof(value), &value, sizeof(value));
    }
    const auto token = engine.AllReduce(bytes.data() + 1, 1000, ReduceType::kF64, ReduceOp::kSum);
    ASSERT_TRUE(engine.Wait(token.value()));
    for (std::size_t i = 0; i < 1000; ++i) {
      double value;
      std::memcpy(&value, bytes.data() + 1 + i * sizeof(value), sizeof(value));
      ASSERT_EQ(value, static_cast<double>(i * 3));
    }
    EXPECT_EQ(bytes.front(), std::byte{0xAA});
    EXPECT_EQ(bytes.back(), std::byte{0xAA});
  });
}

TEST(CollectiveResultsTest, ManyOperationsInFlightEndInOrderAndEachWithItsOwnResult) {
  constexpr std::uint32_t n = 4;
  constexpr std::size_t kOperations = 60;
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 1024});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::mt19937 random(rank);
    std::vector<std::vector<std::int32_t>> data;
    for (std::size_t i = 0; i < kOperations; ++i)
      data.emplace_back(i * i % 3'000, static_cast<std::int32_t>(i + rank));
    CollectiveEngine::Token first = 0;
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto token =
          engine.AllReduce(data[i].data(), data[i].size(), ReduceType::kI32, ReduceOp::kSum);
      if (i == 0) first = token ? token.value() : 0;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto completion = engine.WaitAny(20s);
      ASSERT_TRUE(completion) << completion.error().message;
      ASSERT_TRUE(completion.value().outcome);
      ASSERT_EQ(completion.value().token, first + i);
      EXPECT_LE(completion.value().began_ns, completion.value().ended_ns);
      for (const std::int32_t value : data[i])
        ASSERT_EQ(value, static_cast<std::int32_t>(n * i + n * (n - 1) / 2));
    }
    EXPECT_EQ(engine.WaitAny(1ms).error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(engine.Wait(first).error().code, ErrorCode::kInvalidArgument);  // Returned already.
  });
}

TEST(CollectiveResultsTest, EachRankSendsWhatTheRingBoundSays) {
  constexpr std::uint32_t n = 4;
  constexpr std::uint64_t kCount = 1 << 20;
  Group group(n, {.timeout = 20s, .algorithm = Algorithm::kRing}, Where::kApart);
  group.Connect();
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    std::vector<float> data(kCount, 1);
    const auto before = engine.stats();
    ASSERT_TRUE(AllReduce(engine, data));
    const auto after = engine.stats();
    const double bound = 2.0 * (n - 1) / n * kCount * 4;
    EXPECT_NEAR(static_cast<double>(after.bytes_sent - before.bytes_sent), bound, bound * 0.001);
    EXPECT_NEAR(static_cast<double>(after.bytes_received - before.bytes_received), bound,
                bound * 0.001);
    EXPECT_GT(after.reduce_ns, 0U);
  });
}

TEST(CollectiveResultsTest, ReduceScatterThenAllGatherIsAnAllReduce) {
  for (const std::uint32_t n : {1U, 2U, 3U, 5U}) {
    Group group(n, {.timeout = 20s, .chunk_size_bytes = 256});
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (const std::uint64_t count : {0U, 1U, 2U, 777U}) {
        std::vector<std::int32_t> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>(i * 10 + rank);
        std::int32_t none = 0;
        void* const at = count == 0 ? &none : data.data();
        const auto scattered =
            engine.ReduceScatter(at, count, ReduceType::kI32, ReduceOp::kSum).value();
        ASSERT_TRUE(engine.Wait(scattered));
        const auto own = CollectiveEngine::ShardOf(count, n, rank);
        for (std::uint64_t i = 0; i < count; ++i) {
          if (i < own.begin || i >= own.end) {
            data[i] = -1;  // Not ours: what is there must not matter.
            continue;
          }
          ASSERT_EQ(data[i], static_cast<std::int32_t>(n * i * 10 + n * (n - 1) / 2));
        }
        const auto gathered = engine.AllGather(at, count, ReduceType::kI32).value();
        ASSERT_TRUE(engine.Wait(gathered));
        for (std::uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], static_cast<std::int32_t>(n * i * 10 + n * (n - 1) / 2));
      }
    });
  }
}

// Half of the bytes, the same bits on all ranks, and an error within the documented bound.
void ExpectCloseSums(WireType wire, std::uint32_t n, Algorithm algorithm, Where where) {
  SCOPED_TRACE(testing::Message() << "wire " << static_cast<int>(wire) << " n " << n
                                  << " algorithm " << static_cast<int>(algorithm) << " where "
                                  << static_cast<int>(where));
  constexpr std::size_t kCount = 10'001;
  const std::uint32_t seed = test::Seed();
  std::vector<std::vector<float>> inputs;
  for (std::uint32_t rank = 0; rank < n; ++rank)
    inputs.push_back(RandomFloats(seed + rank, kCount));
  auto outputs = inputs;
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 4096, .algorithm = algorithm, .wire = wire},
              where);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    ASSERT_TRUE(AllReduce(engine, outputs[rank], ReduceOp::kAverage));
    if (algorithm == Algorithm::kRing) {
      const double bound = 2.0 * (n - 1) / n * kCount * 2;
      const auto stats = engine.stats();
      EXPECT_NEAR(static_cast<double>(stats.bytes_sent + stats.bytes_shared), bound, bound * 0.2);
    }
    std::vector<std::int32_t> exact(100, 1 << 20 | 1);  // Integers cross as they are.
    ASSERT_TRUE(AllReduce(engine, exact));
    ASSERT_EQ(exact, std::vector<std::int32_t>(100, static_cast<std::int32_t>(n) * (1 << 20 | 1)));
  });

  for (std::uint32_t rank = 1; rank < n; ++rank)
    ASSERT_EQ(std::memcmp(outputs[rank].data(), outputs[0].data(), kCount * 4), 0);
  const int digits = wire == WireType::kBf16 ? 8 : 11;
  for (std::size_t i = 0; i < kCount; ++i) {
    double sum = 0;
    double sum_of_magnitudes = 0;
    for (const auto& input : inputs) {
      sum += input[i];
      sum_of_magnitudes += std::abs(static_cast<double>(input[i]));
    }
    // No magnitude is above 2^20, and no sum of them above n times that.
    const double floor = wire == WireType::kBf16 ? 0 : std::ldexp(n, 20 - 39);
    ASSERT_NEAR(outputs[0][i], sum / n,
                (n + 1) * (std::ldexp(sum_of_magnitudes / n, -digits) + floor));
  }
}

TEST(CollectiveResultsTest, SumsSentAsHalvesAreCloseAndTheSameOnAllRanks) {
  for (const std::uint32_t n : {2U, 3U, 4U}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Where where : kEverywhere) {
        if (!IsPossible(algorithm, n, where)) continue;
        ExpectCloseSums(WireType::kBf16, n, algorithm, where);
        if (algorithm != Algorithm::kHalvingDoubling)
          ExpectCloseSums(WireType::kF16, n, algorithm, where);
      }
    }
  }
}

// Magnitudes that fp16 itself cannot hold, at both ends, and values that are no numbers.
TEST(CollectiveResultsTest, SumsSentAsF16NeverOverflowAndKeepInfinitiesAndNans) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float scale : {0x1p-149F, 0x1p-100F, 0x1p-30F, 0x1p17F, 0x1p120F}) {
    for (const Where where : {Where::kApart, Where::kTogether}) {
      Group group(3, {.timeout = 20s, .chunk_size_bytes = 64, .wire = WireType::kF16}, where);
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        std::vector<float> data(100, scale * static_cast<float>(rank + 1));
        data[40] = rank == 1 ? kInf : data[40];
        data[70] = rank == 2 ? std::numeric_limits<float>::quiet_NaN() : data[70];
        ASSERT_TRUE(AllReduce(engine, data));
        for (std::size_t i = 0; i < data.size(); ++i) {
          if (i == 40) {
            ASSERT_EQ(data[i], kInf);
          } else if (i == 70) {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(data[i]), 0x7FC00000U);
          } else {
            ASSERT_EQ(data[i], scale * 6) << i << " scale " << scale;
          }
        }
      });
    }
  }
}

// Longer than a tile of what is decoded at once, and with an end that fills none.
TEST(CollectiveResultsTest, ExtremesOfWhatIsSentAsHalvesAreThoseOfAllRanks) {
  constexpr std::size_t kCount = 9'001;
  const auto value = [](std::size_t i, std::size_t rank) {
    return static_cast<float>((i * 7 + rank * 61) % 97) - 48;
  };
  for (const WireType wire : {WireType::kBf16, WireType::kF16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      Group group(3, {.timeout = 20s, .wire = wire}, Where::kApart);
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        std::vector<float> data;
        for (std::size_t i = 0; i < kCount; ++i) data.push_back(value(i, rank));
        ASSERT_TRUE(AllReduce(engine, data, op));
        for (std::size_t i = 0; i < kCount; ++i) {
          const auto [least, most] = std::minmax({value(i, 0), value(i, 1), value(i, 2)});
          ASSERT_EQ(data[i], op == ReduceOp::kMin ? least : most) << "at " << i;
        }
      });
    }
  }
}

// More than the kernel takes while the other rank is not there yet: what waits is not overwritten,
// neither where it is copied to be sent as halves nor in the array, where results come to.
TEST(CollectiveResultsTest, WhatIsQueuedForALateRankStaysAsItWasSent) {
  constexpr std::size_t kCount = 8 << 20;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>((i / 1024 + i) % 97);
  auto doubled = values;
  for (float& value : doubled) value *= 2;
  for (const WireType wire : {WireType::kExact, WireType::kF16}) {
    Group group(2, {.timeout = 20s, .algorithm = Algorithm::kRecursiveDoubling, .wire = wire},
                Where::kApart);
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      auto data = values;
      // It has given its connection what that takes, two pieces at least, and they stand.
      const CollectiveEngine& first = group.engines[0];
      while (rank == 1 && first.stats().bytes_sent < 2 * Options{}.chunk_size_bytes)
        std::this_thread::yield();
      const auto reduced = AllReduce(engine, data);
      ASSERT_TRUE(reduced) << reduced.error().message;
      EXPECT_TRUE(data == doubled);
    });
  }
}

// Each reads the other's piece though its own, from the same place, has not left.
TEST(CollectiveResultsTest, PiecesLargerThanTheKernelsHoldAreExchanged) {
  constexpr std::size_t kCount = 4 << 20;
  for (const std::uint16_t streams : {std::uint16_t{1}, std::uint16_t{2}}) {
    Group group(2,
                {.timeout = 20s,
                 .chunk_size_bytes = 8 << 20,
                 .algorithm = Algorithm::kRecursiveDoubling,
                 .streams = streams},
                Where::kApart);
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      std::vector<std::int32_t> data(kCount, static_cast<std::int32_t>(rank + 1));
      const auto reduced = AllReduce(engine, data);
      ASSERT_TRUE(reduced) << reduced.error().message;
      EXPECT_TRUE(data == std::vector<std::int32_t>(kCount, 3));
    });
  }
}

// A rank's program may round otherwise; its sums would differ from those of the others.
TEST(CollectiveResultsTest, HowAProgramRoundsChangesNoBit) {
  constexpr std::size_t kCount = 30'001;
  const std::uint32_t seed = test::Seed();
  std::vector<std::vector<float>> outputs[2];
  for (auto& output : outputs) {
    const bool rounds_otherwise = &output == &outputs[1];
    output = {RandomFloats(seed, kCount), RandomFloats(seed + 1, kCount)};
    Group group(2, {.timeout = 20s, .algorithm = Algorithm::kRecursiveDoubling});
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      if (rounds_otherwise && rank == 1) std::fesetround(FE_UPWARD);
      ASSERT_TRUE(engine.Connect(group.addresses, kSecret));
      ASSERT_TRUE(AllReduce(engine, output[rank]));
    });
    for (const auto& data : output)
      ASSERT_EQ(std::memcmp(data.data(), outputs[0][0].data(), kCount * 4), 0);
  }
}

TEST(CollectiveResultsTest, ABroadcastGoesOutFromAnyRankByAnyWay) {
  constexpr std::uint32_t n = 5;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    Group group(n, {.timeout = 20s, .chunk_size_bytes = 512, .algorithm = algorithm});
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (std::uint32_t root = 0; root < n; ++root) {
        std::vector<double> data(1'000, rank == root ? 1.0 + root : -1);
        const auto token =
            engine.Broadcast(data.data(), data.size(), ReduceType::kF64, root).value();
        ASSERT_TRUE(engine.Wait(token));
        ASSERT_EQ(data, std::vector<double>(1'000, 1.0 + root));
      }
    });
  }
}

TEST(CollectiveResultsTest, ABarrierEndsOnlyWhenAllHaveComeToIt) {
  constexpr std::uint32_t n = 5;
  Group group(n, {.timeout = 20s});
  group.Connect();
  std::atomic<std::uint32_t> arrived = 0;
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      ++arrived;
      ASSERT_TRUE(engine.Wait(engine.Barrier().value()));
      ASSERT_GE(arrived, round * n);
    }
  });
}

}  // namespace
}  // namespace ffrecord::client
