// Goal: what is written where, and which bytes of one box belong to another, is right for any
// tensors; ranks that do not cover a tensor exactly once are refused; in a round of agreement all
// ranks learn the same.
// Method: chosen cases by hand; random boxes against a model that moves single elements.

#include "client/checkpoint/plan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/box_runs.h"
#include "client/checkpoint/segment_image.h"
#include "seed.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

using Shape = std::vector<std::uint64_t>;

TensorView Whole(const std::string& key, std::span<const std::byte> data) {
  return {key, "uint8", {data.size()}, {0}, {data.size()}, data};
}

// What a PlannedBox borrows.
struct OwnBox {
  std::string key;
  std::string dtype;
  Shape shape;
  Shape offset;
  Shape extent;
  std::uint32_t rank = 0;
};

OwnBox Box2(std::uint32_t rank, Shape offset, Shape extent) {
  return {"w", "float32", {4, 6}, std::move(offset), std::move(extent), rank};
}

std::string ErrorOf(const std::vector<OwnBox>& boxes) {
  std::vector<PlannedBox> planned;
  for (const OwnBox& box : boxes)
    planned.push_back({box.key, box.dtype, box.shape, box.offset, box.extent, box.rank});
  const auto checked = CheckBoxes(planned);
  if (checked) return "";
  EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  return checked.error().message;
}

TEST(CheckpointPlanTest, LargeTensorsAreAlignedAndSmallOnesPacked) {
  const std::vector<std::byte> bytes(10'000);
  const std::vector<TensorView> tensors{
      Whole("a", std::span(bytes).first(10)), Whole("b", std::span(bytes).first(5000)),
      Whole("c", std::span(bytes).first(70)), Whole("d", std::span(bytes).first(4096))};
  const PartPlan plan = PlanPart(7, {}, 0, tensors).value();

  ASSERT_EQ(plan.part.boxes.size(), 4U);
  const auto offset = [&](std::size_t i) { return plan.part.boxes[i].offset_bytes; };
  EXPECT_EQ(offset(1), 0U);
  EXPECT_EQ(offset(3), 8192U);
  EXPECT_EQ(offset(0), 12288U);
  EXPECT_EQ(offset(2), 12288U + 64);
  ASSERT_EQ(plan.part.segments.size(), 1U);
  EXPECT_EQ(plan.part.segments[0].payload_size_bytes, 16384U);
  EXPECT_EQ(plan.tensor_bytes, 10U + 5000 + 70 + 4096);
}

TEST(CheckpointPlanTest, LargeTensorsLieInTheFileAsInMemory) {
  const std::vector<std::byte> bytes((3 << 20) + 3 * 4096);
  const std::size_t to_page = 4096 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 4096;
  std::vector<TensorView> tensors;
  const std::size_t size = 600'000;
  for (const std::size_t phase : {64U, 0U, 4095U, 64U, 1U})
    tensors.push_back(
        Whole(std::to_string(tensors.size()), std::span(bytes).subspan(to_page + phase, size)));
  const PartPlan plan = PlanPart(7, {}, 0, tensors).value();

  std::uint64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t offset = plan.part.boxes[i].offset_bytes;
    EXPECT_EQ((reinterpret_cast<std::uintptr_t>(tensors[i].data.data()) - offset) % 4096, 0U);
    EXPECT_GE(offset, end);
    EXPECT_LT(offset, end + 4096);
    end = offset + size;
  }
}

TEST(CheckpointPlanTest, EachTensorHasItsBoxWhateverTheOrderOfKeys) {
  const std::vector<std::byte> bytes(3000);
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < 1000; ++i)
    tensors.push_back(Whole(std::to_string(i * 7919 % 1000), std::span(bytes).first(1 + i)));
  const PartPlan plan = PlanPart(7, {}, 0, tensors).value();

  ASSERT_EQ(plan.box_of_tensor.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredBox& box = plan.part.boxes[plan.box_of_tensor[i]];
    EXPECT_EQ(box.key, tensors[i].key);
    EXPECT_EQ(box.size_bytes, tensors[i].data.size());
  }
}

TEST(CheckpointPlanTest, ASegmentThatIsFullIsFollowedByAnother) {
  const std::vector<std::byte> bytes(9000);
  const std::vector<TensorView> tensors{Whole("a", bytes), Whole("b", bytes), Whole("c", bytes)};
  const PartPlan plan = PlanPart(7, {}, 0, tensors, 22'000).value();

  ASSERT_EQ(plan.segments.size(), 2U);
  EXPECT_EQ(plan.part.boxes[1].segment, 0U);
  EXPECT_EQ(plan.part.boxes[2].segment, 1U);
  EXPECT_EQ(plan.part.boxes[2].offset_bytes, 0U);
  EXPECT_NE(plan.part.segments[0].id, plan.part.segments[1].id);
}

TEST(CheckpointPlanTest, AWrongTensorIsRefusedAndNamed) {
  const std::vector<std::byte> bytes(24);
  const auto error = [&](TensorView tensor) {
    const auto plan = PlanPart(7, {}, 0, {{tensor}});
    EXPECT_FALSE(plan);
    return plan ? "" : plan.error().message;
  };
  TensorView good{"k", "float32", {4, 3}, {1, 0}, {2, 3}, bytes};
  TensorView tensor = good;
  tensor.data = std::span(bytes).first(20);
  EXPECT_NE(error(tensor).find("tensor k: extent (2, 3) of float32 takes 24 bytes, but 20"),
            std::string::npos);
  tensor = good;
  tensor.dtype = "object";
  EXPECT_NE(error(tensor).find("object"), std::string::npos);
  tensor = good;
  tensor.offset = {3, 0};
  EXPECT_NE(error(tensor).find("exceeds the tensor"), std::string::npos);
  tensor = good;
  tensor.key = "";
  EXPECT_NE(error(tensor).find("key"), std::string::npos);
  const auto twice = PlanPart(7, {}, 0, {{good, good}});
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("given twice at (1, 0)"), std::string::npos);
}

TEST(CheckpointPlanTest, BoxesThatCoverATensorOncePass) {
  EXPECT_EQ(ErrorOf({Box2(0, {0, 0}, {4, 6})}), "");
  EXPECT_EQ(ErrorOf({Box2(1, {2, 0}, {2, 6}), Box2(0, {0, 0}, {2, 6})}), "");
  EXPECT_EQ(ErrorOf({Box2(0, {0, 0}, {4, 3}), Box2(1, {0, 3}, {4, 3})}), "");
  EXPECT_EQ(ErrorOf({Box2(0, {0, 0}, {4, 6}), Box2(1, {4, 0}, {0, 6})}), "");
  EXPECT_EQ(ErrorOf({{"s", "int64", {}, {}, {}, 0}}), "");
  EXPECT_EQ(ErrorOf({{"e", "int64", {0}, {0}, {0}, 0}, {"e", "int64", {0}, {0}, {0}, 1}}), "");
}

TEST(CheckpointPlanTest, OverlapsGapsAndDisagreementsAreNamed) {
  EXPECT_NE(ErrorOf({Box2(0, {0, 0}, {3, 6}), Box2(1, {2, 0}, {2, 6})}).find("overlaps"),
            std::string::npos);
  EXPECT_NE(ErrorOf({Box2(0, {0, 0}, {1, 6}), Box2(1, {2, 0}, {2, 6})}).find("cover 18 of 24"),
            std::string::npos);
  // As many elements as the tensor has, yet one twice and one never.
  EXPECT_NE(ErrorOf({Box2(0, {0, 0}, {4, 4}), Box2(1, {0, 3}, {4, 2})}).find("overlaps"),
            std::string::npos);
  EXPECT_NE(ErrorOf({{"s", "int64", {}, {}, {}, 0}, {"s", "int64", {}, {}, {}, 1}})
                .find("rank 0 at () of extent () overlaps the slice of rank 1"),
            std::string::npos);
  auto other = Box2(1, {2, 0}, {2, 6});
  other.dtype = "float16";
  EXPECT_NE(ErrorOf({Box2(0, {0, 0}, {2, 6}), other}).find("rank 1 has float16"),
            std::string::npos);
}

TEST(CheckpointPlanTest, ManyRowShardsAreCheckedInSortedTime) {
  // A quadratic check would compare 5 * 10^9 pairs and meet the test's time limit.
  constexpr std::uint64_t kCount = 100'000;
  std::vector<OwnBox> boxes;
  for (std::uint32_t i = 0; i < kCount; ++i)
    boxes.push_back({"w", "uint8", {kCount, 8}, {i, 0}, {1, 8}, i});
  EXPECT_EQ(ErrorOf(boxes), "");
  boxes.pop_back();
  EXPECT_NE(ErrorOf(boxes), "");
}

TEST(CheckpointPlanTest, BoxesAreSortedWhateverOrderTheyComeIn) {
  std::mt19937 random(test::Seed());
  const std::vector<std::byte> bytes(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> keys(random() % 50);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = std::to_string(i);
    // From shuffled over a few sorted runs to sorted.
    if (round % 3 != 0) std::sort(keys.begin(), keys.end());
    if (round % 3 == 0) std::shuffle(keys.begin(), keys.end(), random);
    if (round % 3 == 1 && !keys.empty())
      std::rotate(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(random() % keys.size()),
                  keys.end());
    std::vector<TensorView> tensors;
    for (const std::string& key : keys) tensors.push_back(Whole(key, bytes));

    const PartPlan plan = PlanPart(7, {}, 0, tensors).value();

    std::sort(keys.begin(), keys.end());
    ASSERT_EQ(plan.part.boxes.size(), keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(plan.part.boxes[i].key, keys[i]);
  }
}

TEST(CheckpointPlanTest, ATreeMayReferOnlyToWhatIsSaved) {
  const std::vector<std::byte> bytes(8);
  const PartPlan plan = PlanPart(7, {}, 0, {{Whole("a", bytes), Whole("b", bytes)}}).value();
  const TextIndex saved = CheckBoxes(BoxesOf(plan.part)).value();
  EXPECT_TRUE(CheckReferences({{"b", "a", "b"}}, saved));
  const auto checked = CheckReferences({{"a", "c"}}, saved);
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message.find("tensor c, which no rank saves"), std::string::npos);
}

// A random box within `shape`.
std::pair<Shape, Shape> RandomBox(const Shape& shape, std::mt19937& random) {
  Shape offset;
  Shape extent;
  for (const std::uint64_t size : shape) {
    offset.push_back(random() % (size + 1));
    extent.push_back(random() % (size - offset.back() + 1));
  }
  return {offset, extent};
}

std::uint64_t Volume(const Shape& extent) {
  return std::accumulate(extent.begin(), extent.end(), std::uint64_t{1}, std::multiplies<>());
}

// Row-major position of element `at` of the array in a box; -1 if it is not in it.
std::int64_t PositionIn(const Shape& at, const Shape& offset, const Shape& extent) {
  std::uint64_t position = 0;
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (at[d] < offset[d] || at[d] >= offset[d] + extent[d]) return -1;
    position = position * extent[d] + (at[d] - offset[d]);
  }
  return static_cast<std::int64_t>(position);
}

TEST(BoxRunsTest, RandomBoxesMoveExactlyTheElementsTheyShare) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 3000; ++round) {
    Shape shape(random() % 5);
    for (auto& size : shape) size = 1 + random() % 5;
    const auto [from_offset, from_extent] = RandomBox(shape, random);
    const auto [to_offset, to_extent] = RandomBox(shape, random);
    constexpr std::uint64_t kSize = 3;
    std::vector<int> moved(Volume(to_extent) * kSize, -1);

    ForEachRun({from_offset, from_extent}, {to_offset, to_extent}, kSize, [&](const ByteRun& run) {
      ASSERT_GT(run.size_bytes, 0U);
      for (std::uint64_t i = 0; i < run.size_bytes; ++i) {
        ASSERT_EQ(moved.at(run.to_bytes + i), -1);
        moved[run.to_bytes + i] = static_cast<int>(run.from_bytes + i);
      }
    });

    Shape at(shape.size(), 0);
    for (std::uint64_t n = 0; n < Volume(shape); ++n) {
      std::uint64_t rest = n;
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
      const std::int64_t to = PositionIn(at, to_offset, to_extent);
      if (to < 0) continue;
      const std::int64_t from = PositionIn(at, from_offset, from_extent);
      for (std::int64_t byte = 0; byte < 3; ++byte)
        ASSERT_EQ(moved[static_cast<std::size_t>(to * 3 + byte)], from < 0 ? -1 : from * 3 + byte);
    }
  }
}

TEST(BoxRunsTest, RowsOfAWholeTensorAreOneRun) {
  const Shape zero{0, 0};
  const Shape shape{100, 8};
  const Shape offset{10, 0};
  const Shape extent{20, 8};
  int count = 0;
  ForEachRun({zero, shape}, {offset, extent}, 4, [&](const ByteRun& run) {
    ++count;
    EXPECT_EQ(run.from_bytes, 320U);
    EXPECT_EQ(run.to_bytes, 0U);
    EXPECT_EQ(run.size_bytes, 640U);
  });
  EXPECT_EQ(count, 1);
}

TEST(SegmentImageTest, ItsBytesAreTheSameHoweverTheyAreAskedFor) {
  std::mt19937 random(test::Seed());
  std::vector<std::vector<std::byte>> data;
  for (const std::size_t size : {300'000U, 3U, 70'000U, 4096U, 1U, 65536U, 200U, 1'000'000U}) {
    data.emplace_back(size);
    for (auto& byte : data.back()) byte = static_cast<std::byte>(random());
  }
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < data.size(); ++i)
    tensors.push_back(Whole(std::to_string(i), data[i]));
  const PartPlan plan = PlanPart(1, {}, 0, tensors).value();

  const auto read = [&](std::uint64_t piece_max) {
    SegmentImage image(plan.part.segments[0], plan.segments[0], tensors);
    std::vector<std::byte> bytes;
    while (bytes.size() < image.layout().file_size_bytes) {
      if (random() % 8 == 0 && bytes.size() > 70'000) {  // A transfer that begins again.
        bytes.resize(bytes.size() - 1 - random() % 70'000);
      }
      const auto piece = image.At(bytes.size(), 1 + random() % piece_max);
      EXPECT_FALSE(piece.empty());
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(std::ranges::equal(image.table_digest(), std::span(bytes).last(32).first(16)));
    return bytes;
  };
  const auto bytes = read(1 << 20);

  EXPECT_EQ(read(100'000), bytes);
  for (const StoredBox& box : plan.part.boxes) {
    const auto& expected = data[static_cast<std::size_t>(std::stoi(box.key))];
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           bytes.begin() + static_cast<std::ptrdiff_t>(box.offset_bytes)));
  }
}

TEST(SegmentImageTest, PiecesMadeByManyThreadsAreTheFile) {
  std::mt19937 random(test::Seed());
  std::vector<std::vector<std::byte>> data;
  for (const std::size_t size : {9'000'000U, 3U, 600'000U, 4096U, 1'000'000U, 70'000U}) {
    data.emplace_back(size);
    for (auto& byte : data.back()) byte = static_cast<std::byte>(random());
  }
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < data.size(); ++i)
    tensors.push_back(Whole(std::to_string(i), data[i]));
  tensors[2].is_stable = true;
  const PartPlan plan = PlanPart(1, {}, 0, tensors).value();
  SegmentImage stream(plan.part.segments[0], plan.segments[0], tensors);
  std::vector<std::byte> expected;
  while (expected.size() < stream.layout().file_size_bytes) {
    const auto bytes = stream.At(expected.size(), 1 << 20);
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }

  SegmentImage image(plan.part.segments[0], plan.segments[0], tensors);
  std::vector<std::byte> file(image.layout().file_size_bytes);
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      std::vector<std::byte> buffer(SegmentImage::kPieceSizeMax);
      for (std::size_t at; (at = next++) < image.pieces().size();) {
        const auto& piece = image.pieces()[at];
        const auto bytes = image.Make(piece, buffer);
        std::copy(bytes.begin(), bytes.end(),
                  file.begin() + static_cast<std::ptrdiff_t>(piece.offset_bytes));
      }
    });
  for (auto& thread : threads) thread.join();
  const auto end = image.MakeEnd();
  std::copy(end.begin(), end.end(),
            file.begin() + static_cast<std::ptrdiff_t>(image.layout().payload_size_bytes));

  EXPECT_EQ(file, expected);
  EXPECT_EQ(image.table_digest(), stream.table_digest());
  std::uint64_t done = 0;
  std::size_t own = 0;
  for (const auto& piece : image.pieces()) {
    EXPECT_EQ(piece.offset_bytes, done);
    EXPECT_EQ(piece.offset_bytes % kSegmentBlockSize, 0U);
    done += piece.size_bytes;
    own += piece.own_memory == nullptr ? 0 : piece.size_bytes;
  }
  EXPECT_EQ(done, image.layout().payload_size_bytes);
  EXPECT_GE(own, 9'000'000U + 600'000 + 1'000'000 - 6 * kSegmentBlockSize);  // All but edges.
}

TEST(BallotTest, GarbledMessagesOfRanksAreRefused) {
  std::mt19937 random(test::Seed());
  const Shape shape{4, 3};
  const Shape zeros{0, 0};
  const auto intent = EncodeIntent({12, {}, {{"w", "float32", shape, zeros, shape, 0}}, {}});
  const auto report = EncodePartReport({{10, {}, 20}, {{"name", {std::byte{1}}}}});
  const Intent decoded = DecodeIntent(intent).value();
  EXPECT_EQ(decoded.boxes.at(0).key, "w");
  EXPECT_TRUE(std::ranges::equal(decoded.boxes.at(0).offset, zeros));
  EXPECT_TRUE(std::ranges::equal(decoded.boxes.at(0).extent, shape));
  EXPECT_EQ(DecodePartReport(report).value().files.at(0).name, "name");
  for (std::size_t size = 0; size < intent.size(); ++size)
    EXPECT_FALSE(DecodeIntent(std::span(intent).first(size)));
  for (std::size_t size = 0; size < report.size(); ++size)
    EXPECT_FALSE(DecodePartReport(std::span(report).first(size)));
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = round % 2 == 0 ? intent : report;
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    static_cast<void>(DecodeIntent(bytes));
    static_cast<void>(DecodePartReport(bytes));
  }
}

// --- A round of agreement ------------------------------------------------------------------------

TEST(BallotTest, EveryRankLearnsTheFailureOfTheLowestRankThatFailed) {
  test::ThreadGroup group(4);
  const auto outcomes = group.Run([](CheckpointGroup& rank) {
    if (rank.rank() == 0 || rank.rank() == 1)
      return AllGatherResults(rank, std::vector<std::byte>(3), "unused");
    return AllGatherResults(
        rank, Error{rank.rank() == 2 ? ErrorCode::kIo : ErrorCode::kConflict, "no room", ENOSPC},
        rank.rank() == 2 ? "Full" : "Late");
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(*outcome);
    const RankResults& all = outcome->value();
    EXPECT_TRUE(all.results.empty());
    ASSERT_TRUE(all.failure);
    EXPECT_EQ(all.failure->kind, "Full");
    EXPECT_EQ(all.failure->error.code, ErrorCode::kIo);
    EXPECT_EQ(all.failure->error.system_errno, ENOSPC);
    EXPECT_EQ(all.failure->error.message, "rank 2: Full: no room");
  }
}

TEST(BallotTest, ResultsOfAllRanksComeInTheirOrder) {
  test::ThreadGroup group(3);
  const auto outcomes = group.Run([](CheckpointGroup& rank) {
    return AllGatherResults(rank, std::vector<std::byte>(rank.rank(), std::byte{7}));
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(*outcome);
    EXPECT_FALSE(outcome->value().failure);
    ASSERT_EQ(outcome->value().results.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(outcome->value().results[i], std::vector<std::byte>(i, std::byte{7}));
  }
}

TEST(BallotTest, AFailureThatIsCutAnywhereIsGarbled) {
  for (std::size_t cut = 1; cut < 1 + 1 + 4 + 4 + 4 + 4 + 7; ++cut) {
    test::ThreadGroup group(2);
    const auto outcomes = group.Run(
        [](CheckpointGroup& rank) {
          return AllGatherResults(rank, Error{ErrorCode::kIo, "no room", ENOSPC}, "Full");
        },
        [&](std::uint32_t, std::vector<std::byte>& mine) { mine.resize(mine.size() - cut); });
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(*outcome) << cut;
      EXPECT_EQ(outcome->error().code, ErrorCode::kUnavailable);
      EXPECT_NE(outcome->error().message.find("garbled"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ffrecord::client
