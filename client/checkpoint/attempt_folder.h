#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The folder of a save on its way, .attempt-<step>-<id> in the folder of its run, and the lock that
// says whether its coordinator lives. The coordinator holds the lock for as long as it lives, so
// that a later save can tell an attempt in progress from what a killed run left behind. The kernel
// drops the lock with the process. Other hosts, and other mounts of the folder, may not see it: an
// empty file in the folder, owner-<host> (this_host.h), says for whom the lock counts.
inline constexpr std::string_view kOwnerPrefix = "owner-";

std::string AttemptName(std::uint64_t step, const AttemptId& attempt);

// 32 hex digits.
std::string RandomFolderId();

// A name in a run under which anybody may remove what it names. Random.
std::string RemovedName();

// Creates the folder `path`, if it is not there.
Result<void> MakeFolder(const std::filesystem::path& path);

// Makes and locks an attempt's folder, and says whose it is. Waits for another holder of the lock
// until `timeout` is over: kDeadlineExceeded then. The result is empty where folders cannot be
// locked (some network file systems).
Result<UniqueFd> MakeAttemptFolder(const std::filesystem::path& path,
                                   std::chrono::milliseconds timeout);

// Says that the folder is this host's; returns an errno.
int ClaimFolder(const std::filesystem::path& folder);

// Removes what can be removed of it; the rest is collected by a later save.
void RemoveTree(const std::filesystem::path& path) noexcept;

// Removes an attempt that is dead, or this process's own. First it gets a name under which anybody
// may finish that: half of it does not say whose it was. A folder that cannot be renamed stays.
void RemoveAttempt(const std::filesystem::path& path) noexcept;

// Removes attempts in `run` that nobody can commit any more, at whatever steps: those of this host
// whose coordinator has dropped the lock. They may take the room of the attempt called `mine`,
// which stays. Attempts of other hosts stay, too: nothing proves that they are dead. Empty folders
// go, those of other hosts too: a save that was killed before it said whose it is leaves one.
void CollectDead(const std::filesystem::path& run, std::string_view mine);

// Removes what killed runs left in `run`: attempts at steps up to `newest_step`, the newest that is
// committed, whose coordinator is gone. A newer attempt may be waiting for ranks on other nodes,
// and where folders cannot be locked nothing is known about owners: both are left alone. For an
// attempt of another host only its age says anything. `run` has just been changed.
//
// A folder that is set aside (step_folder.h) gets the name of its step back. If another folder has
// that name and `is_whole` says so of the step, it is removed.
void CollectGarbage(const std::filesystem::path& run, std::uint64_t newest_step,
                    const std::function<bool(std::uint64_t)>& is_whole);

}  // namespace ffrecord::client
