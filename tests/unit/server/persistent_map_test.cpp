// Goal: a map with changes says what the map before and the changes say, and costs the changes; the
// map before stays as it is.
// Method: random changes, beside a std::map that takes the same ones; values that count how often
// they are copied.

#include "server/service/cluster/persistent_map.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "seed.h"

namespace ffrecord::server {
namespace {

using Map = PersistentMap<int>;
using Plain = std::map<std::string, int, std::less<>>;

class PersistentMapTest : public testing::Test {
 protected:
  std::string AnyName() { return "name/" + std::to_string(random_() % 2000); }
  // Of a few names, or of many at a time.
  Map::Changes AnyChanges() {
    Map::Changes changes;
    const std::size_t count = random_() % 20 == 0 ? 700 : random_() % 4;
    const bool removes = random_() % 2 == 0;
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_put = random_() % (removes ? 5 : 2) == 0;
      changes[AnyName()] = is_put ? std::optional(++last_value_) : std::nullopt;
    }
    return changes;
  }
  static void Apply(const Map::Changes& changes, Plain& plain) {
    for (const auto& [name, value] : changes) {
      plain.erase(name);
      if (value) plain.emplace(name, *value);
    }
  }
  static Plain Told(Map::Iterator at, const Map::Iterator& end) {
    Plain told;
    for (; at != end; ++at) told.emplace_hint(told.end(), at->first, at->second);
    return told;
  }
  void ExpectSame(const Map& map, const Plain& plain) {
    ASSERT_EQ(map.size(), plain.size());
    EXPECT_EQ(map.empty(), plain.empty());
    ASSERT_EQ(Told(map.begin(), map.end()), plain);
    const std::string name = AnyName();
    const auto found = plain.find(name);
    const int* const value = map.Find(name);
    ASSERT_EQ(value != nullptr, found != plain.end());
    if (value != nullptr) {
      EXPECT_EQ(*value, found->second);
    }
    EXPECT_EQ(Told(map.lower_bound(name), map.end()), Plain(plain.lower_bound(name), plain.end()));
    EXPECT_EQ(Told(map.upper_bound(name), map.end()), Plain(plain.upper_bound(name), plain.end()));
  }

  std::mt19937 random_{test::Seed()};
  int last_value_ = 0;
};

TEST_F(PersistentMapTest, ItSaysWhatAMapWithTheSameChangesSays) {
  Map map;
  Plain plain;
  for (int i = 0; i < 300; ++i) {
    const Map before = map;
    const Plain plain_before = plain;
    const auto changes = AnyChanges();
    Apply(changes, plain);
    map = before.With(changes);
    ExpectSame(map, plain);
    ExpectSame(before, plain_before);
  }
}

TEST_F(PersistentMapTest, DifferencesAreThoseOfAllEntries) {
  std::vector<Map> maps(1);
  std::vector<Plain> plains(1);
  for (int i = 0; i < 100; ++i) {
    const auto changes = AnyChanges();
    maps.push_back(maps.back().With(changes));
    Apply(changes, plains.emplace_back(plains.back()));
  }
  for (int i = 0; i < 300; ++i) {
    const std::size_t from = random_() % maps.size(), to = random_() % maps.size();
    Plain made = plains[from];
    std::string last;
    Map::ForEachDifference(maps[from], maps[to],
                           [&](const std::string& name, const int* old, const int* now) {
                             EXPECT_LT(last, name);
                             last = name;
                             const auto was = plains[from].find(name);
                             ASSERT_EQ(old != nullptr, was != plains[from].end()) << name;
                             if (old != nullptr) {
                               EXPECT_EQ(*old, was->second);
                             }
                             made.erase(name);
                             if (now != nullptr) made.emplace(name, *now);
                           });
    EXPECT_EQ(made, plains[to]);
  }
}

// So one publication among many names costs the same as among few.
TEST_F(PersistentMapTest, AChangeCopiesNoOtherValueAndIsTheOnlyDifference) {
  static int copies;
  struct Counted {
    Counted() = default;
    Counted(const Counted& /*other*/) { ++copies; }
    Counted(Counted&&) = default;
    Counted& operator=(const Counted&) = delete;
    Counted& operator=(Counted&&) = default;
  };
  PersistentMap<Counted>::Changes all;
  for (int i = 0; i < 20'000; ++i) all[std::to_string(i)].emplace();
  const PersistentMap<Counted> before(std::move(all));
  copies = 0;

  PersistentMap<Counted>::Changes change;
  change["12345x"].emplace();
  change["777"].emplace();
  change["4711"] = std::nullopt;
  const auto after = before.With(std::move(change));

  EXPECT_EQ(copies, 0);
  EXPECT_EQ(after.size(), before.size());
  std::vector<std::string> different;
  PersistentMap<Counted>::ForEachDifference(
      before, after,
      [&](const std::string& name, const auto*, const auto*) { different.push_back(name); });
  EXPECT_EQ(different, (std::vector<std::string>{"12345x", "4711", "777"}));
}

}  // namespace
}  // namespace ffrecord::server
