#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "server/storage/disk_identity.h"

namespace ffrecord::server {

// Which data directories a daemon starts with. Its metadata lists its disks; each disk says in its
// identity file which one it is; so a directory that was given is one of the daemon's disks, a new
// one, or not what it should be: a mount point without its disk, a disk that was replaced, or one
// of another daemon. A directory is written to only once it is known which.

// The findings at a path that was given.
struct FoundFolder {
  std::filesystem::path path;
  std::string unusable;  // Why it cannot be used whatever the metadata says; empty: it can be.
  std::optional<DiskIdentity> identity;
  bool has_metadata = false;  // metadata.sqlite
  // Device and number of the folder; none: there is nothing at the path.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> place;

  bool operator==(const FoundFolder&) const = default;
};
// Looks, and writes nothing.
FoundFolder LookAtFolder(const std::filesystem::path& path);

// That `data` are different folders of at most one daemon, and that no metadata is left behind:
// `home` has it, or no daemon has used any of them. Fails with kConflict, naming the remedy.
Result<void> CheckFolders(const FoundFolder& home, std::span<const FoundFolder> data);

// A disk as the metadata knows it.
struct DiskMember {
  DiskId id{};
  std::filesystem::path path;  // Where it was last.
  // Its directory has its identity. Nothing was ever stored on one that has not joined.
  bool has_joined = false;
};

struct DiskPermissions {
  std::size_t missing_count_max = 0;   // Starts without so many.
  std::vector<DiskId> forgotten = {};  // No longer the daemon's; must not be there.
  std::vector<DiskId> drained = {};    // Their extents are moved to others; must be there.
};

struct DiskPlan {
  struct Use {
    std::filesystem::path path;
    DiskId id{};
    bool is_new = false;  // Is to get its identity.
  };
  std::vector<Use> used;             // In the order in which they were given.
  std::vector<std::string> missing;  // Each disk that is not there, and why.
  std::vector<std::string> ignored;  // Folders that were given and are left alone, and why.
  std::vector<DiskId> dropped;       // Members no more.
};

// The plan of a start. A folder without identity is a new disk only if no disk is missing: else it
// may be the mount point of that one. Fails with kConflict, naming the remedy, if more disks are
// missing than may be, or a folder is not this daemon's.
Result<DiskPlan> PlanDisks(std::span<const FoundFolder> data, const std::optional<DiskId>& daemon,
                           std::span<const DiskMember> members, const DiskPermissions& permissions);

// Keeps other daemons out of `folder`, which is made if it is missing (its parent must exist), as
// long as it lives. Fails with kConflict if another daemon is in it, kNotFound, kDenied, kIo.
Result<UniqueFd> LockFolder(const std::filesystem::path& folder);

}  // namespace ffrecord::server
