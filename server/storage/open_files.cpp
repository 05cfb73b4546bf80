#include "server/storage/open_files.h"

#include <sys/mman.h>

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

Result<OpenFilePtr> OpenFiles::Get(const ExtentPtr& extent) {
  if (const auto found = places_.find(extent->id); found != places_.end()) {
    if ((*found->second)->extent == extent) {
      order_.splice(order_.begin(), order_, found->second);
      return order_.front();
    }
    // It was moved to another disk.
    order_.erase(found->second);
    places_.erase(found);
  }
  auto fd = FFR_TRY(ExtentStore::OpenFile(*extent));
  if (order_.size() >= count_max_) {
    places_.erase(order_.back()->extent->id);
    order_.pop_back();
  }
  auto mapped = order_.size() < mapped_count_max_ ? MapData(*extent, fd.get()) : std::nullopt;
  order_.push_front(std::make_shared<OpenFile>(OpenFile{extent, std::move(fd), std::move(mapped)}));
  places_.emplace(extent->id, order_.begin());
  return order_.front();
}

void OpenFiles::DropDeleted() {
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
