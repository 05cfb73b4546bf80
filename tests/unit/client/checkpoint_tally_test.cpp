// Goal: the sums of the ranks are zero exactly where their boxes, looked at one by one, are a
// checkpoint of what the tree refers to.
// Method: random tensors, cut at random and dealt to ranks, and then spoilt in each way; the
// verdict of the sums against that of CheckBoxes() and CheckReferences(), which see all boxes.

#include "client/checkpoint/tally.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "seed.h"

namespace ffrecord::client {
namespace {

using Shape = std::vector<std::uint64_t>;

// What a PlannedBox borrows.
struct OwnBox {
  std::string key;
  std::string dtype;
  Shape shape;
  Shape offset;
  Shape extent;
  std::uint32_t rank = 0;
};

struct Scene {
  std::vector<OwnBox> boxes;
  std::vector<std::string> references;

  std::vector<PlannedBox> Planned() const {
    std::vector<PlannedBox> planned;
    for (const OwnBox& box : boxes)
      planned.push_back({box.key, box.dtype, box.shape, box.offset, box.extent, box.rank});
    return planned;
  }
  std::vector<std::string_view> Keys() const { return {references.begin(), references.end()}; }

  BoxTally Sum() const { return SumOf(TallyBoxes(Planned(), Keys())); }

  // As all boxes in one place show it. Tensors to which nothing refers are no fault, but no rank
  // can tell by sums.
  bool IsWhole() const {
    const auto planned = Planned();
    const auto saved = CheckBoxes(planned);
    if (!saved || !CheckReferences(Keys(), saved.value())) return false;
    return std::ranges::all_of(boxes, [&](const OwnBox& box) {
      return std::ranges::find(references, box.key) != references.end();
    });
  }
};

class BoxTallyTest : public testing::Test {
 protected:
  std::uint64_t Below(std::uint64_t end) { return random_() % end; }

  // Cuts a box in two along a dimension, again and again.
  void Cut(std::vector<OwnBox>& boxes, const OwnBox& box, int cuts) {
    const std::size_t d = box.extent.empty() ? 0 : Below(box.extent.size());
    if (cuts == 0 || box.extent.empty() || box.extent[d] < 2) {
      boxes.push_back(box);
      boxes.back().rank = static_cast<std::uint32_t>(Below(4));
      return;
    }
    OwnBox first = box;
    OwnBox second = box;
    first.extent[d] = 1 + Below(box.extent[d] - 1);
    second.offset[d] += first.extent[d];
    second.extent[d] -= first.extent[d];
    Cut(boxes, first, cuts - 1);
    Cut(boxes, second, cuts - 1);
  }

  Scene WholeScene() {
    Scene scene;
    const std::uint64_t count = 1 + Below(6);
    for (std::uint64_t i = 0; i < count; ++i) {
      OwnBox box{"t" + std::to_string(i), Below(2) == 0 ? "float32" : "int32", {}, {}, {}, 0};
      for (std::uint64_t d = Below(4); d > 0; --d) box.shape.push_back(1 + Below(5));
      box.offset.assign(box.shape.size(), 0);
      box.extent = box.shape;
      Cut(scene.boxes, box, static_cast<int>(Below(4)));
      scene.references.insert(scene.references.end(), 1 + Below(2), box.key);
    }
    std::shuffle(scene.boxes.begin(), scene.boxes.end(), random_);
    return scene;
  }

  // One change, which may leave the scene whole: a box of another type may be all there is.
  void Spoil(Scene& scene) {
    OwnBox& box = scene.boxes[Below(scene.boxes.size())];
    const std::size_t d = box.extent.empty() ? 0 : Below(box.extent.size());
    switch (Below(9)) {
      case 0:
        scene.boxes.erase(scene.boxes.begin() + std::ptrdiff_t(Below(scene.boxes.size())));
        break;
      case 1:
        scene.boxes.push_back(OwnBox(box));
        break;
      case 2:
        box.dtype = "float64";
        break;
      case 3:
        if (!box.shape.empty()) ++box.shape[d];
        break;
      case 4:
        if (!box.shape.empty() && box.extent[d] > 1) --box.extent[d];
        break;
      case 5:
        if (!box.shape.empty() && box.offset[d] > 0) --box.offset[d];
        break;
      case 6:
        scene.references.push_back("ghost");
        break;
      case 7:
        box.key = "t0";
        break;
      default: {  // Every tensor twice, as if replicas did not share the work.
        auto twice = scene.boxes;
        scene.boxes.insert(scene.boxes.end(), twice.begin(), twice.end());
      }
    }
  }

  std::mt19937_64 random_{test::Seed()};
};

TEST_F(BoxTallyTest, SumsAreZeroExactlyWhereBoxesAreACheckpoint) {
  int whole = 0;
  for (int round = 0; round < 20'000; ++round) {
    Scene scene = WholeScene();
    EXPECT_TRUE(scene.Sum().IsZero());
    for (std::uint64_t spoilt = 1 + Below(3); spoilt > 0 && !scene.boxes.empty(); --spoilt)
      Spoil(scene);
    whole += scene.IsWhole() ? 1 : 0;
    EXPECT_EQ(scene.Sum().IsZero(), scene.IsWhole()) << "round " << round;
  }
  EXPECT_GT(whole, 100);  // Some changes change nothing.
}

TEST_F(BoxTallyTest, TheSumOfRanksIsThatOfAllBoxesByBucket) {
  const Scene scene = WholeScene();
  BoxTallies sums{};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto mine = scene.Planned();
    std::erase_if(mine, [&](const PlannedBox& box) { return box.rank != rank; });
    const auto tallies =
        TallyBoxes(mine, rank == 0 ? scene.Keys() : std::vector<std::string_view>());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += tallies[i];
  }
  EXPECT_EQ(sums, TallyBoxes(scene.Planned(), scene.Keys()));
  EXPECT_TRUE(std::ranges::all_of(sums, &BoxTally::IsZero));
}

TEST_F(BoxTallyTest, OnlyTheBucketOfATensorThatIsWrongIsNotZero) {
  Scene scene = WholeScene();
  scene.references.emplace_back("ghost");
  const auto tallies = TallyBoxes(scene.Planned(), scene.Keys());
  for (std::size_t i = 0; i < tallies.size(); ++i)
    EXPECT_EQ(tallies[i].IsZero(), i != BucketOf("ghost"));
}

// Boxes without elements prove nothing by their sums.
TEST_F(BoxTallyTest, ABoxWithoutElementsIsLookedAtUnlessItIsAllThereIs) {
  Scene scene{{{"t", "float32", {0, 3}, {0, 0}, {0, 3}, 1}}, {"t"}};
  EXPECT_TRUE(scene.Sum().IsZero());
  scene.boxes.push_back(OwnBox(scene.boxes.front()));
  EXPECT_FALSE(scene.Sum().IsZero());
  scene.boxes = {{"t", "float32", {4}, {0}, {4}, 0}, {"t", "int32", {4}, {2}, {0}, 1}};
  EXPECT_FALSE(scene.Sum().IsZero());
}

}  // namespace
}  // namespace ffrecord::client
