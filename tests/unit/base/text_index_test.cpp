// Goal: texts are numbered in the order in which they first come, and found again, however many
// there are and whatever their hashes share.
// Method: random texts, many of them alike, against a map of the standard library.

#include "libffrecord/base/text_index.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
#include <unordered_map>

#include "seed.h"

namespace ffrecord {
namespace {

TEST(TextIndexTest, AnEmptyOneFindsNothing) {
  TextIndex index;
  EXPECT_FALSE(index.Find(""));
  index.Reserve(3);
  EXPECT_FALSE(index.Find("a"));
  EXPECT_EQ(index.size(), 0U);
}

TEST(TextIndexTest, RandomTextsAreNumberedAsAMapNumbersThem) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 20; ++round) {
    TextIndex index;
    if (round % 2 == 0) index.Reserve(random() % 3000);
    std::deque<std::string> texts;  // Lends them; its elements stay in place.
    std::unordered_map<std::string, std::size_t> model;
    for (int i = 0; i < 5000; ++i) {
      const std::string& text = texts.emplace_back(std::to_string(random() % 3000));
      const auto [expected, is_new] = model.try_emplace(text, model.size());

      const auto place = index.Add(text);

      ASSERT_EQ(place.index, expected->second);
      ASSERT_EQ(place.is_new, is_new);
      ASSERT_EQ(index[place.index], text);
    }
    ASSERT_EQ(index.size(), model.size());
    for (int i = 0; i < 4000; ++i) {
      const auto found = index.Find(std::to_string(i));
      const auto expected = model.find(std::to_string(i));
      ASSERT_EQ(found.has_value(), expected != model.end());
      if (found) {
        ASSERT_EQ(*found, expected->second);
      }
    }
  }
}

}  // namespace
}  // namespace ffrecord
