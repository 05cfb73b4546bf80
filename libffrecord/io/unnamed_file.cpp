#include "libffrecord/io/unnamed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/uninterrupted.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/this_host.h"

namespace ffrecord {
namespace {

constexpr mode_t kMode = 0666;  // Less the umask.
constexpr std::string_view kTemporaryBegin = ".ffrecord-";
constexpr std::string_view kTemporaryEnd = ".tmp";
constexpr std::size_t kHexSize = 16;

// How the kernel names an open file; how it is linked without privileges.
std::string SelfPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// This host, for files in `folder`.
std::string HostAt(int folder) {
  struct stat status {};
  static_cast<void>(::fstat(folder, &status));
  return ThisHost(status.st_dev);
}

std::string RandomName(int folder) {
  std::string name(kTemporaryBegin);
  return name.append(HostAt(folder)).append("-").append(Hex(RandomNumber())).append(kTemporaryEnd);
}

// The host that made the temporary name `name`, empty for names of earlier versions; none if `name`
// is not a temporary name.
std::optional<std::string_view> HostOfTemporary(std::string_view name) {
  if (!name.starts_with(kTemporaryBegin) || !name.ends_with(kTemporaryEnd)) return std::nullopt;
  if (name.size() < kTemporaryBegin.size() + kTemporaryEnd.size()) return std::nullopt;
  name.remove_prefix(kTemporaryBegin.size());
  name.remove_suffix(kTemporaryEnd.size());
  if (name.size() == kHexSize) return "";
  if (name.size() != 2 * kHexSize + 1 || name[kHexSize] != '-') return std::nullopt;
  return name.substr(0, kHexSize);
}

// A living writer holds the lock of its file as long as the file has a temporary name. Where the
// file system has no locks, nothing is collected.
bool TryLock(int fd) {
  return Uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0;
}

// Whether `name` in `folder` is the file of `fd`.
bool IsNameOf(int folder, const char* name, int fd) {
  struct stat named {};
  struct stat opened {};
  return ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

// Whether nothing was written to `file` for so long before `now` that its writer, which may be on
// another host, counts as dead.
bool IsForgotten(int file, const struct stat& now) {
  constexpr std::chrono::seconds kAge = UnnamedFile::kForeignLeftoverAge;
  struct stat status {};
  return ::fstat(file, &status) == 0 && now.st_mtim.tv_sec - status.st_mtim.tv_sec > kAge.count();
}

// Removes the temporary names that killed writers left in `folder`; `mine` is a file that was just
// made there, and its time is the file system's clock. Names that cannot be removed stay for the
// next call.
void CollectLeftovers(int folder, int mine) {
  struct stat now {};
  if (::fstat(mine, &now) != 0) return;
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (again < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(again), &::closedir);
  if (!entries) {
    ::close(again);
    return;
  }
  const std::string this_host = HostAt(folder);
  while (const dirent* entry = ::readdir(entries.get())) {
    const auto host = HostOfTemporary(entry->d_name);
    if (!host) continue;
    const UniqueFd file(
        ::openat(folder, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    // While we hold the lock, nobody on this host gives the file another name.
    if (file && TryLock(file.get()) && IsNameOf(folder, entry->d_name, file.get()) &&
        (*host == this_host || IsForgotten(file.get(), now)))
      ::unlinkat(folder, entry->d_name, 0);
  }
}

// Whether the error means that the file system has no unnamed files.
bool LacksUnnamedFiles(int system_errno) {
  return system_errno == EOPNOTSUPP || system_errno == EISDIR || system_errno == EINVAL ||
         system_errno == ENOSYS;
}

// The errno of a call that returned `status`, 0 if it succeeded.
int ErrnoOf(int status) { return status == 0 ? 0 : errno; }

// Gives the unnamed file of `fd` a name.
int Link(int fd, int folder, const std::string& name) {
  return ErrnoOf(::linkat(AT_FDCWD, SelfPath(fd).c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW));
}

// Whether an unnamed file in `folder` can be given a name later: tried with a file that may never
// be linked (O_EXCL), so that no name ever appears. A file system that supports links then fails
// with ENOENT.
bool CanLink(int folder) {
  const UniqueFd probe(
      ::openat(folder, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!probe) return true;  // Nothing is known.
  const std::string name = RandomName(folder);
  const int failure = Link(probe.get(), folder, name);
  if (failure == 0) ::unlinkat(folder, name.c_str(), 0);
  return failure == 0 || failure == ENOENT;
}

}  // namespace

UnnamedFile::UnnamedFile(const std::filesystem::path& path, bool replace)
    : path_(path), name_(path.filename()), replace_(replace) {}

UnnamedFile::~UnnamedFile() {
  const bool mine = folder_ && home_.is_here();
  if (mine && !temporary_name_.empty()) ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
}

Result<UnnamedFile> UnnamedFile::Create(const std::filesystem::path& path, bool replace) {
  UnnamedFile file(path, replace);
  if (auto opened = file.Open(); !opened) return opened.error();
  return file;
}

Result<void> UnnamedFile::Open() {
  FFR_TRY(CheckPath(path_));
  if (name_.empty() || name_ == "." || name_ == "..")
    return Error{ErrorCode::kInvalidArgument,
                 "create " + path_.string() + ": not the name of a file"};
  const std::filesystem::path parent = path_.parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  folder_ = UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) return ErrnoError("open folder", folder, errno);
  if (auto checked = CheckName(); !checked) return checked;

  // Only /proc can name an unnamed file later.
  if (::access("/proc/self/fd", F_OK) != 0) return OpenTemporary();
  fd_ = UniqueFd(::openat(folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
  if (fd_) {
    if (!CanLink(folder_.get())) return OpenTemporary();
    if (replace_) CollectLeftovers(folder_.get(), fd_.get());
    return {};
  }
  if (LacksUnnamedFiles(errno)) return OpenTemporary();
  return ErrnoError("create a file in", folder, errno);
}

// A writer that may not replace needs a rename that fails if the name exists (RENAME_NOREPLACE):
// tried on its own temporary name.
Result<void> UnnamedFile::CheckRename() {
  int failure = EEXIST;
  std::string name;
  while (failure == EEXIST) {
    name = RandomName(folder_.get());
    failure = RenameWithoutReplacing(name);
  }
  if (failure == 0) {
    temporary_name_ = std::move(name);
    return {};
  }
  return Error{ErrorCode::kIo,
               "create " + path_.string() +
                   ": its file system has neither hard links nor rename without replacement, so "
                   "publishing a file could replace another one; allow "
                   "replacing, or write to another file system",
               failure};
}

Result<void> UnnamedFile::CheckName() const {
  struct stat status {};
  if (::fstatat(folder_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return ErrnoError("create", path_, errno);
  }
  if (!replace_)
    return Error{ErrorCode::kConflict,
                 "create " + path_.string() + ": it exists; remove it or choose another name"};
  if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
    return Error{ErrorCode::kInvalidArgument,
                 "replace " + path_.string() + ": it is not a regular file"};
  return {};
}

Result<void> UnnamedFile::OpenTemporary() {
  while (true) {
    temporary_name_ = RandomName(folder_.get());
    fd_ = UniqueFd(::openat(folder_.get(), temporary_name_.c_str(),
                            O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (!fd_ && errno == EEXIST) continue;
    if (!fd_) break;
    // Before it was locked, another writer may have collected it, or, holding the lock, be about
    // to.
    struct stat status {};
    if (!TryLock(fd_.get()) && errno == EWOULDBLOCK) {
      ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
      continue;
    }
    if (::fstat(fd_.get(), &status) != 0 || status.st_nlink > 0) {
      CollectLeftovers(folder_.get(), fd_.get());  // Not this one: its lock is held.
      return replace_ ? Result<void>() : CheckRename();
    }
  }
  const int failure = errno;
  temporary_name_.clear();
  return ErrnoError("create a file beside", path_, failure);
}

UniqueFd UnnamedFile::OpenDirect() const {
  constexpr std::uint32_t kBlock = 4096;
  struct statx status {};
  const bool known = ::statx(fd_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
                     (status.stx_mask & STATX_DIOALIGN) != 0;
  const bool fits = known && status.stx_dio_mem_align != 0 && status.stx_dio_offset_align != 0 &&
                    kBlock % status.stx_dio_mem_align == 0 &&
                    kBlock % status.stx_dio_offset_align == 0;
  if (!fits) return {};
  return UniqueFd(::open(SelfPath(fd_.get()).c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
}

Result<void> UnnamedFile::Reserve(std::uint64_t size_bytes) {
  const int status = Uninterrupted([&] {
    return ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_bytes));
  });
  // A file system that cannot reserve space fails with ENOSPC on a later write.
  if (status == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return {};
  return ErrnoError("reserve " + std::to_string(size_bytes) + " bytes for", path_, errno);
}

Result<void> UnnamedFile::Publish() {
  const int failure = LinkOrRename();
  if (failure == EEXIST)
    return Error{ErrorCode::kConflict,
                 "publish " + path_.string() + ": another writer has created it meanwhile"};
  if (failure != 0) return ErrnoError("publish", path_, failure);
  if (!temporary_name_.empty()) ::flock(fd_.get(), LOCK_UN);  // For those who append to it.
  temporary_name_.clear();
  // EINVAL: this file system has nothing to sync in a folder.
  if (::fsync(folder_.get()) != 0 && errno != EINVAL)
    return ErrnoError("sync the folder after publishing", path_, errno);
  return {};
}

int UnnamedFile::LinkOrRename() {
  if (!temporary_name_.empty()) return replace_ ? RenameOver() : RenameWithoutReplacing(name_);
  const int linked = LinkTo(name_);
  if (linked != EEXIST || !replace_) return linked;
  // A link cannot replace a file, but a rename can, so the file first gets a temporary name. A kill
  // in between leaves that name.
  TryLock(fd_.get());
  int status = EEXIST;
  for (std::string name; status == EEXIST;) {
    name = RandomName(folder_.get());
    status = LinkTo(name);
    if (status == 0) temporary_name_ = name;
  }
  return status == 0 ? RenameOver() : status;
}

int UnnamedFile::LinkTo(const std::string& name) const {
  return Link(fd_.get(), folder_.get(), name);
}

int UnnamedFile::RenameOver() {
  return ErrnoOf(::renameat(folder_.get(), temporary_name_.c_str(), folder_.get(), name_.c_str()));
}

int UnnamedFile::RenameWithoutReplacing(const std::string& name) {
  const int renamed = ErrnoOf(::renameat2(folder_.get(), temporary_name_.c_str(), folder_.get(),
                                          name.c_str(), RENAME_NOREPLACE));
  if (renamed != EINVAL && renamed != ENOSYS) return renamed;
  const int linked =
      ErrnoOf(::linkat(folder_.get(), temporary_name_.c_str(), folder_.get(), name.c_str(), 0));
  if (linked == 0) ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
  return linked;
}

}  // namespace ffrecord
