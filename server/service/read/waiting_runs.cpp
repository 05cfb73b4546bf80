#include "server/service/read/waiting_runs.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {

WaitingRuns::OfDisk& WaitingRuns::Of(const Disk* disk) {
  const auto of = std::ranges::find(disks_, disk, &OfDisk::disk);
  return of != disks_.end() ? *of : disks_.emplace_back(OfDisk{.disk = disk});
}

void WaitingRuns::Add(const ExtentPtr& extent, WaitingRun run) {
  FFR_ASSERT(extent->disk != nullptr);
  OfDisk& of = Of(extent->disk);
  const auto [place, is_new] = of.places.try_emplace(extent);
  if (is_new) place->second = of.files.insert(of.files.end(), File{.extent = extent});
  place->second->runs.push_back(std::move(run));
  ++count_;
  OpenNext(of);
}

void WaitingRuns::OpenNext(OfDisk& of) {
  if (of.opening_count > 0) return;
  std::vector<ExtentPtr> list;
  for (auto file = of.files.begin(); file != of.files.end() && list.size() < kListMax; ++file) {
    file->is_opening = true;
    list.push_back(file->extent);
  }
  if (list.empty()) return;
  of.opening_count = list.size();
  open_(std::move(list));
}

std::vector<WaitingRun> WaitingRuns::TakeOpened(const ExtentPtr& extent) {
  OfDisk& of = Of(extent->disk);
  const auto place = of.places.find(extent);
  FFR_ASSERT(place != of.places.end());
  const auto file = place->second;
  FFR_ASSERT(file->is_opening);
  auto runs = std::move(file->runs);
  of.places.erase(place);
  of.files.erase(file);
  count_ -= static_cast<std::uint32_t>(runs.size());
  --of.opening_count;
  OpenNext(of);
  return runs;
}

void WaitingRuns::TakeIf(const std::function<bool(const WaitingRun&)>& is_meant,
                         const std::function<void(const Extent&, const WaitingRun&)>& take) {
  if (count_ == 0) return;
  for (OfDisk& of : disks_)
    for (auto file = of.files.begin(); file != of.files.end();) {
      std::erase_if(file->runs, [&](const WaitingRun& run) {
        if (!is_meant(run)) return false;
        take(*file->extent, run);
        --count_;
        return true;
      });
      // One that is being opened is reported all the same.
      if (!file->runs.empty() || file->is_opening) {
        ++file;
      } else {
        of.places.erase(file->extent);
        file = of.files.erase(file);
      }
    }
}

}  // namespace ffrecord::server
