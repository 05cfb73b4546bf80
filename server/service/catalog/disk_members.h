#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "server/metadata/blocking_store.h"
#include "server/storage/disk_set.h"

namespace ffrecord::server {

// The disks of a daemon as they lie in its MetaStore: `daemon` is its id; `disks/<id>`, 32 hex
// digits, says of each whether it has joined (u8), and where it was last (the path's bytes).
inline constexpr std::string_view kDaemonKey = "daemon";
inline constexpr std::string_view kDiskKeys = "disks/";

struct DiskMembers {
  std::optional<DiskId> daemon;  // None: nothing was ever recorded, as before disks had identities.
  std::vector<DiskMember> members;
};

// Fails as the MetaStore, with kCorruption.
Result<DiskMembers> ReadDiskMembers(BlockingStore& meta);

// Makes `plan` true: what it drops is off the record, new disks get their identity and are on it.
// A kill at any point leaves what the next start can go on from. Requires that all folders of the
// plan are locked. Fails as the MetaStore and WriteDiskIdentity.
Result<void> RecordDisks(BlockingStore& meta, const DiskMembers& before, const DiskPlan& plan);

}  // namespace ffrecord::server
