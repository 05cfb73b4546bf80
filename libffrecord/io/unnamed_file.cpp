#include "libffrecord/io/unnamed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string_view>

#include "libffrecord/base/fork_generation.h"
#include "libffrecord/io/file.h"

namespace ffrecord {
namespace {

constexpr mode_t kMode = 0666;  // Less the umask.
constexpr std::string_view kTemporaryBegin = ".ffrecord-";
constexpr std::string_view kTemporaryEnd = ".tmp";

// How the kernel names an open file; how it is linked without privileges.
std::string SelfPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

std::string RandomName() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    number =
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "%s%016llx%s", kTemporaryBegin.data(),
                static_cast<unsigned long long>(number), kTemporaryEnd.data());
  return name.data();
}

bool IsTemporaryName(std::string_view name) {
  return name.size() == kTemporaryBegin.size() + 16 + kTemporaryEnd.size() &&
         name.starts_with(kTemporaryBegin) && name.ends_with(kTemporaryEnd);
}

// A living writer holds the lock of its file from before it has a temporary name until it has none
// any more. Where there are no locks, nothing is collected.
bool TryLock(int fd) {
  int status = 0;
  do {
    status = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

// Whether `name` in `folder` is the file of `fd`.
bool IsNameOf(int folder, const char* name, int fd) {
  struct stat named {};
  struct stat opened {};
  return ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

// Removes the temporary names that killed writers left in `folder`. What fails is left for another
// time.
void CollectLeftovers(int folder) {
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (again < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(again), &::closedir);
  if (!entries) {
    ::close(again);
    return;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    if (!IsTemporaryName(entry->d_name)) continue;
    const UniqueFd file(
        ::openat(folder, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    // With the lock in our hands nobody gives the file another name.
    if (file && TryLock(file.get()) && IsNameOf(folder, entry->d_name, file.get()))
      ::unlinkat(folder, entry->d_name, 0);
  }
}

// What a file system says that has no unnamed files.
bool LacksUnnamedFiles(int system_errno) {
  return system_errno == EOPNOTSUPP || system_errno == EISDIR || system_errno == EINVAL ||
         system_errno == ENOSYS;
}

// The errno of a call that returned `status`, 0 if it succeeded.
int ErrnoOf(int status) { return status == 0 ? 0 : errno; }

}  // namespace

UnnamedFile::UnnamedFile(const std::filesystem::path& path, bool replace)
    : path_(path), name_(path.filename()), replace_(replace), generation_(ForkGeneration()) {}

UnnamedFile::~UnnamedFile() {
  const bool mine = folder_ && generation_ == ForkGeneration();
  if (mine && !temporary_name_.empty()) ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
}

Result<UnnamedFile> UnnamedFile::Create(const std::filesystem::path& path, bool replace) {
  UnnamedFile file(path, replace);
  if (auto opened = file.Open(); !opened) return opened.error();
  return file;
}

Result<void> UnnamedFile::Open() {
  if (name_.empty() || name_ == "." || name_ == "..")
    return Error{ErrorCode::kInvalidArgument,
                 "create " + path_.string() + ": not the name of a file"};
  const std::filesystem::path parent = path_.parent_path();
  const std::filesystem::path folder = parent.empty() ? "." : parent;
  folder_ = UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) return ErrnoError("open folder", folder, errno);
  if (auto checked = CheckName(); !checked) return checked;
  if (replace_) CollectLeftovers(folder_.get());

  // Only /proc can name an unnamed file later.
  if (::access("/proc/self/fd", F_OK) != 0) return OpenTemporary();
  fd_ = UniqueFd(::openat(folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
  if (fd_) return {};
  if (LacksUnnamedFiles(errno)) return OpenTemporary();
  return ErrnoError("create a file in", folder, errno);
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
  if (!replace_) CollectLeftovers(folder_.get());
  while (true) {
    temporary_name_ = RandomName();
    fd_ = UniqueFd(::openat(folder_.get(), temporary_name_.c_str(),
                            O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (!fd_ && errno == EEXIST) continue;
    if (!fd_) break;
    TryLock(fd_.get());
    // Another may have collected it before it was locked.
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0 || status.st_nlink > 0) return {};
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
  int status = 0;
  do {
    status = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_bytes));
  } while (status != 0 && errno == EINTR);
  // A file system that cannot reserve says ENOSPC when it is written to.
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
  if (!temporary_name_.empty()) return replace_ ? RenameOver() : RenameWithoutReplacing();
  const int linked = LinkTo(name_);
  if (linked != EEXIST || !replace_) return linked;
  // Nothing links over a file; a rename of a name does. A kill in between leaves that name.
  TryLock(fd_.get());
  int status = EEXIST;
  for (std::string name; status == EEXIST;) {
    name = RandomName();
    status = LinkTo(name);
    if (status == 0) temporary_name_ = name;
  }
  return status == 0 ? RenameOver() : status;
}

int UnnamedFile::LinkTo(const std::string& name) const {
  return ErrnoOf(::linkat(AT_FDCWD, SelfPath(fd_.get()).c_str(), folder_.get(), name.c_str(),
                          AT_SYMLINK_FOLLOW));
}

int UnnamedFile::RenameOver() {
  return ErrnoOf(::renameat(folder_.get(), temporary_name_.c_str(), folder_.get(), name_.c_str()));
}

int UnnamedFile::RenameWithoutReplacing() {
  const int renamed = ErrnoOf(::renameat2(folder_.get(), temporary_name_.c_str(), folder_.get(),
                                          name_.c_str(), RENAME_NOREPLACE));
  if (renamed != EINVAL && renamed != ENOSYS) return renamed;
  const int linked =
      ErrnoOf(::linkat(folder_.get(), temporary_name_.c_str(), folder_.get(), name_.c_str(), 0));
  if (linked == 0) ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
  return linked;
}

}  // namespace ffrecord
