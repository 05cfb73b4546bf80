#include "libffrecord/io/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace ffrecord {
namespace {

ErrorCode CodeOf(int system_errno) {
  switch (system_errno) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
      return ErrorCode::kDenied;
    case EEXIST:
      return ErrorCode::kConflict;
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kIo;
  }
}

std::string_view RemedyFor(int system_errno) {
  switch (system_errno) {
    case ENOSPC:
      return "; free some space or choose another file system";
    case EDQUOT:
      return "; free some space or raise the quota";
    case EFBIG:
      return "; raise the file size limit (ulimit -f) or split the file";
    case EMFILE:
      return "; raise the hard limit of open files (ulimit -Hn), or pack into fewer files";
    case EROFS:
      return "; choose a file system that can be written to";
    case EIO:
      return "; the device may be failing, see the kernel log";
    default:
      return "";
  }
}

// Opens the file of `fd` again with O_DIRECT: by its descriptor, because its name may be another
// file's by now.
UniqueFd ReopenDirect(int fd) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

}  // namespace

Error ErrnoError(std::string_view tried, const std::filesystem::path& path, int system_errno) {
  const ErrorCode code = CodeOf(system_errno);
  std::string message(tried);
  message.append(" ").append(path).append(": ").append(::strerrordesc_np(system_errno));
  message.append(RemedyFor(system_errno));
  return Error{code, std::move(message), code == ErrorCode::kIo ? system_errno : 0};
}

Result<void> ReadExactly(int fd, const std::filesystem::path& path, std::uint64_t offset_bytes,
                         std::span<std::byte> destination) {
  while (!destination.empty()) {
    const ssize_t got =
        ::pread(fd, destination.data(), destination.size(), static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", path, errno);
    if (got == 0)
      return Error{ErrorCode::kCorruption, "read " + path.string() + ": it ends at " +
                                               std::to_string(offset_bytes) + ", too early"};
    destination = destination.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return {};
}

Result<void> CheckPath(const std::filesystem::path& path) {
  const std::string& name = path.native();
  const std::size_t zero = name.find('\0');
  if (zero == std::string::npos) return {};
  return Error{ErrorCode::kInvalidArgument,
               "open " + name.substr(0, zero) + "\\0...: a path cannot hold a zero byte"};
}

Result<ReadOnlyFile> OpenReadOnly(const std::filesystem::path& path, bool want_direct) {
  FFR_TRY(CheckPath(path));
  ReadOnlyFile file;
  // O_NONBLOCK: opening a FIFO without a writer must not block.
  file.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  // ENXIO: a socket, or a device without a driver.
  if (!file.fd && errno != ENXIO) return ErrnoError("open", path, errno);
  struct statx status {};
  if (file.fd && ::statx(file.fd.get(), "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE, &status) != 0)
    return ErrnoError("stat", path, errno);
  if (!S_ISREG(status.stx_mode))
    return Error{ErrorCode::kInvalidArgument, "open " + path.string() + ": not a regular file"};
  // Through io_uring, reads of a non-blocking file fail with EAGAIN where the page is not in
  // memory.
  if (::fcntl(file.fd.get(), F_SETFL, 0) != 0) return ErrnoError("open", path, errno);
  file.size_bytes = status.stx_size;
  if (want_direct) {
    DirectFile direct = OpenDirect(file.fd.get());
    file.direct_fd = std::move(direct.fd);
    file.direct_alignment = direct.alignment;
  }
  return file;
}

DirectFile OpenDirect(int fd) {
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return {};
  if ((status.stx_mask & STATX_DIOALIGN) == 0 || status.stx_dio_mem_align == 0 ||
      status.stx_dio_offset_align == 0)
    return {};
  DirectFile direct{ReopenDirect(fd), {}};
  if (direct.fd) direct.alignment = {status.stx_dio_mem_align, status.stx_dio_offset_align};
  return direct;
}

std::uint64_t MakeRoomForDescriptors(std::uint64_t count) noexcept {
  constexpr rlim_t kSpareMax = 256;  // For other descriptors of the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return count;
  // The kernel gives out the lowest free number, so the next descriptor tells about how many are
  // open.
  const UniqueFd next(::open("/", O_PATH | O_CLOEXEC));
  const rlim_t used = next ? static_cast<rlim_t>(next.get()) : limit.rlim_cur;
  const rlim_t wanted = used + count + kSpareMax;
  if (wanted > limit.rlim_cur && limit.rlim_cur != limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const rlim_t spare = std::min(kSpareMax, limit.rlim_cur / 4);
  return limit.rlim_cur - std::min(limit.rlim_cur, used + spare);
}

Result<void> SyncParentFolder(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoError("open folder", folder, errno);
  // EINVAL: this file system has nothing to sync in a folder.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoError("sync folder", folder, errno);
  return {};
}

}  // namespace ffrecord
