#include "server/service/read/run_plan.h"

#include <algorithm>

#include "libffrecord/source/coalesce.h"

namespace ffrecord::server {
namespace {

net::EntryStatus StatusOf(const net::BatchEntry& entry, std::span<const ExtentPtr> table,
                          const ClientSlab* slab) {
  if (entry.extent_index >= table.size() || !table[entry.extent_index])
    return net::EntryStatus::kNotHere;
  const Extent& extent = *table[entry.extent_index];
  if (entry.size_bytes > extent.size_bytes ||
      entry.offset_bytes > extent.size_bytes - entry.size_bytes)
    return net::EntryStatus::kOutOfRange;
  if (slab != nullptr && (entry.size_bytes > slab->size_bytes ||
                          entry.slab_offset_bytes > slab->size_bytes - entry.size_bytes))
    return net::EntryStatus::kOutOfRange;
  return net::EntryStatus::kOk;
}

void AddPiece(RunPlan& plan, std::uint32_t entry, std::uint64_t entry_offset,
              std::uint64_t run_offset, std::uint64_t size) {
  plan.pieces.push_back({entry, static_cast<std::uint32_t>(entry_offset),
                         static_cast<std::uint32_t>(run_offset), static_cast<std::uint32_t>(size)});
  ++plan.runs.back().piece_count;
}

// Adds a run of the extent that was added last.
void AddRun(RunPlan& plan, std::uint64_t offset, std::uint64_t size, bool continues) {
  plan.runs.push_back({&plan.extents.back(), offset, static_cast<std::uint32_t>(size),
                       static_cast<std::uint32_t>(plan.pieces.size()), 0, continues});
}

}  // namespace

RunPlan PlanBatch(std::span<const net::BatchEntry> entries, std::span<const ExtentPtr> table,
                  const ClientSlab* slab) {
  RunPlan plan;
  plan.statuses.reserve(entries.size());
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    plan.statuses.push_back(StatusOf(entries[i], table, slab));
    if (plan.statuses[i] == net::EntryStatus::kOk && entries[i].size_bytes > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](std::uint32_t i) {
    return std::pair(entries[i].extent_index, entries[i].offset_bytes);
  });

  CoalescedRead open;  // That of the last run, if more may be merged into it.
  bool is_open = false;
  for (const std::uint32_t i : order) {
    const net::BatchEntry& entry = entries[i];
    const ExtentPtr& extent = table[entry.extent_index];
    if (plan.extents.empty() || plan.extents.back() != extent) plan.extents.push_back(extent);
    const std::uint64_t begin = entry.offset_bytes;
    const std::uint64_t end = begin + entry.size_bytes;
    if (is_open && plan.runs.back().extent == &plan.extents.back() &&
        open.Absorb(begin, end, kDiskCoalescing)) {
      plan.runs.back().size_bytes = static_cast<std::uint32_t>(open.end_bytes - open.begin_bytes);
      AddPiece(plan, i, 0, begin - open.begin_bytes, entry.size_bytes);
      continue;
    }
    for (std::uint64_t at = begin; at < end; at += kDiskCoalescing.piece_bytes_max) {
      const std::uint64_t size = std::min(end - at, kDiskCoalescing.piece_bytes_max);
      AddRun(plan, at, size, at > begin);
      AddPiece(plan, i, at - begin, 0, size);
    }
    open = {begin, end};
    is_open =
        !(slab != nullptr && slab->mapped) && entry.size_bytes <= kDiskCoalescing.piece_bytes_max;
  }
  return plan;
}

}  // namespace ffrecord::server
