#include "server/storage/disk_set.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetadata = "metadata.sqlite";

Error Refused(std::string why) { return Error{ErrorCode::kConflict, std::move(why)}; }

Result<void> CheckTwice(std::span<const FoundFolder> data) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    for (const FoundFolder& other : data.first(i)) {
      const std::string both = other.path.string() + " and " + data[i].path.string();
      if (data[i].place ? data[i].place == other.place : data[i].path == other.path)
        return Refused(both + " are the same folder: give it once");
      if (data[i].identity && data[i].identity == other.identity)
        return Refused(both +
                       " have the same identity, as one is a copy of the other: give the "
                       "one that is in use, and keep the copy elsewhere");
    }
  }
  return {};
}

// Why a folder with an identity is none of `members`; empty: it is one.
std::string WhyForeign(const DiskIdentity& identity, const std::optional<DiskId>& daemon,
                       std::span<const DiskMember> members) {
  if (identity.daemon != daemon)
    return "belongs to another daemon (" + Hex(identity.daemon) +
           "): look which disk is mounted there";
  if (std::ranges::find(members, identity.disk, &DiskMember::id) != members.end()) return "";
  return "is disk " + Hex(identity.disk) +
         ", which the metadata does not list: it was forgotten, or the metadata is an older copy. "
         "To use the disk with what is on it, remove its file 'identity'";
}

// The findings at the last place of a missing disk.
std::string WhyMissing(const DiskMember& member, std::span<const FoundFolder> data) {
  const auto at = std::ranges::find_if(
      data, [&](const FoundFolder& folder) { return fs::absolute(folder.path) == member.path; });
  const std::string disk = "disk " + Hex(member.id) + " is missing: ";
  if (at == data.end())
    return disk + "it was last at " + member.path.string() + ", which is not given as --data";
  const std::string folder = disk + at->path.string() + " ";
  if (!at->unusable.empty()) return folder + at->unusable;
  if (at->identity) return folder + "has another disk (" + Hex(at->identity->disk) + ")";
  if (!at->place) return folder + "does not exist";
  return folder + "has no file 'identity': the disk is not mounted there, or was replaced";
}

Error TooManyMissing(const DiskPlan& plan, const DiskMember& first) {
  std::string text;
  for (const std::string& one : plan.missing) text += one + "; ";
  for (const std::string& one : plan.ignored) text += one + "; ";
  return Refused(text + "mount what is missing. To start without, what is stored there being " +
                 "unavailable, give --missing-disks " + std::to_string(plan.missing.size()) +
                 ". To give up a disk and all that is stored there for good, give --forget-disk " +
                 Hex(first.id));
}

}  // namespace

FoundFolder LookAtFolder(const fs::path& path) {
  FoundFolder found;
  found.path = path;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) found.unusable = std::string("cannot be used: ") + std::strerror(errno);
    return found;
  }
  found.place = {status.st_dev, status.st_ino};
  if (!S_ISDIR(status.st_mode)) {
    found.unusable = "is not a folder";
    return found;
  }
  auto identity = ReadDiskIdentity(path);
  if (identity)
    found.identity = identity.value();
  else
    found.unusable = "cannot be used: " + identity.error().message;
  struct stat metadata {};
  found.has_metadata = ::lstat((path / kMetadata).c_str(), &metadata) == 0;
  if (!found.has_metadata && errno != ENOENT && found.unusable.empty())
    found.unusable = std::string("cannot be used: ") + std::strerror(errno);
  return found;
}

Result<void> CheckFolders(const FoundFolder& home, std::span<const FoundFolder> data) {
  FFR_TRY(CheckTwice(data));
  for (const FoundFolder& folder : data) {
    const bool is_home = folder.place ? folder.place == home.place : folder.path == home.path;
    if (folder.has_metadata && !is_home)
      return Refused(folder.path.string() + " has the metadata of a daemon, and " +
                     home.path.string() +
                     " is where this one shall have it: give that folder as the first --data, or "
                     "as --metadata, or move metadata.sqlite");
  }
  if (home.has_metadata) return {};
  for (const FoundFolder& folder : data)
    if (folder.identity)
      return Refused(folder.path.string() + " is a disk of the daemon " +
                     Hex(folder.identity->daemon) + ", whose metadata is not in " +
                     home.path.string() +
                     ": mount the disk that has metadata.sqlite, and give its folder as the first "
                     "--data, or as --metadata");
  return {};
}

Result<DiskPlan> PlanDisks(std::span<const FoundFolder> data, const std::optional<DiskId>& daemon,
                           std::span<const DiskMember> members,
                           const DiskPermissions& permissions) {
  DiskPlan plan;
  std::vector<const FoundFolder*> blank;
  const auto is_used = [&](const DiskId& id) {
    return std::ranges::find(plan.used, id, &DiskPlan::Use::id) != plan.used.end();
  };
  const auto is_forgotten = [&](const DiskId& id) {
    return std::ranges::find(permissions.forgotten, id) != permissions.forgotten.end();
  };
  for (const FoundFolder& folder : data) {
    std::string why = folder.unusable;
    if (why.empty() && folder.identity) why = WhyForeign(*folder.identity, daemon, members);
    if (!why.empty()) {
      plan.ignored.push_back(folder.path.string() + " " + why);
    } else if (!folder.identity) {
      blank.push_back(&folder);
    } else if (is_forgotten(folder.identity->disk)) {
      return Refused("disk " + Hex(folder.identity->disk) + " is at " + folder.path.string() +
                     ": to forget a disk that is there, leave out its --data");
    }
    if (why.empty())
      plan.used.push_back({folder.path, folder.identity ? folder.identity->disk : Random<DiskId>(),
                           !folder.identity});
  }

  const DiskMember* first_missing = nullptr;
  for (const DiskMember& member : members) {
    if (is_used(member.id)) continue;
    if (is_forgotten(member.id) || !member.has_joined) {
      plan.dropped.push_back(member.id);
      continue;
    }
    if (first_missing == nullptr) first_missing = &member;
    plan.missing.push_back(WhyMissing(member, data));
  }
  if (plan.missing.size() > permissions.missing_count_max)
    return TooManyMissing(plan, *first_missing);
  if (plan.missing.empty() && !plan.ignored.empty()) return Refused(plan.ignored.front());
  if (!plan.missing.empty()) {
    for (const FoundFolder* const folder : blank)
      plan.ignored.push_back(folder->path.string() +
                             " has no file 'identity', and may be the place of a missing disk");
    std::erase_if(plan.used, [](const DiskPlan::Use& use) { return use.is_new; });
  }
  if (plan.used.empty()) return Refused("none of the daemon's disks is there");
  return plan;
}

Result<UniqueFd> LockFolder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0750) == 0) {
    FFR_TRY(SyncParentFolder(folder));
  } else if (errno != EEXIST) {
    return ErrnoError("make the data folder", folder, errno);
  }
  const fs::path path = folder / "lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  // Nobody can write to it, but another may read there.
  if (!fd && errno == EROFS) fd.Reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoError("open", path, errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return ErrnoError("lock", path, errno);
  return Error{ErrorCode::kConflict, "another ffrecordd uses " + folder.string() +
                                         "; stop it, or give another --data folder"};
}

}  // namespace ffrecord::server
