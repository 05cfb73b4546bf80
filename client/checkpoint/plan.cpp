#include "client/checkpoint/plan.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/utf8.h"
#include "libffrecord/format/checkpoint_values.h"

namespace ffrecord::client {
namespace {

Error Invalid(std::string_view key, const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "checkpoint: tensor " + std::string(key) + ": " + what};
}

// Describes `tensor` in `box`, in its place: a box is large to move.
Result<void> Describe(const TensorView& tensor, StoredBox& box) {
  if (tensor.key.empty() || tensor.key.size() > kCheckpointKeySizeMax ||
      !IsWellFormedUtf8(tensor.key))
    return Invalid(tensor.key.substr(0, 100), "a key is 1 to 4,096 bytes of UTF-8");
  const auto size = SizeOfBox(tensor.dtype, tensor.shape, tensor.offset, tensor.extent);
  if (!size) return Invalid(tensor.key, size.error().message);
  if (size.value() != tensor.data.size())
    return Invalid(tensor.key, "extent " + ShapeText(tensor.extent) + " of " + tensor.dtype +
                                   " takes " + std::to_string(size.value()) + " bytes, but " +
                                   std::to_string(tensor.data.size()) + " were given");
  box.key = tensor.key;
  box.dtype = tensor.dtype;
  box.shape = tensor.shape;
  box.offset = tensor.offset;
  box.extent = tensor.extent;
  box.size_bytes = size.value();
  return {};
}

// Appends tensors to the last segment, or to a new one.
class Placer {
 public:
  Placer(PartPlan& plan, std::uint64_t target) : plan_(plan), target_(target) {}

  void Place(std::size_t tensor, StoredBox& box, const std::byte* data) {
    if (box.size_bytes == 0) return;  // Nothing to store; segment and offset stay 0.
    std::uint64_t offset = NextOffset(box.size_bytes, data);
    const bool full = end_ > 0 && offset + box.size_bytes > target_;
    if (plan_.segments.empty() || full) {
      StartSegment();
      offset = NextOffset(box.size_bytes, data);
    }
    box.segment = static_cast<std::uint32_t>(plan_.part.segments.size() - 1);
    box.offset_bytes = offset;
    plan_.segments.back().push_back({offset, tensor});
    plan_.tensor_bytes += box.size_bytes;
    end_ = offset + box.size_bytes;
    plan_.part.segments.back().payload_size_bytes = AlignUp(end_, kSegmentAlignment);
  }

 private:
  std::uint64_t NextOffset(std::uint64_t size_bytes, const std::byte* data) const {
    if (size_bytes < kSegmentAlignment) return AlignUp(end_, kSegmentSmallAlignment);
    const std::uint64_t aligned = AlignUp(end_, kSegmentAlignment);
    if (size_bytes < kCongruentSizeMin) return aligned;
    const std::uint64_t phase = reinterpret_cast<std::uintptr_t>(data) % kSegmentAlignment;
    // Back to where the one before ended, if that leaves room.
    return aligned >= end_ + kSegmentAlignment - phase ? aligned - kSegmentAlignment + phase
                                                       : aligned + phase;
  }

  void StartSegment() {
    plan_.segments.emplace_back();
    plan_.part.segments.emplace_back();
    plan_.part.segments.back().id = Random<std::array<std::byte, 16>>();
    end_ = 0;
  }

  PartPlan& plan_;
  std::uint64_t target_;
  std::uint64_t end_ = 0;
};

// The large tensors first, then those of a page and more, then the small ones; each as they come.
std::vector<std::size_t> OrderOfPlaces(std::span<const StoredBox> boxes) {
  std::vector<std::size_t> order, middle, small;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::uint64_t size = boxes[i].size_bytes;
    (size >= kCongruentSizeMin ? order : size >= kSegmentAlignment ? middle : small).push_back(i);
  }
  order.insert(order.end(), middle.begin(), middle.end());
  order.insert(order.end(), small.begin(), small.end());
  return order;
}

bool IsBefore(const StoredBox* a, const StoredBox* b) {
  const int keys = a->key.compare(b->key);
  return keys != 0 ? keys < 0 : a->offset < b->offset;
}

// By merging the runs that are sorted already, each with its neighbour: the keys of a state are
// such runs, few and long.
void SortRuns(std::vector<StoredBox*>& order) {
  std::vector<std::ptrdiff_t> ends{0};
  while (ends.back() < std::ssize(order)) {
    const auto from = order.begin() + ends.back();
    ends.push_back(std::is_sorted_until(from, order.end(), IsBefore) - order.begin());
  }
  while (ends.size() > 2) {
    std::vector<std::ptrdiff_t> merged{0};
    for (std::size_t i = 1; i < ends.size(); i += 2) {
      const std::size_t last = std::min(i + 1, ends.size() - 1);
      std::inplace_merge(order.begin() + ends[i - 1], order.begin() + ends[i],
                         order.begin() + ends[last], IsBefore);
      merged.push_back(ends[last]);
    }
    ends = std::move(merged);
  }
}

// Sorts, and returns where each of them is now. By pointers, for a box is large to move.
std::vector<std::size_t> SortByKey(std::vector<StoredBox>& boxes) {
  std::vector<StoredBox*> order;
  order.reserve(boxes.size());
  for (StoredBox& box : boxes) order.push_back(&box);
  std::vector<std::size_t> places(boxes.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (std::is_sorted(order.begin(), order.end(), IsBefore)) return places;
  SortRuns(order);
  std::vector<StoredBox> sorted;
  sorted.reserve(boxes.size());
  for (StoredBox* const box : order) {
    places[static_cast<std::size_t>(box - boxes.data())] = sorted.size();
    sorted.push_back(std::move(*box));
  }
  boxes = std::move(sorted);
  return places;
}

// --- Boxes -------------------------------------------------------------------------------------

std::uint64_t Volume(std::span<const std::uint64_t> extent) {
  return std::accumulate(extent.begin(), extent.end(), std::uint64_t{1}, std::multiplies<>());
}

bool Overlap(const PlannedBox& a, const PlannedBox& b) {
  for (std::size_t d = 0; d < a.shape.size(); ++d)
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d])
      return false;
  return true;  // In every dimension; of 0-d boxes always.
}

std::string Describe(const PlannedBox& box) {
  return "the slice of rank " + std::to_string(box.rank) + " at " + ShapeText(box.offset) +
         " of extent " + ShapeText(box.extent);
}

std::string DescribeType(const PlannedBox& box) {
  return "rank " + std::to_string(box.rank) + " has " + std::string(box.dtype) + " " +
         ShapeText(box.shape);
}

// A sweep along the first dimension: only boxes that are still open there are compared.
Result<void> CheckOverlap(std::span<const PlannedBox* const> boxes) {
  const auto end_of = [](const PlannedBox& box) {
    return box.shape.empty() ? 1 : box.offset[0] + box.extent[0];
  };
  std::multiset<std::pair<std::uint64_t, const PlannedBox*>> open;
  for (const PlannedBox* const current : boxes) {
    const PlannedBox& box = *current;
    const std::uint64_t start = box.shape.empty() ? 0 : box.offset[0];
    while (!open.empty() && open.begin()->first <= start) open.erase(open.begin());
    for (const auto& [end, other] : open)
      if (Overlap(*other, box))
        return Invalid(box.key, Describe(*other) + " overlaps " + Describe(box) +
                                    "; each element is to be saved by one rank");
    open.emplace(end_of(box), current);
  }
  return {};
}

// The boxes of one tensor, sorted by offset.
Result<void> CheckTensor(std::span<const PlannedBox* const> boxes) {
  const PlannedBox& first = *boxes.front();
  std::uint64_t covered = 0;
  std::vector<const PlannedBox*> filled;
  for (const PlannedBox* const current : boxes) {
    const PlannedBox& box = *current;
    if (box.dtype != first.dtype || !std::ranges::equal(box.shape, first.shape))
      return Invalid(box.key, DescribeType(first) + ", " + DescribeType(box));
    const std::uint64_t volume = Volume(box.extent);
    covered += volume;
    if (volume > 0 && boxes.size() > 1) filled.push_back(current);
  }
  if (filled.size() > 1) FFR_TRY(CheckOverlap(filled));
  // Boxes inside the tensor that do not overlap leave no gap if their volumes add up to its own.
  const std::uint64_t whole = Volume(first.shape);
  if (covered != whole)
    return Invalid(first.key, "the ranks' slices cover " + std::to_string(covered) + " of " +
                                  std::to_string(whole) + " elements of shape " +
                                  ShapeText(first.shape) +
                                  "; each element is to be saved by one rank");
  return {};
}

struct TensorsOfBoxes {
  std::vector<std::size_t> tensor_of_box;
  TextIndex keys;  // Keys of the tensors, in the order of their first boxes.
};

// Ranks mostly have boxes of the same tensors in the same order: the key behind the one before is
// looked at first, and few have to be looked up.
TensorsOfBoxes GroupByKey(std::span<const PlannedBox> boxes) {
  TensorsOfBoxes found;
  found.tensor_of_box.reserve(boxes.size());
  // A rank seldom has two boxes of a tensor, and the others mostly have the same ones.
  const auto of_first = [&](const PlannedBox& box) { return box.rank == boxes.front().rank; };
  found.keys.Reserve(
      static_cast<std::size_t>(std::ranges::find_if_not(boxes, of_first) - boxes.begin()));
  std::size_t guess = 0;
  for (const PlannedBox& box : boxes) {
    if (guess >= found.keys.size() || found.keys[guess] != box.key)
      guess = found.keys.Add(box.key).index;
    found.tensor_of_box.push_back(guess++);
  }
  return found;
}

}  // namespace

std::string ShapeText(std::span<const std::uint64_t> sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + ")";
}

Result<PartPlan> PlanPart(std::uint64_t step, const AttemptId& attempt, std::uint32_t rank,
                          std::span<const TensorView> tensors, std::uint64_t segment_payload_target,
                          const KeptBoxes* kept, std::span<const BoxContent> contents) {
  PartPlan plan;
  plan.part.step = step;
  plan.part.attempt = attempt;
  plan.part.rank = rank;
  std::vector<StoredBox> boxes(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) FFR_TRY(Describe(tensors[i], boxes[i]));
  plan.part.has_contents = plan.part.has_digests = !contents.empty();
  for (std::size_t i = 0; i < contents.size(); ++i) {
    boxes[i].content = contents[i].content;
    boxes[i].digest = contents[i].digest;
  }
  if (kept != nullptr) plan.part.segments = kept->segments;

  Placer placer(plan, segment_payload_target);
  for (const std::size_t i : OrderOfPlaces(boxes)) {
    const auto place = kept != nullptr && !kept->places.empty() ? kept->places[i] : std::nullopt;
    if (!place) {
      placer.Place(i, boxes[i], tensors[i].data.data());
      continue;
    }
    boxes[i].segment = place->segment;
    boxes[i].offset_bytes = place->offset_bytes;
    plan.tensor_bytes += boxes[i].size_bytes;
  }

  plan.box_of_tensor = SortByKey(boxes);
  for (std::size_t i = 1; i < boxes.size(); ++i)
    if (boxes[i - 1].key == boxes[i].key && boxes[i - 1].offset == boxes[i].offset)
      return Invalid(boxes[i].key, "given twice at " + ShapeText(boxes[i].offset));
  plan.part.boxes = std::move(boxes);
  return plan;
}

std::vector<PlannedBox> BoxesOf(const PartManifest& part) {
  std::vector<PlannedBox> boxes;
  boxes.reserve(part.boxes.size());
  for (const StoredBox& box : part.boxes)
    boxes.push_back({box.key, box.dtype, box.shape, box.offset, box.extent, part.rank});
  return boxes;
}

Result<TextIndex> CheckBoxes(std::span<const PlannedBox> boxes) {
  TensorsOfBoxes found = GroupByKey(boxes);
  // The boxes of one tensor side by side: a counting sort.
  std::vector<std::size_t> ends(found.keys.size() + 1);
  for (const std::size_t tensor : found.tensor_of_box) ++ends[tensor + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<const PlannedBox*> sorted(boxes.size());
  std::vector<std::size_t> next(ends.begin(), ends.end() - 1);
  for (std::size_t i = 0; i < boxes.size(); ++i) sorted[next[found.tensor_of_box[i]]++] = &boxes[i];

  const auto before = [](const PlannedBox* a, const PlannedBox* b) {
    const auto order = std::lexicographical_compare_three_way(a->offset.begin(), a->offset.end(),
                                                              b->offset.begin(), b->offset.end());
    return order != 0 ? order < 0 : a->rank < b->rank;
  };
  for (std::size_t i = 0; i < found.keys.size(); ++i) {
    const auto tensor = std::span(sorted).subspan(ends[i], ends[i + 1] - ends[i]);
    if (!std::is_sorted(tensor.begin(), tensor.end(), before))
      std::sort(tensor.begin(), tensor.end(), before);
    FFR_TRY(CheckTensor(tensor));
  }
  return std::move(found.keys);
}

Result<void> CheckReferences(std::span<const std::string_view> keys, const TextIndex& saved) {
  for (const std::string_view key : keys)
    if (!saved.Find(key))
      return Error{ErrorCode::kInvalidArgument,
                   "checkpoint: the state-dict structure refers to tensor " + std::string(key) +
                       ", which no rank saves"};
  return {};
}

}  // namespace ffrecord::client
