#include "server/service/cluster/extent_sweepers.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {

ExtentSweepers::ExtentSweepers(NodeExtents& extents, std::function<void(TaskThreads::Task)> post)
    : extents_(extents), post_(std::move(post)) {
  sweepers_.push_back(std::make_unique<Sweeper>(nullptr));
  for (const auto& disk : extents.store().disks())
    sweepers_.push_back(std::make_unique<Sweeper>(disk.get()));
}

void ExtentSweepers::Stop() {
  for (const auto& sweeper : sweepers_) sweeper->thread.Stop();
}

void ExtentSweepers::Sweep(bool is_frozen) {
  if (!extents_.has_dropped() || is_taking_back_) return;
  if (is_frozen) return TakeBack();
  for (const auto& sweeper : sweepers_) {
    if (!is_trusted_ || sweeper->is_running.exchange(true)) continue;
    sweeper->thread.Post([this, &sweeper = *sweeper] {
      extents_.Sweep(sweeper.disk, [this] { return is_trusted_.load(); });
      sweeper.is_running = false;
    });
  }
}

void ExtentSweepers::TakeBack() {
  if (std::ranges::any_of(sweepers_, [](const auto& one) { return one->is_running.load(); }))
    return;
  is_taking_back_ = true;
  post_([this] {
    extents_.TakeBack();
    is_taking_back_ = false;
  });
}

}  // namespace ffrecord::server
