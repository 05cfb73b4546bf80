#include "libffrecord/io/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace ffrecord {
namespace {

std::uintptr_t PageSize() noexcept {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

constexpr std::size_t kPagesAtOnce = 256;

// How many pages of at most kPagesAtOnce are in memory, from the beginning of a page on; all where
// the kernel does not tell.
std::size_t PagesInMemory(std::uintptr_t begin, std::size_t size_bytes) noexcept {
  std::array<unsigned char, kPagesAtOnce> pages{};
  const std::size_t count = (size_bytes + PageSize() - 1) / PageSize();
  if (::mincore(reinterpret_cast<void*>(begin), size_bytes, pages.data()) != 0) return count;
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count),
                    [](unsigned char page) { return (page & 1) != 0; }));
}

void Advise(std::span<const std::byte> mapped, int advice) noexcept {
  if (mapped.empty()) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) & ~(PageSize() - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

bool IsInMemory(std::span<const std::byte> mapped) noexcept {
  const std::uintptr_t page_size = PageSize();
  auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) & ~(page_size - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size();
  while (begin < end) {
    const std::uintptr_t size = std::min(end - begin, kPagesAtOnce * page_size);
    if (PagesInMemory(begin, size) != (size + page_size - 1) / page_size) return false;
    begin += size;
  }
  return true;
}

double ResidentShare(std::span<const std::byte> mapped) noexcept {
  constexpr std::size_t kPiecesMax = 4096;
  const std::size_t piece = kPagesAtOnce * PageSize();
  const std::size_t count = (mapped.size() + piece - 1) / piece;
  const std::size_t step = (count + kPiecesMax - 1) / kPiecesMax;
  std::size_t there = 0;
  std::size_t all = 0;
  for (std::size_t i = 0; i < count; i += step) {
    const auto bytes = mapped.subspan(i * piece, std::min(piece, mapped.size() - i * piece));
    there += PagesInMemory(reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size());
    all += (bytes.size() + PageSize() - 1) / PageSize();
  }
  return static_cast<double>(there) / static_cast<double>(all);
}

bool TellsWhatIsInMemory(int fd) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  if (::geteuid() == 0 || ::geteuid() == status.st_uid) return true;
  std::array<char, 32> self{};
  std::snprintf(self.data(), self.size(), "/proc/self/fd/%d", fd);
  return ::faccessat(AT_FDCWD, self.data(), W_OK, AT_EACCESS) == 0;
}

std::uint64_t MajorFaultsOfThread() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<std::uint64_t>(usage.ru_majflt);
}

void ExpectRandomAccess(std::span<const std::byte> mapped) noexcept { Advise(mapped, MADV_RANDOM); }

void WillNeed(std::span<const std::byte> mapped) noexcept { Advise(mapped, MADV_WILLNEED); }

}  // namespace ffrecord
