// Goal: a plan reads every wanted byte, each entry's pieces in order, neighbours together, and
// refuses only the entries that are wrong.
// Method: small examples by hand; then random batches, whose plans are carried out on an array.

#include "server/service/read/run_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "libffrecord/source/coalesce.h"
#include "seed.h"

namespace ffrecord::server {
namespace {

using net::BatchEntry;
using net::EntryStatus;

ExtentPtr MakeExtent(std::uint64_t size_bytes) {
  auto extent = std::make_shared<Extent>();
  extent->size_bytes = size_bytes;
  return extent;
}

TEST(RunPlanTest, EntriesThatAreWrongHaveAStatusAndNoRun) {
  const std::vector<ExtentPtr> table{MakeExtent(100), nullptr};
  const std::vector<BatchEntry> entries{
      {0, 0, 100, 0}, {1, 0, 1, 0},          {2, 0, 1, 0},          {0, 100, 1, 0}, {0, 1, 100, 0},
      {0, 99, 1, 0},  {0, 0xFFFFFFFF, 2, 0}, {0, 0, 0xFFFFFFFF, 0}, {0, 100, 0, 0}};

  const RunPlan plan = PlanBatch(entries, table);

  EXPECT_EQ(plan.statuses,
            (std::vector{EntryStatus::kOk, EntryStatus::kNotHere, EntryStatus::kNotHere,
                         EntryStatus::kOutOfRange, EntryStatus::kOutOfRange, EntryStatus::kOk,
                         EntryStatus::kOutOfRange, EntryStatus::kOutOfRange, EntryStatus::kOk}));
  ASSERT_EQ(plan.runs.size(), 1U);
  EXPECT_EQ(plan.runs[0].piece_count, 2U);
}

TEST(RunPlanTest, NeighboursAreReadTogetherAndLargeEntriesInPieces) {
  const std::vector<ExtentPtr> table{MakeExtent(64 << 20), MakeExtent(64 << 20)};
  const auto gap = static_cast<std::uint32_t>(kDiskCoalescing.gap_bytes_max);
  const std::vector<BatchEntry> entries{
      {0, 1000 + gap, 10, 0},      // Merged with the one before it on the disk,
      {0, 990, 10, 0},             // which comes later in the request.
      {0, 1011 + 2 * gap, 10, 0},  // One byte too far.
      {1, 990, 10, 0},             // Another extent.
      {1, 1 << 20, (5 << 20) / 2, 0},
  };

  const RunPlan plan = PlanBatch(entries, table);

  ASSERT_EQ(plan.runs.size(), 6U);
  EXPECT_EQ(plan.runs[0].offset_bytes, 990U);
  EXPECT_EQ(plan.runs[0].size_bytes, 20 + gap);
  EXPECT_EQ(plan.runs[0].piece_count, 2U);
  EXPECT_EQ(plan.runs[1].size_bytes, 10U);
  EXPECT_EQ(plan.runs[3].size_bytes, 1U << 20);
  EXPECT_FALSE(plan.runs[3].continues);
  EXPECT_TRUE(plan.runs[4].continues);
  EXPECT_TRUE(plan.runs[5].continues);
  EXPECT_EQ(plan.runs[5].size_bytes, 1U << 19);
}

TEST(RunPlanTest, RandomPlansDeliverEveryByteInOrder) {
  std::mt19937 random(test::Seed());
  const std::uint32_t size = 3 << 20;
  const std::vector<ExtentPtr> table{MakeExtent(size), MakeExtent(size)};
  for (int round = 0; round < 200; ++round) {
    std::vector<BatchEntry> entries(random() % 60 + 1);
    for (auto& entry : entries) {
      entry.extent_index = static_cast<std::uint32_t>(random() % 2);
      entry.offset_bytes = static_cast<std::uint32_t>(random() % size);
      const std::uint32_t most = random() % 8 == 0 ? size : 20'000;
      entry.size_bytes =
          static_cast<std::uint32_t>(random() % (std::min(most, size - entry.offset_bytes) + 1));
    }

    const RunPlan plan = PlanBatch(entries, table);

    std::vector<std::uint32_t> delivered(entries.size());
    for (std::size_t r = 0; r < plan.runs.size(); ++r) {
      const ReadRun& run = plan.runs[r];
      ASSERT_LE(run.size_bytes, kDiskCoalescing.merged_bytes_max);
      ASSERT_LE(run.offset_bytes + run.size_bytes, size);
      for (std::uint32_t i = run.first_piece; i < run.first_piece + run.piece_count; ++i) {
        const RunPiece& piece = plan.pieces[i];
        const BatchEntry& entry = entries[piece.entry];
        ASSERT_EQ(*run.extent, table[entry.extent_index]);
        ASSERT_EQ(piece.entry_offset_bytes, delivered[piece.entry]);
        ASSERT_EQ(run.continues, piece.entry_offset_bytes > 0);
        ASSERT_EQ(run.offset_bytes + piece.run_offset_bytes,
                  std::uint64_t{entry.offset_bytes} + piece.entry_offset_bytes);
        ASSERT_LE(piece.run_offset_bytes + piece.size_bytes, run.size_bytes);
        delivered[piece.entry] += piece.size_bytes;
      }
      if (run.continues) {
        ASSERT_EQ(plan.pieces[run.first_piece - 1].entry, plan.pieces[run.first_piece].entry);
      }
    }
    for (std::size_t i = 0; i < entries.size(); ++i) ASSERT_EQ(delivered[i], entries[i].size_bytes);
  }
}

}  // namespace
}  // namespace ffrecord::server
