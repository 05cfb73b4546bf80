#include "server/service/open_files.h"

#include <utility>

namespace ffrecord::server {

Result<OpenFilePtr> OpenFiles::Get(const ExtentPtr& extent) {
  if (const auto found = places_.find(extent->id); found != places_.end()) {
    order_.splice(order_.begin(), order_, found->second);
    return order_.front();
  }
  auto fd = FFR_TRY(extents_.OpenFile(extent->id));
  if (order_.size() >= count_max_) {
    places_.erase(order_.back()->extent->id);
    order_.pop_back();
  }
  order_.push_front(std::make_shared<OpenFile>(OpenFile{extent, std::move(fd)}));
  places_.emplace(extent->id, order_.begin());
  return order_.front();
}

void OpenFiles::DropCondemned() {
  for (auto file = order_.begin(); file != order_.end();) {
    if ((*file)->extent->is_condemned.load(std::memory_order_acquire)) {
      places_.erase((*file)->extent->id);
      file = order_.erase(file);
    } else {
      ++file;
    }
  }
}

}  // namespace ffrecord::server
