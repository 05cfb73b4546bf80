// Goal: one step of a reduction is exact to the bit for every type, and the halves round as IEEE
// 754 says; messages cross byte for byte.
// Method: all 65,536 values of both half types, and the points between neighbours; golden
// vectors.

#include "client/collective/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "client/collective/group_messages.h"
#include "client/collective/wire.h"
#include "client/collective/wire_kernels.h"
#include "libffrecord/base/hex.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

template <class T>
T ReduceOne(ReduceType type, ReduceOp op, T incoming, T local) {
  Reduce(type, op, 1, reinterpret_cast<const std::byte*>(&incoming),
         reinterpret_cast<std::byte*>(&local));
  return local;
}

template <class T>
T DivideOne(ReduceType type, std::uint32_t divisor, T local) {
  Divide(type, divisor, 1, reinterpret_cast<std::byte*>(&local));
  return local;
}

struct HalfFormat {
  ReduceType type;
  int exponent_bits;
  int mantissa_bits;
  std::uint16_t quiet_nan;

  // The value by definition.
  double Value(std::uint16_t bits) const {
    const int exponent_max = (1 << exponent_bits) - 1;
    const int exponent = (bits >> mantissa_bits) & exponent_max;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int bias = exponent_max / 2;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == exponent_max)
      return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
};

constexpr HalfFormat kFormats[] = {{ReduceType::kF16, 5, 10, 0x7E00},
                                   {ReduceType::kBf16, 8, 7, 0x7FC0}};

TEST(ReduceTest, EveryHalfPlusNothingIsItself) {
  for (const HalfFormat& format : kFormats) {
    const std::uint16_t negative_zero = 0x8000;  // x + -0 is x, for both zeros too.
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const auto sum = ReduceOne(format.type, ReduceOp::kSum, half, negative_zero);
      ASSERT_EQ(sum, std::isnan(format.Value(half)) ? format.quiet_nan : half) << bits;
    }
  }
}

// A double that lies between two halves goes to the nearer one, or to the even one: checked through
// sums and quotients that are exact in fp32, so that only the last rounding is at work.
TEST(ReduceTest, HalvesRoundToNearestEven) {
  std::mt19937 random(test::Seed());
  for (const HalfFormat& format : kFormats) {
    int inexact = 0;
    for (int i = 0; i < 400'000; ++i) {
      const auto a = static_cast<std::uint16_t>(random());
      // Mostly of like exponent, where the sum is exact in fp32.
      const auto b = static_cast<std::uint16_t>(
          i % 4 == 0 ? random() : a ^ (random() & 0x8000) ^ (random() & 0x0FFF));
      const double exact = format.Value(a) + format.Value(b);
      const float in_float =
          static_cast<float>(format.Value(a)) + static_cast<float>(format.Value(b));
      if (std::isnan(exact) || static_cast<double>(in_float) != exact) continue;

      const auto rounded = ReduceOne(format.type, ReduceOp::kSum, a, b);

      const double error = std::abs(format.Value(rounded) - exact);
      if (std::isinf(format.Value(rounded))) {
        const auto largest =
            static_cast<std::uint16_t>(format.quiet_nan == 0x7E00 ? 0x7BFF : 0x7F7F);
        const double half_step =
            (format.Value(largest) - format.Value(static_cast<std::uint16_t>(largest - 1))) / 2;
        ASSERT_GE(std::abs(exact), format.Value(largest) + half_step);
        continue;
      }
      if (error == 0) continue;
      ++inexact;
      for (const int step : {-1, 1}) {
        const auto neighbour = static_cast<std::uint16_t>(rounded + step);
        if (((neighbour ^ rounded) & 0x8000) != 0) continue;  // Past zero.
        const double other = std::abs(format.Value(neighbour) - exact);
        ASSERT_LE(error, other) << a << " + " << b;
        if (error == other) {
          ASSERT_EQ(rounded & 1, 0) << a << " + " << b;
        }
      }
    }
    EXPECT_GT(inexact, 10'000);
  }
}

TEST(ReduceTest, DividingRoundsOnceAndNansAreCanonical) {
  EXPECT_EQ(DivideOne(ReduceType::kF32, 3, 2.0F), 2.0F / 3.0F);
  EXPECT_EQ(DivideOne(ReduceType::kF64, 3, 2.0), 2.0 / 3.0);
  EXPECT_EQ(DivideOne<std::uint16_t>(ReduceType::kF16, 3, 0x4000), 0x3955);   // 2/3.
  EXPECT_EQ(DivideOne<std::uint16_t>(ReduceType::kBf16, 3, 0x4000), 0x3F2B);  // 2/3.
  const float nan = std::bit_cast<float>(0xFFA00001U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(DivideOne(ReduceType::kF32, 3, nan)), 0x7FC00000U);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    for (const bool first : {false, true}) {
      const float result = ReduceOne(ReduceType::kF32, op, first ? nan : 1.0F, first ? 1.0F : nan);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(result), 0x7FC00000U);
    }
  }
  EXPECT_EQ(ReduceOne<std::int32_t>(ReduceType::kI32, ReduceOp::kSum, INT32_MAX, 1), INT32_MIN);
  EXPECT_EQ(ReduceOne<std::int64_t>(ReduceType::kI64, ReduceOp::kMin, -5, 7), -5);
  EXPECT_EQ(ReduceOne<std::int64_t>(ReduceType::kI64, ReduceOp::kMax, -5, 7), 7);
}

TEST(ReduceTest, ProductsRoundOnceAndIntegersWrap) {
  EXPECT_EQ(ReduceOne(ReduceType::kF32, ReduceOp::kProduct, 3.0F, -0.5F), -1.5F);
  EXPECT_EQ(ReduceOne(ReduceType::kF64, ReduceOp::kProduct, 0.1, 0.2), 0.1 * 0.2);
  EXPECT_EQ(ReduceOne<std::uint16_t>(ReduceType::kF16, ReduceOp::kProduct, 0x4200, 0x4200),
            0x4880);  // 3 times 3.
  EXPECT_EQ(ReduceOne<std::int32_t>(ReduceType::kI32, ReduceOp::kProduct, INT32_MIN, -1),
            INT32_MIN);
  EXPECT_EQ(ReduceOne<std::int64_t>(ReduceType::kI64, ReduceOp::kProduct, INT64_MAX, 2), -2);
}

TEST(ReduceTest, OnlyIntegersHaveBits) {
  EXPECT_EQ(ReduceOne<std::int32_t>(ReduceType::kI32, ReduceOp::kBitAnd, 0b1100, -6), 0b1000);
  EXPECT_EQ(ReduceOne<std::int64_t>(ReduceType::kI64, ReduceOp::kBitOr, 0b1100, 0b1010), 0b1110);
  EXPECT_EQ(ReduceOne<std::int64_t>(ReduceType::kI64, ReduceOp::kBitXor, 0b1100, -1), ~0b1100);
  for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    EXPECT_TRUE(IsOffered(ReduceType::kI32, op));
    EXPECT_FALSE(IsOffered(ReduceType::kF32, op));
    EXPECT_FALSE(IsOffered(ReduceType::kBytes, op));
  }
  EXPECT_FALSE(IsOffered(ReduceType::kI64, ReduceOp::kAverage));
  EXPECT_TRUE(IsOffered(ReduceType::kBf16, ReduceOp::kProduct));
}

TEST(ReduceTest, ALongArrayGivesTheBitsOfItsSingleElements) {
  std::mt19937 random(test::Seed());
  for (const ReduceTypeTraits& of_type : ReduceTypes()) {
    for (const ReduceOpTraits& of_op : ReduceOps()) {
      const auto [type, op, size] = std::tuple(of_type.type, of_op.op, of_type.size_bytes);
      if (!IsOffered(type, op)) continue;
      constexpr std::size_t kCount = 1'037;
      std::vector<std::byte> incoming(kCount * size);
      std::vector<std::byte> local(kCount * size);
      for (std::byte& byte : incoming) byte = static_cast<std::byte>(random());
      for (std::byte& byte : local) byte = static_cast<std::byte>(random());
      auto one_by_one = local;

      Reduce(type, op, kCount, incoming.data(), local.data());
      for (std::size_t i = 0; i < kCount; ++i)
        Reduce(type, op, 1, incoming.data() + i * size, one_by_one.data() + i * size);

      ASSERT_EQ(local, one_by_one) << of_type.name << " " << of_op.name;
    }
  }
}

// Both ranks of a pair compute the same extreme, with the operands swapped.
TEST(ReduceTest, TheOrderOfOperandsDoesNotMatter) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float all[] = {0.0F, -0.0F, 1.5F, -1.5F, 1e-40F, -1e-40F, kInfinity, -kInfinity, nan, -nan};
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (const float a : all) {
      for (const float b : all) {
        const float there = ReduceOne(ReduceType::kF32, op, a, b);
        const float back = ReduceOne(ReduceType::kF32, op, b, a);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(there), std::bit_cast<std::uint32_t>(back))
            << a << " and " << b << " by operation " << static_cast<int>(op);
      }
    }
  }
}

template <class Message>
void ExpectGolden(const Message& message, const std::string& golden) {
  const auto bytes = message.Encode();
  EXPECT_EQ(Hex(bytes), golden);
  const auto decoded = Message::Decode(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded.value(), message);

  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Message::Decode(longer).error().code, ErrorCode::kCorruption);
  EXPECT_FALSE(Message::Decode(std::span(bytes).first(bytes.size() - 1)));
  EXPECT_FALSE(Message::Decode({}));
}

// --- Halves on the wire
// ---------------------------------------------------------------------------

// Every value within the documented bound, its copy at the sender equal to what the receiver makes
// of it, and not changed by being sent on.
TEST(WireTest, HalvesKeepTheBoundAndAreSentOnUnchanged) {
  std::mt19937 random(test::Seed());
  for (const WireType wire : {WireType::kBf16, WireType::kF16}) {
    for (int round = 0; round < 200; ++round) {
      const int magnitude = static_cast<int>(random() % 250) - 140;
      std::vector<float> values(1 + random() % 200);
      for (float& value : values)
        value = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random),
                           magnitude + static_cast<int>(random() % 50) - 40);
      const auto before = values;
      double largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(double{value}));
      std::vector<std::byte> halves(values.size() * 2);
      auto* const own = reinterpret_cast<std::byte*>(values.data());
      const std::int32_t shift = WireShift(wire, values.size(), own);
      ASSERT_GE(shift, kWireShiftMin);
      ASSERT_LE(shift, kWireShiftMax);

      EncodeWire(wire, shift, values.size(), own, halves.data());

      for (std::size_t i = 0; i < values.size(); ++i) {
        const double bound =
            wire == WireType::kBf16
                ? std::max(std::ldexp(std::abs(double{before[i]}), -8), 0x1p-134)
                : std::max(std::ldexp(std::abs(double{before[i]}), -11), std::ldexp(largest, -39));
        ASSERT_NEAR(values[i], before[i], bound);
      }
      std::vector<float> received(values.size());
      auto* const theirs = reinterpret_cast<std::byte*>(received.data());
      DecodeWire(wire, shift, received.size(), halves.data(), theirs);
      ASSERT_EQ(std::memcmp(theirs, own, halves.size() * 2), 0);
      ASSERT_EQ(WireShift(wire, received.size(), theirs), shift);
      RoundAsSent(wire, received.size(), theirs);
      ASSERT_EQ(std::memcmp(theirs, own, halves.size() * 2), 0);
    }
  }
}

// Every half, and floats of all kinds, by both sets of loops, at sizes that leave a rest.
TEST(WireTest, WhatTheProcessorDoesBestHasTheBitsOfThePlainLoops) {
  const WireKernels& best = BestWireKernels();
  std::mt19937 random(test::Seed());
  constexpr std::size_t kCount = (1 << 16) + 5;
  std::vector<std::uint16_t> halves(kCount);
  std::vector<float> floats(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
    floats[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  }
  auto* const from = reinterpret_cast<std::byte*>(halves.data());
  const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
  for (const float scale : {1.0F, 0x1p-20F, 0x1p20F, 0x1p126F, 0x1p-114F}) {
    for (const std::size_t count : {kCount, std::size_t{0}, std::size_t{7}, std::size_t{64}}) {
      auto plainly = floats;
      auto well = floats;
      EXPECT_EQ(kWirePlain.largest(count, bytes(plainly)), best.largest(count, bytes(well)));
      std::vector<std::uint16_t> plain_halves(kCount), best_halves(kCount);
      kWirePlain.encode(scale, 1 / scale, count, bytes(plainly), bytes(plain_halves));
      best.encode(scale, 1 / scale, count, bytes(well), bytes(best_halves));
      EXPECT_EQ(plain_halves, best_halves);
      ASSERT_EQ(std::memcmp(plainly.data(), well.data(), kCount * 4), 0) << scale;
      plainly = well = floats;
      kWirePlain.add(scale, count, from, bytes(plainly));
      best.add(scale, count, from, bytes(well));
      ASSERT_EQ(std::memcmp(plainly.data(), well.data(), kCount * 4), 0) << scale;
      kWirePlain.encode(scale, 1 / scale, count, bytes(plainly), nullptr);
      best.encode(scale, 1 / scale, count, bytes(well), nullptr);
      kWirePlain.decode(scale, count / 2, from, bytes(plainly));
      best.decode(scale, count / 2, from, bytes(well));
      ASSERT_EQ(std::memcmp(plainly.data(), well.data(), kCount * 4), 0) << scale;
    }
  }
}

// The largest value rounds up to the next power of two: its scale is that of what it becomes.
TEST(WireTest, ALargestValueThatRoundsUpHasTheScaleOfWhatItBecomes) {
  std::vector<float> values{std::nextafter(2.0F, 0.0F), 0x1p-24F + 0x1p-34F};
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  EXPECT_EQ(WireShift(WireType::kF16, 2, bytes), 13);
  RoundAsSent(WireType::kF16, 2, bytes);
  EXPECT_EQ(values[0], 2.0F);
  EXPECT_EQ(WireShift(WireType::kF16, 2, bytes), 13);
}

TEST(CollectiveMessagesTest, GoldenVectors) {
  GroupHello hello{.rank = 3,
                   .world_size = 4,
                   .chunk_size_bytes = 512 << 10,
                   .wire = WireType::kBf16,
                   .streams = 4,
                   .stream = 1};
  for (std::size_t i = 0; i < hello.secret.size(); ++i) hello.secret[i] = static_cast<std::byte>(i);
  ExpectGolden(hello,
               "000102030405060708090a0b0c0d0e0f"
               "03000000"
               "04000000"
               "0000080000000000"
               "01000000"
               "0400"
               "0100");
  ExpectGolden(CollectiveData{.sequence = 5,
                              .count = 1'000,
                              .first = 250,
                              .payload_check = 0x0123456789ABCDEF,
                              .step = 2,
                              .type = ReduceType::kBf16,
                              .op = ReduceOp::kAverage,
                              .collective = Collective::kBroadcast,
                              .algorithm = Algorithm::kRecursiveDoubling,
                              .root = 9,
                              .shift = -3},
               "0500000000000000"
               "e803000000000000"
               "fa00000000000000"
               "efcdab8967452301"
               "02000000"
               "03"
               "01"
               "03"
               "02"
               "09000000"
               "fdffffff");
  ExpectGolden(CollectiveTaken{.first = 5, .pieces = 2, .waited_us = 1'000},
               "0500000000000000"
               "02000000"
               "e8030000");
  ExpectGolden(GroupWaiting{.rank = 7, .is_absent = true}, "0700000001000000");
}

TEST(CollectiveMessagesTest, AScaleThatNoRankChoosesIsRefused) {
  for (const std::int32_t shift : {-115, 127, INT32_MIN, INT32_MAX})
    EXPECT_FALSE(CollectiveData::Decode(CollectiveData{.shift = shift}.Encode())) << shift;
  for (const std::int32_t shift : {-114, 126})
    EXPECT_TRUE(CollectiveData::Decode(CollectiveData{.shift = shift}.Encode())) << shift;
}

TEST(CollectiveMessagesTest, UnknownTypesAreRefused) {
  const auto good = CollectiveData{}.Encode();
  for (const std::size_t at : {36U, 37U, 38U, 39U}) {
    auto bytes = good;
    bytes[at] = std::byte{0x10};
    EXPECT_EQ(CollectiveData::Decode(bytes).error().code, ErrorCode::kCorruption) << at;
  }
}

}  // namespace
}  // namespace ffrecord::client
