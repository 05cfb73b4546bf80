#include "client/checkpoint/delta.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>
#include <utility>

#include "client/checkpoint/run_line.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/tensor_digests.h"
#include "libffrecord/base/side_by_side.h"

namespace ffrecord::client {
namespace {

constexpr std::size_t kThreadsMax = 4;

// The box of `base` at the same place of the same tensor; null if there is none.
const StoredBox* SameBox(const PartManifest& base, const TensorView& tensor) {
  const auto found =
      std::lower_bound(base.boxes.begin(), base.boxes.end(), tensor,
                       [](const StoredBox& box, const TensorView& wanted) {
                         return std::tie(box.key, box.offset) < std::tie(wanted.key, wanted.offset);
                       });
  if (found == base.boxes.end() || found->key != tensor.key || found->offset != tensor.offset ||
      found->extent != tensor.extent || found->shape != tensor.shape ||
      found->dtype != tensor.dtype || found->size_bytes != tensor.data.size())
    return nullptr;
  return &*found;
}

// Leaves out the segments for which `is_kept` is false, and what lies in them.
KeptBoxes OnlyThose(const KeptBoxes& all, const std::vector<bool>& is_kept) {
  KeptBoxes kept;
  std::vector<std::uint32_t> new_index(all.segments.size());
  for (std::size_t i = 0; i < all.segments.size(); ++i) {
    new_index[i] = static_cast<std::uint32_t>(kept.segments.size());
    if (!is_kept[i]) continue;
    kept.segments.push_back(all.segments[i]);
    kept.segments_before.push_back(all.segments_before[i]);
  }
  for (const auto& place : all.places) {
    const bool stays = place && is_kept[place->segment];
    kept.places.push_back(
        stays ? std::optional(KeptBoxes::Place{new_index[place->segment], place->offset_bytes})
              : std::nullopt);
  }
  return kept;
}

// `room` is kept from one to the next. One row may be as large as the tensor: by pieces, so that a
// piece is in the cache when it is hashed again.
Result<BoxContent> ContentOf(const TensorView& tensor, bool with_digest,
                             std::vector<std::byte>& room) {
  const std::uint64_t size = tensor.data.size();
  if (tensor.fetch) room.resize(std::min<std::uint64_t>(size, kDeltaBoxSize));
  BoxContent found;
  Xxh3Stream content;
  for (std::uint64_t done = 0; done < size; done += std::min(kDeltaBoxSize, size - done)) {
    auto piece = tensor.data.subspan(done, std::min(kDeltaBoxSize, size - done));
    if (tensor.fetch) {
      const auto fetched = std::span(room).first(piece.size());
      FFR_TRY(tensor.fetch(tensor.fetch_offset_bytes + done, fetched));
      piece = fetched;
    }
    content.Update(piece);
    if (with_digest) found.digest ^= DigestOf(tensor, done, piece);
  }
  found.content = content.Finish();
  return found;
}

}  // namespace

std::vector<TensorView> CutIntoRows(std::span<const TensorView> tensors) {
  std::vector<TensorView> cut;
  cut.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    const std::uint64_t rows = tensor.extent.empty() ? 1 : tensor.extent[0];
    const std::uint64_t row_size = rows == 0 ? 0 : tensor.data.size() / rows;
    // A tensor whose sizes do not add up is refused when it is planned.
    if (tensor.data.size() <= kDeltaBoxSize || rows == 1 || row_size * rows != tensor.data.size() ||
        tensor.offset.empty()) {
      cut.push_back(tensor);
      continue;
    }
    const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, kDeltaBoxSize / row_size);
    for (std::uint64_t row = 0; row < rows; row += rows_at_once) {
      const std::uint64_t count = std::min(rows_at_once, rows - row);
      TensorView& box = cut.emplace_back(tensor);
      box.offset[0] += row;
      box.extent[0] = count;
      if (tensor.fetch) {
        box.data = {static_cast<const std::byte*>(nullptr), count * row_size};
        box.fetch_offset_bytes += row * row_size;
      } else {
        box.data = tensor.data.subspan(row * row_size, count * row_size);
      }
    }
  }
  return cut;
}

Result<std::vector<BoxContent>> ContentsOf(std::span<const TensorView> tensors, bool with_digests) {
  std::vector<BoxContent> contents(tensors.size());
  std::atomic<std::size_t> next{0};
  const std::size_t threads =
      std::min<std::size_t>(kThreadsMax, std::max(1U, std::thread::hardware_concurrency()));
  FFR_TRY(SideBySide::Run(threads, [&](const SideBySide&) -> Result<void> {
    std::vector<std::byte> fetched;
    for (std::size_t i; (i = next++) < tensors.size();) {
      auto content = ContentOf(tensors[i], with_digests, fetched);
      if (!content) return std::move(content).error();
      contents[i] = content.value();
    }
    return {};
  }));
  return contents;
}

Result<std::vector<std::array<std::byte, 16>>> ContentDigests(std::span<const TensorView> tensors) {
  const auto contents = FFR_TRY(ContentsOf(tensors, false));
  std::vector<std::array<std::byte, 16>> digests;
  for (const BoxContent& each : contents) digests.push_back(each.content);
  return digests;
}

std::optional<PartManifest> FindBase(const CheckpointTarget& target, std::uint32_t rank) {
  auto steps = target.Steps();
  const auto line = LineOf(target);
  if (!steps || !line) return std::nullopt;
  std::ranges::reverse(steps.value());
  for (const std::uint64_t step : steps.value()) {
    const auto files = target.Open(step);
    const auto root = files ? ReadRootManifest(*files.value(), step) : files.error();
    if (!root && IsDamage(root.error())) continue;
    if (root && !line.value().Has(root.value().generation, step)) continue;
    if (!root || rank >= root.value().parts.size()) return std::nullopt;
    auto part = ReadPartManifest(*files.value(), root.value(), rank);
    if (!part && IsDamage(part.error())) continue;
    if (!part || !part.value().has_contents) return std::nullopt;
    return std::move(part).value();
  }
  return std::nullopt;
}

KeptBoxes UnchangedBoxes(const PartManifest& base, std::span<const TensorView> tensors,
                         std::span<const BoxContent> contents) {
  KeptBoxes kept;
  kept.segments = base.segments;
  std::vector<std::uint64_t> used(base.segments.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& place = kept.places.emplace_back();
    const StoredBox* box = SameBox(base, tensors[i]);
    if (box == nullptr || box->size_bytes == 0 || box->content != contents[i].content) continue;
    place = KeptBoxes::Place{box->segment, box->offset_bytes};
    used[box->segment] += box->size_bytes;
  }
  std::vector<bool> is_kept;
  for (std::uint32_t i = 0; i < base.segments.size(); ++i) {
    kept.segments_before.push_back(i);
    is_kept.push_back(used[i] > 0 && used[i] >= base.segments[i].payload_size_bytes / 2);
  }
  return OnlyThose(kept, is_kept);
}

Result<DeltaPlan> PlanDelta(CheckpointAttempt& attempt, const std::optional<PartManifest>& base,
                            const PartPlan& whole, std::span<const TensorView> tensors) {
  const std::uint32_t rank = whole.part.rank;
  const auto contents = FFR_TRY(ContentsOf(tensors, true));
  KeptBoxes kept;
  DeltaPlan plan;
  if (base) {
    kept = UnchangedBoxes(*base, tensors, contents);
    std::vector<bool> is_kept;
    for (const std::uint32_t before : kept.segments_before) {
      const auto count = static_cast<std::uint32_t>(plan.files.size());
      auto file = FFR_TRY(attempt.Keep(*base, before, SegmentName(rank, count)));
      is_kept.push_back(file.has_value());
      if (file) plan.files.push_back(std::move(*file));
    }
    if (!plan.files.empty() && !FFR_TRY(attempt.IsKeptFrom(base->step, base->attempt))) {
      is_kept.assign(is_kept.size(), false);
      plan.files.clear();
    }
    kept = OnlyThose(kept, is_kept);
  }
  plan.part = FFR_TRY(PlanPart(whole.part.step, whole.part.attempt, rank, tensors,
                               kDeltaSegmentTarget, &kept, contents));
  return plan;
}

}  // namespace ffrecord::client
