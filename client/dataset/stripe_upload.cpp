// Files whose extents go to a cluster in stripes.

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "client/dataset/stripe_parity.h"
#include "client/dataset/upload.h"
#include "libffrecord/format/slot_map.h"

namespace ffrecord::client {
namespace {

// Each holds its parity in memory.
constexpr std::size_t kStripesAtOnce = 2;

}  // namespace

Result<DatasetManifest> Upload::PutManifest(std::span<const LocalFile> files,
                                            const Progress& progress) {
  DatasetManifest manifest;
  manifest.replicas = durability_.replicas;
  manifest.code = durability_.code;
  if (!manifest.has_code()) {
    manifest.files = FFR_TRY(PutFiles(files, progress));
    return manifest;
  }
  Plan plan = FFR_TRY(MakePlan(files));
  const std::size_t data = manifest.code.data, parity = manifest.code.parity;
  const std::size_t stripe_count = (plan.extents.size() + data - 1) / data;
  const std::uint32_t parity_file = next_file_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < stripe_count * parity; ++i)
    manifest.parity.push_back(
        {MakeExtentId(id_, parity_file, static_cast<std::uint32_t>(i)), 0, 0});
  std::atomic<std::size_t> next{0};
  const Work put_some = [&](const SideBySide& others, const Sent& sent_more) -> Result<void> {
    for (std::size_t i; !others.failed() && (i = next++) < stripe_count;)
      FFR_TRY(PutStripe(plan, i, std::span(manifest.parity).subspan(i * parity, parity), others,
                        sent_more));
    return {};
  };
  FFR_TRY(PutAll(std::min(stripe_count, kStripesAtOnce), progress, put_some));
  manifest.files = std::move(plan.entries);
  return manifest;
}

Result<void> Upload::PutStripe(Plan& plan, std::size_t stripe, std::span<ManifestExtent> parity,
                               const SideBySide& others, const Sent& sent_more) {
  const std::size_t data = durability_.code.data;
  const auto places =
      std::span(plan.extents)
          .subspan(stripe * data, std::min(data, plan.extents.size() - stripe * data));
  std::uint64_t size_bytes = 0;
  for (const Plan::Place& place : places)
    size_bytes = std::max(size_bytes, ExtentOf(plan, place).size_bytes);

  StripeParity sums(durability_.code, size_bytes);
  std::set<std::string> domains;
  StripeSpot spot{SlotOf(parity.front().id), 0, places.size() + parity.size(), &domains};
  for (const Plan::Place& place : places) {
    ManifestFile& entry = plan.entries[place.file];
    const SourcedExtent extent = ExtentOf(plan, place);
    const Source source =
        FFR_TRY(ReadSource(plan.files[place.file].path, entry.size_bytes, others));
    entry.extents[place.extent] =
        FFR_TRY(PutExtent(extent, sums.Begin(extent, source), sent_more, &spot));
    FFR_TRY(sums.End());
    ++spot.member;
  }
  for (std::size_t row = 0; row < parity.size(); ++row, ++spot.member) {
    const auto bytes = sums.row(row);
    const Source source = [bytes](std::uint64_t offset_bytes,
                                  std::span<std::byte> room) -> Result<std::span<const std::byte>> {
      return bytes.subspan(offset_bytes,
                           std::min<std::uint64_t>(room.size(), bytes.size() - offset_bytes));
    };
    parity[row] = FFR_TRY(PutExtent(
        {parity[row].id, 0, bytes.size()}, source, [](std::uint64_t) {}, &spot));
  }
  return {};
}

}  // namespace ffrecord::client
