#include "server/storage/disk_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "libffrecord/base/uninterrupted.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint64_t kDiskPart = 64;

std::uint64_t SizeOn(const std::filesystem::path& folder, std::uint64_t size_bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return size_bytes;
  const std::uint64_t part = std::uint64_t{disk.f_blocks} * disk.f_frsize / kDiskPart;
  return std::clamp(part / kBlockBytes * kBlockBytes, kBlockBytes, size_bytes);
}

}  // namespace

DiskReserve::DiskReserve(std::filesystem::path path, std::uint64_t size_bytes)
    : path_(std::move(path)),
      size_bytes_(SizeOn(path_.parent_path(), std::max(size_bytes, kBlockBytes))) {
  Take();
}

void DiskReserve::Take() {
  const int error = TryTake();
  missing_errno_.store(error, std::memory_order_release);
  is_whole_.store(error == 0, std::memory_order_release);
}

int DiskReserve::TryTake() const {
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!fd) return errno;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  const auto size = static_cast<off_t>(size_bytes_);
  if (status.st_size > size && ::ftruncate(fd.get(), size) != 0) return errno;
  const auto allocate = [&] {
    errno = ::posix_fallocate(fd.get(), 0, size);
    return errno == 0 ? 0 : -1;
  };
  if (Uninterrupted(allocate) == 0) return 0;
  const int error = errno;
  (void)!::ftruncate(fd.get(), 0);  // Not a part of it either.
  return error;
}

bool DiskReserve::Release() {
  const std::lock_guard lock(mutex_);
  if (!is_whole()) return false;
  missing_errno_.store(ENOSPC, std::memory_order_release);
  is_whole_.store(false, std::memory_order_release);
  return ::truncate(path_.c_str(), 0) == 0;
}

void DiskReserve::Restore(std::uint64_t free_bytes) {
  if (is_whole() || free_bytes / 2 < size_bytes_) return;
  const std::lock_guard lock(mutex_);
  if (!is_whole()) Take();
}

}  // namespace ffrecord::server
