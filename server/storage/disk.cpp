#include "server/storage/disk.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <set>
#include <string>

#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

// Makes one folder durably. One that exists is fine, but the process that made it may not have
// synced it.
Result<void> MakeFolder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST)
    return ErrnoError("make the folder", folder, errno);
  return SyncParentFolder(folder);
}

}  // namespace

Result<std::unique_ptr<Disk>> Disk::Open(const fs::path& folder, const DiskId& id) {
  FFR_TRY(MakeFolder(folder));
  UniqueFd folder_fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd) return ErrnoError("open the folder", folder, errno);
  struct stat opened {};
  if (::fstat(folder_fd.get(), &opened) != 0) return ErrnoError("look at", folder, errno);
  std::unique_ptr<Disk> disk(new Disk(folder, std::move(folder_fd), opened.st_dev, id));
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) == 0 && (status.f_flag & ST_RDONLY) != 0)
    disk->writes().Note(ErrnoError("write to", folder, EROFS));
  disk->RefreshSpace();
  return disk;
}

std::string Disk::name() const {
  std::string name = folder_.parent_path().string();
  for (char& c : name)
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  return name;
}

Result<UniqueFd> Disk::OpenFile(const ExtentId& id) const {
  const std::string name = ExtentPath(id).string();
  // O_NONBLOCK: a FIFO is refused below, and not waited for.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  open_how how{};
  how.flags = kFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd fd(
      static_cast<int>(::syscall(SYS_openat2, folder_fd_.get(), name.c_str(), &how, sizeof(how))));
  // Kernels before 5.6, and containers that know no such call. The name is made of digits.
  if (!fd && (errno == ENOSYS || errno == EPERM))
    fd.Reset(::openat(folder_fd_.get(), name.c_str(), kFlags));
  if (!fd) return ErrnoError("open", PathOf(id), errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("look at", PathOf(id), errno);
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::kIo, PathOf(id).string() + " is not a regular file", EINVAL};
  return fd;
}

Result<void> Disk::MakeSlot(const ExtentId& id) {
  const std::uint32_t slot = SlotOf(id);
  {
    const std::lock_guard lock(mutex_);
    if (durable_slots_[slot]) return {};
  }
  FFR_TRY(MakeFolder(PathOf(id).parent_path()));
  const std::lock_guard lock(mutex_);
  durable_slots_.set(slot);
  return {};
}

void Disk::ForgetSlot(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  durable_slots_.reset(SlotOf(id));
}

Result<void> Disk::CheckInPlace() const {
  struct stat opened {};
  struct stat named {};
  if (::fstat(folder_fd_.get(), &opened) == 0 && ::stat(folder_.c_str(), &named) == 0 &&
      opened.st_dev == named.st_dev && opened.st_ino == named.st_ino)
    return {};
  return Error{ErrorCode::kIo,
               folder_.string() + " is not there any more: the disk was unmounted or moved",
               ENODEV};
}

Result<void> Disk::Unlink(const ExtentId& id) {
  const fs::path path = PathOf(id);
  if (::unlink(path.c_str()) == 0) {
    RefreshSpace();
    return {};
  }
  if (errno != ENOENT) return ErrnoError("unlink", path, errno);
  return CheckInPlace();
}

Result<void> Disk::SyncNames(std::span<const ExtentId> ids) const {
  std::set<std::uint32_t> slots;
  for (const ExtentId& id : ids) {
    if (!slots.insert(SlotOf(id)).second) continue;
    const auto synced = SyncParentFolder(PathOf(id));
    // Where the folder itself is gone, so are the names in it.
    if (!synced && synced.error().code != ErrorCode::kNotFound) return synced;
    if (!synced) FFR_TRY(CheckInPlace());
  }
  return {};
}

Disk::Space Disk::space() const noexcept {
  const std::uint64_t unused_bytes = unused_bytes_.load(std::memory_order_relaxed);
  return {unused_bytes - std::min(unused_bytes, kept_bytes_), unused_bytes,
          size_bytes_.load(std::memory_order_relaxed)};
}

void Disk::RefreshSpace() noexcept {
  struct statvfs status {};
  const bool is_known = ::statvfs(folder_.c_str(), &status) == 0;
  unused_bytes_.store(is_known ? std::uint64_t{status.f_bavail} * status.f_frsize
                               : std::numeric_limits<std::uint64_t>::max(),
                      std::memory_order_relaxed);
  size_bytes_.store(is_known ? std::uint64_t{status.f_blocks} * status.f_frsize : 0,
                    std::memory_order_relaxed);
}

Result<void> Disk::CheckTakes(std::uint64_t size_bytes) const {
  FFR_TRY(writes_.CheckWritable());
  const std::uint64_t free_bytes = space().free_bytes;
  if (size_bytes <= free_bytes) return {};
  return Error{ErrorCode::kIo,
               "the disk of " + folder_.string() + " has room for " + std::to_string(free_bytes) +
                   " bytes, and " + std::to_string(size_bytes) + " are wanted",
               ENOSPC};
}

}  // namespace ffrecord::server
