// Goal: a look-up finds what is in the index and nothing else, whatever changes beside it.
// Method: a model in a map; then threads that look up while others put and take out.

#include "server/storage/extent_index.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "seed.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {
namespace {

ExtentPtr Made(const ExtentId& id, std::uint64_t size_bytes) {
  auto extent = std::make_shared<Extent>();
  extent->id = id;
  extent->size_bytes = size_bytes;
  return extent;
}

TEST(ExtentIndexTest, HoldsWhatAMapHolds) {
  std::mt19937 random(test::Seed());
  ExtentIndex index;
  index.Reserve(100);
  std::map<ExtentId, ExtentPtr> model;
  for (std::uint32_t i = 0; i < 20'000; ++i) {
    const auto id = MakeExtentId(random() % 40, static_cast<std::uint32_t>(random() % 40), 0);
    const auto known = model.find(id);
    ASSERT_EQ(index.Find(id), known == model.end() ? nullptr : known->second);
    if (random() % 3 == 0) {
      ASSERT_EQ(index.Take(id), known == model.end() ? nullptr : known->second);
      model.erase(id);
    } else {
      index.Put(model[id] = Made(id, i));
    }
  }
  std::map<ExtentId, ExtentPtr> seen;
  index.ForEach(
      [&](const ExtentPtr& extent) { EXPECT_TRUE(seen.emplace(extent->id, extent).second); });
  EXPECT_EQ(seen, model);
}

TEST(ExtentIndexTest, LookUpsAndChangesAtOnceSeeWholeExtents) {
  ExtentIndex index;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      for (std::uint32_t at = 0; !is_over; ++at) {
        const auto id = MakeExtentId(1, at % 500, 0);
        const ExtentPtr found = index.Find(id);
        if (found) {
          ASSERT_EQ(found->id, id);
        }
        if (at % 500 == 0) index.ForEach([](const ExtentPtr& extent) { ASSERT_TRUE(extent); });
      }
    });
  for (std::uint32_t round = 0; round < 40; ++round) {
    for (std::uint32_t at = 0; at < 500; ++at) index.Put(Made(MakeExtentId(1, at, 0), round));
    for (std::uint32_t at = 0; at < 500; ++at)
      ASSERT_EQ(index.Take(MakeExtentId(1, at, 0))->size_bytes, round);
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace ffrecord::server
