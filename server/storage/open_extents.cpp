#include "server/storage/open_extents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "libffrecord/io/page_cache.h"

namespace ffrecord::server {
namespace {

std::optional<MappedFile> MapData(const Extent& extent, int fd) {
  if (!TellsWhatIsInMemory(fd)) return std::nullopt;
  auto mapped = MappedFile::Map(fd, 0, extent.size_bytes);
  if (!mapped || mapped.value().bytes().empty()) return std::nullopt;
  // A sandbox may refuse the call.
  unsigned char page = 0;
  void* const begin = const_cast<std::byte*>(mapped.value().bytes().data());
  if (::mincore(begin, 1, &page) != 0) return std::nullopt;
  return std::move(mapped).value();
}

}  // namespace

bool OpenExtent::is_whole() const noexcept {
  struct statx status {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  return ::statx(fd.get(), "", kFlags, STATX_SIZE, &status) == 0 &&
         status.stx_size >= extent->size_bytes;
}

Result<OpenExtent> OpenExtents::Open(const ExtentPtr& extent, bool is_mapped) {
  auto fd = FFR_TRY(ExtentStore::OpenFile(*extent));
  auto mapped = is_mapped ? MapData(*extent, fd.get()) : std::nullopt;
  return OpenExtent{extent, std::move(fd), std::move(mapped)};
}

OpenExtentPtr OpenExtents::Find(const ExtentPtr& extent) {
  const auto found = places_.find(extent->id);
  if (found == places_.end()) return nullptr;
  if ((*found->second)->extent != extent) {
    Forget(extent->id);  // It was moved to another disk.
    return nullptr;
  }
  order_.splice(order_.begin(), order_, found->second);
  return order_.front();
}

OpenExtentPtr OpenExtents::Add(OpenExtent file) {
  Forget(file.extent->id);
  if (order_.size() >= count_max_) Forget(order_.back()->extent->id);
  if (!may_map()) file.mapped.reset();
  order_.push_front(std::make_shared<OpenExtent>(std::move(file)));
  places_.emplace(order_.front()->extent->id, order_.begin());
  return order_.front();
}

void OpenExtents::Forget(const ExtentId& id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  const Order::iterator file = found->second;
  places_.erase(found);
  order_.erase(file);
}

void OpenExtents::DropDeleted() {
  for (auto file = order_.begin(); file != order_.end();) {
    if ((*file)->extent->is_deleted.load(std::memory_order_acquire)) {
      places_.erase((*file)->extent->id);
      file = order_.erase(file);
    } else {
      ++file;
    }
  }
}

}  // namespace ffrecord::server
