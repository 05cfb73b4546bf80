#include "libffrecord/io/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>

#include "libffrecord/base/machine_memory.h"

namespace ffrecord {
namespace {

std::uintptr_t PageSize() noexcept {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

void Advise(std::span<const std::byte> mapped, int advice) noexcept {
  if (mapped.empty()) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) & ~(PageSize() - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

std::uint64_t AvailableBytesOfMachine() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (file >> key >> kibibytes && key != "MemAvailable:") file.ignore(80, '\n');
  return file ? kibibytes << 10 : 0;
}

}  // namespace

std::uint64_t PageCacheRoomBytes() {
  return std::min(AvailableBytesOfMachine(), MachineMemoryBytes());
}

bool IsInMemory(std::span<const std::byte> mapped) noexcept {
  const std::uintptr_t page_size = PageSize();
  std::array<unsigned char, 256> pages{};
  auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) & ~(page_size - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data()) + mapped.size();
  while (begin < end) {
    const std::uintptr_t size = std::min(end - begin, pages.size() * page_size);
    if (::mincore(reinterpret_cast<void*>(begin), size, pages.data()) != 0) return true;
    const auto count = static_cast<std::ptrdiff_t>((size + page_size - 1) / page_size);
    if (!std::all_of(pages.begin(), pages.begin() + count,
                     [](unsigned char page) { return (page & 1) != 0; }))
      return false;
    begin += size;
  }
  return true;
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
