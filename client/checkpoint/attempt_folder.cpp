#include "client/checkpoint/attempt_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

#include "client/checkpoint/step_folder.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/this_host.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAttemptPrefix = ".attempt-";
constexpr std::string_view kRemovedPrefix = ".removed-";

// How long nothing has changed in an attempt of another host before a save removes it.
constexpr std::chrono::hours kForeignAttemptAge{24};

// The step of an attempt's folder; nothing if `name` is none.
std::optional<std::uint64_t> AttemptStepOf(std::string_view name) {
  if (!name.starts_with(kAttemptPrefix)) return std::nullopt;
  name.remove_prefix(kAttemptPrefix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end == name.data() + name.size() || *end != '-') return std::nullopt;
  return step;
}

// Waits for another holder until `timeout` is over; kDeadlineExceeded then.
Result<UniqueFd> LockFolder(const fs::path& path, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{5};
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return ErrnoError("open folder", path, errno);
  const auto deadline = Clock::now() + timeout;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return ErrnoError("lock folder", path, errno);
    if (Clock::now() >= deadline)
      return Error{ErrorCode::kDeadlineExceeded,
                   "checkpoint: " + path.string() +
                       " is locked by another save; if there is none, "
                       "is the same folder given twice?"};
    SleepFor(kPause);
  }
  return fd;
}

// Whether `fd` is still what `path` names: a collector may have removed it before it was locked.
bool IsStillThere(const UniqueFd& fd, const fs::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(fd.get(), &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

fs::path OwnerPath(const fs::path& attempt) {
  struct stat status {};
  static_cast<void>(::stat(attempt.c_str(), &status));
  return attempt / (std::string(kOwnerPrefix) + ThisHost(status.st_dev));
}

// An owner of whom nobody knows whether he lives.
fs::path UnknownOwnerPath(const fs::path& attempt) {
  return attempt / (std::string(kOwnerPrefix) + Hex(RandomNumber()));
}

// Makes the empty file; returns an errno.
int MakeOwner(const fs::path& path) {
  const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  return made ? 0 : errno;
}

// The lock of an attempt that nobody holds. While it is held, the path stays the folder that was
// locked: another collector may have removed that before, and a copy that goes on have made the
// folder again.
std::optional<UniqueFd> LockUnheld(const fs::path& path) {
  auto lock = LockFolder(path, {});
  if (!lock || !IsStillThere(lock.value(), path)) return std::nullopt;
  return std::move(lock).value();
}

// Whether the attempt at `path` was begun by this host, and by no other one.
bool IsOfThisHost(const fs::path& path) {
  const fs::path owner = OwnerPath(path);
  bool is_ours = false;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kOwnerPrefix)) continue;
    if (entry->path() != owner) return false;
    is_ours = true;
  }
  return is_ours && !error;
}

// Whether nothing at or below `path` has changed for kForeignAttemptAge before `now`, both by the
// clock of the file system.
bool IsForgotten(const fs::path& path, fs::file_time_type now) {
  std::error_code error;
  fs::file_time_type newest = fs::last_write_time(path, error);
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    newest = std::max(newest, entry->last_write_time(error));
  return !error && now - newest > kForeignAttemptAge;
}

// The file remains if the save was killed as soon as it was committed, or before the step gave way.
void RemoveOwner(const fs::path& step) { ::unlink(OwnerPath(step).c_str()); }

// A folder that is set aside is the step, or has been replaced.
void Settle(const fs::path& aside, std::uint64_t step,
            const std::function<bool(std::uint64_t)>& is_whole) {
  if (PutBack(aside, step) == 0)
    RemoveOwner(aside.parent_path() / StepName(step));
  else if (is_whole(step))
    RemoveAttempt(aside);
}

}  // namespace

std::string AttemptName(std::uint64_t step, const AttemptId& attempt) {
  return std::string(kAttemptPrefix) + std::to_string(step) + "-" + Hex(attempt);
}

std::string RandomFolderId() { return Hex(Random<std::array<std::byte, 16>>()); }

std::string RemovedName() { return std::string(kRemovedPrefix) + RandomFolderId(); }

Result<void> MakeFolder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return {};
  return ErrnoError("create folder", path, errno);
}

void RemoveTree(const fs::path& path) noexcept {
  std::error_code ignored;  // A later save collects files that cannot be removed now.
  fs::remove_all(path, ignored);
}

void RemoveAttempt(const fs::path& path) noexcept {
  const fs::path to = path.parent_path() / RemovedName();
  if (::rename(path.c_str(), to.c_str()) == 0) RemoveTree(to);
}

int ClaimFolder(const fs::path& folder) { return MakeOwner(OwnerPath(folder)); }

Result<UniqueFd> MakeAttemptFolder(const fs::path& path, std::chrono::milliseconds timeout) {
  for (;;) {
    FFR_TRY(MakeFolder(path));
    auto lock = LockFolder(path, timeout);
    if (!lock && lock.error().code == ErrorCode::kNotFound) continue;
    if (!lock && lock.error().code == ErrorCode::kDeadlineExceeded) return lock;
    if (lock && !IsStillThere(lock.value(), path)) continue;
    // Without a lock nothing says that its owner lives. Others may be able to lock it: the lock may
    // have failed for the moment, or reach this folder by another mount.
    const fs::path owner = lock ? OwnerPath(path) : UnknownOwnerPath(path);
    const int error = MakeOwner(owner);
    if (error == ENOENT) continue;
    if (error != 0) return ErrnoError("create", owner, error);
    return lock ? std::move(lock).value() : UniqueFd();
  }
}

void CollectDead(const fs::path& run, std::string_view mine) {
  std::error_code error;
  for (fs::directory_iterator entry(run, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kRemovedPrefix)) RemoveTree(entry->path());
    if (!AttemptStepOf(name) || name == mine) continue;
    const auto lock = LockUnheld(entry->path());
    if (!lock || ::rmdir(entry->path().c_str()) == 0) continue;
    if (IsOfThisHost(entry->path())) RemoveAttempt(entry->path());
  }
}

void CollectGarbage(const fs::path& run, std::uint64_t newest_step,
                    const std::function<bool(std::uint64_t)>& is_whole) {
  std::error_code error;
  const auto now = fs::last_write_time(run, error);
  for (fs::directory_iterator entry(run, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kRemovedPrefix)) RemoveTree(entry->path());
    if (StepOf(name)) RemoveOwner(entry->path());
    if (const auto aside = AsideStepOf(name)) Settle(entry->path(), *aside, is_whole);
    const auto step = AttemptStepOf(name);
    if (!step || *step > newest_step) continue;
    const auto lock = LockUnheld(entry->path());
    if (!lock || ::rmdir(entry->path().c_str()) == 0) continue;
    if (IsOfThisHost(entry->path()) || IsForgotten(entry->path(), now))
      RemoveAttempt(entry->path());
  }
}

}  // namespace ffrecord::client
