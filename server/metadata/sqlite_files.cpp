#include "server/metadata/sqlite_files.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <tuple>
#include <utility>

#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

bool IsSame(const struct stat& one, const struct stat& other) {
  return std::tie(one.st_dev, one.st_ino) == std::tie(other.st_dev, other.st_ino);
}
// Others may tell a time of the last write that changes once it has reached a server.
bool TellsWriteTimes(const fs::path& path) {
  struct statfs system {};
  if (::statfs(path.c_str(), &system) != 0) return false;
  constexpr std::array<std::uint32_t, 7> kOthers{
      NFS_SUPER_MAGIC,  CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC, SMB_SUPER_MAGIC,
      FUSE_SUPER_MAGIC, CEPH_SUPER_MAGIC, V9FS_MAGIC};
  return std::ranges::find(kOthers, static_cast<std::uint32_t>(system.f_type)) == kOthers.end();
}

bool IsUnchanged(const struct stat& one, const struct stat& other, bool compares_times) {
  return one.st_size == other.st_size &&
         (!compares_times || std::tie(one.st_mtim.tv_sec, one.st_mtim.tv_nsec) ==
                                 std::tie(other.st_mtim.tv_sec, other.st_mtim.tv_nsec));
}

Error Stale(const fs::path& path, const char* what) {
  return {ErrorCode::kIo, path.string() + " was " + what + " under the running daemon", ESTALE};
}

// The file at `path`, which is the one of `noted`.
Result<struct stat> Find(const fs::path& path, const struct stat& noted) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Stale(path, "removed");
    return ErrnoError("look at", path, errno);
  }
  if (!IsSame(found, noted)) return Stale(path, "replaced");
  return found;
}

}  // namespace

SqliteFiles::SqliteFiles(const fs::path& path) : compares_times_(TellsWriteTimes(path)) {
  File database{path};
  (void)::stat(path.c_str(), &database.noted);
  files_.push_back(std::move(database));
  File log{path.string() + "-wal"};
  if (::stat(log.path.c_str(), &log.noted) == 0) files_.push_back(std::move(log));
}

// One that is gone meanwhile is still noted, and missed by the next check.
void SqliteFiles::Note() {
  for (File& file : files_)
    if (const auto found = Find(file.path, file.noted)) file.noted = found.value();
}

Result<void> SqliteFiles::CheckInPlace() const {
  for (const File& file : files_) FFR_TRY(Find(file.path, file.noted));
  return {};
}

Result<void> SqliteFiles::CheckUntouched() const {
  for (const File& file : files_) {
    const struct stat found = FFR_TRY(Find(file.path, file.noted));
    if (!IsUnchanged(found, file.noted, compares_times_))
      return Stale(file.path, "changed by another program");
  }
  return {};
}

}  // namespace ffrecord::server
