#include "libffrecord/io/page_cache.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace ffrecord {

bool IsInPageCache(int fd, std::uint64_t offset_bytes) noexcept {
  char byte = 0;
  iovec vector{&byte, 1};
  // At the end of the file it moves nothing, which needs no waiting either.
  if (::preadv2(fd, &vector, 1, static_cast<off_t>(offset_bytes), RWF_NOWAIT) >= 0) return true;
  return errno != EAGAIN;
}

std::uint64_t MajorFaultsOfThread() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<std::uint64_t>(usage.ru_majflt);
}

void WillNeed(std::span<const std::byte> mapped) noexcept {
  if (mapped.empty()) return;
  const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) & ~(page_size - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace ffrecord
