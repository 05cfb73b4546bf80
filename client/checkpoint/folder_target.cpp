#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/this_host.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAttemptPrefix = ".attempt-";
constexpr std::string_view kRemovedPrefix = ".removed-";
constexpr std::string_view kOwnerPrefix = "owner-";
constexpr std::string_view kLatestName = "LATEST";

// How long nothing has changed in an attempt of another host before a save removes it.
constexpr std::chrono::hours kForeignAttemptAge{24};

std::string AttemptName(std::uint64_t step, const AttemptId& attempt) {
  return std::string(kAttemptPrefix) + std::to_string(step) + "-" + Hex(attempt);
}

// The step of an attempt's folder; nothing if `name` is none.
std::optional<std::uint64_t> AttemptStepOf(std::string_view name) {
  if (!name.starts_with(kAttemptPrefix)) return std::nullopt;
  name.remove_prefix(kAttemptPrefix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end == name.data() + name.size() || *end != '-') return std::nullopt;
  return step;
}

Result<void> MakeFolder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return {};
  return ErrnoError("create folder", path, errno);
}

// Creates `path` and the folders above it, each durable in the one that holds it.
Result<void> MakeFolders(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if (path.has_parent_path() && path.parent_path() != path)
    FFR_TRY(MakeFolders(path.parent_path()));
  FFR_TRY(MakeFolder(path));
  return SyncParentFolder(path);
}

// --- The lock of a living attempt ----------------------------------------------------------------

// The coordinator holds a lock on its attempt's folder for as long as it lives, so that a later
// save can tell an attempt in progress from what a killed run left behind. The kernel drops the
// lock with the process. Other hosts may not see it: an empty file in the folder, owner-<host>,
// says for whom the lock counts.
Result<UniqueFd> LockFolder(const fs::path& path, bool wait) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return ErrnoError("open folder", path, errno);
  if (::flock(fd.get(), wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0)
    return ErrnoError("lock folder", path, errno);
  return fd;
}

// Whether `fd` is still what `path` names: a collector may have removed it before it was locked.
bool IsStillThere(const UniqueFd& fd, const fs::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(fd.get(), &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

void RemoveTree(const fs::path& path) noexcept {
  std::error_code ignored;  // What cannot be removed now is collected by a later save.
  fs::remove_all(path, ignored);
}

// Removes an attempt that is dead, or this process's own. First it gets a name under which anybody
// may finish that: half of it does not say whose it was. What cannot be renamed stays.
void RemoveAttempt(const fs::path& path) noexcept {
  const fs::path to =
      path.parent_path() / (std::string(kRemovedPrefix) + Hex(Random<std::array<std::byte, 16>>()));
  if (::rename(path.c_str(), to.c_str()) == 0) RemoveTree(to);
}

fs::path OwnerPath(const fs::path& attempt) {
  return attempt / (std::string(kOwnerPrefix) + std::string(ThisHost()));
}

// Says that the folder is this host's; no error.
int Claim(const fs::path& folder) {
  const UniqueFd made(::open(OwnerPath(folder).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  return made ? 0 : errno;
}

// Makes and locks an attempt's folder, and says whose it is. An empty one anybody may remove:
// should a collector find it between the two, it is made anew.
Result<UniqueFd> MakeAttemptFolder(const fs::path& path) {
  for (;;) {
    FFR_TRY(MakeFolder(path));
    auto lock = LockFolder(path, true);
    if (!lock && lock.error().code == ErrorCode::kNotFound) continue;
    if (lock && !IsStillThere(lock.value(), path)) continue;
    const int error = Claim(path);
    if (error == ENOENT) continue;
    if (error != 0) return ErrnoError("create", OwnerPath(path), error);
    // Where folders cannot be locked (some network file systems) nobody collects garbage either.
    return lock ? std::move(lock).value() : UniqueFd();
  }
}

// Whether the attempt at `path` was begun by this host, and by no other one.
bool IsOfThisHost(const fs::path& path) {
  bool is_ours = false;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kOwnerPrefix)) continue;
    if (entry->path() != OwnerPath(path)) return false;
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

// Removes what killed runs left in `run`: attempts at steps up to `newest_step`, the newest that is
// committed, whose coordinator is gone. A newer attempt may be waiting for ranks on other nodes,
// and where folders cannot be locked nothing is known about owners: both are left alone. Of an
// attempt of another host only its age says anything. `run` has just been changed.
void CollectGarbage(const fs::path& run, std::uint64_t newest_step) noexcept {
  std::error_code error;
  const auto now = fs::last_write_time(run, error);
  for (fs::directory_iterator entry(run, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kRemovedPrefix)) RemoveTree(entry->path());
    const auto step = AttemptStepOf(name);
    if (!step || *step > newest_step) continue;
    const auto lock = LockFolder(entry->path(), false);
    if (!lock || ::rmdir(entry->path().c_str()) == 0) continue;
    if (IsOfThisHost(entry->path()) || IsForgotten(entry->path(), now))
      RemoveAttempt(entry->path());
  }
}

// --- Writing -------------------------------------------------------------------------------------

// renameat2 with RENAME_NOREPLACE; where the file system does not know the flag, a plain rename
// does as well: it fails on a folder that is not empty, and a committed step never is.
int RenameNoReplace(const fs::path& from, const fs::path& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

// Puts the folder `from` in the place of `to`: in one step where the file system exchanges names,
// and the old folder is then called `from`. Elsewhere the old one is moved away first, as garbage,
// and moved back if the new one cannot take its place.
int RenameInPlace(const fs::path& from, const fs::path& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0)
    return 0;
  if (errno == ENOENT) return RenameNoReplace(from, to);
  if (errno != EINVAL && errno != ENOSYS) return errno;
  const fs::path away =
      to.parent_path() / (std::string(kRemovedPrefix) + Hex(Random<std::array<std::byte, 16>>()));
  const bool was_there = ::rename(to.c_str(), away.c_str()) == 0;
  if (!was_there && errno != ENOENT) return errno;
  const int error = RenameNoReplace(from, to);
  if (error != 0 && was_there) static_cast<void>(RenameNoReplace(away, to));
  return error;
}

Error StepExists(const fs::path& path) {
  return Error{ErrorCode::kConflict, "checkpoint: " + path.string() +
                                         " is committed already; save another step, or remove it "
                                         "first"};
}

class FolderAttempt final : public CheckpointAttempt {
 public:
  FolderAttempt(fs::path run, std::uint64_t step, const AttemptId& id, fs::path folder,
                UniqueFd lock, bool direct, bool replaces)
      : run_(std::move(run)),
        step_(step),
        id_(id),
        folder_(std::move(folder)),
        lock_(std::move(lock)),
        direct_(direct),
        replaces_(replaces) {}

  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    const fs::path path = folder_ / name;
    // Files appear whole: one that is there was written by an earlier process, for this attempt.
    std::error_code error;
    if (fs::file_size(path, error) == size_bytes && !error)
      return WrittenFile{std::string(name), {}};
    if (name.find('/') != std::string_view::npos) FFR_TRY(MakeFolder(path.parent_path()));
    AtomicFile::Options options;
    options.expected_size_bytes = size_bytes;
    auto file = FFR_TRY(AtomicFile::Create(path, options));
    while (file.size_bytes() < size_bytes) {
      const auto bytes = FFR_TRY(source(file.size_bytes(), size_bytes - file.size_bytes()));
      FFR_TRY(file.Append(bytes));
    }
    FFR_TRY(file.Publish());
    return WrittenFile{std::string(name), {}};
  }

  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& released) override {
    std::vector<WrittenFile> written;
    for (const SegmentFile& segment : segments) {
      if (written.empty()) FFR_TRY(MakeFolder((folder_ / segment.name).parent_path()));
      written.push_back({segment.name, {}});
    }
    FFR_TRY(WriteSegmentFiles(folder_, segments, direct_, released));
    if (!kept_.empty()) FFR_TRY(SyncParentFolder(kept_.back()));
    return written;
  }

  // A hard link. Where there is none to be had (another file system, too many links, no such
  // thing here, the step just removed) the bytes are written again.
  Result<bool> Keep(std::uint64_t step, std::string_view old_name, const StoredSegment& segment,
                    std::string_view name) override {
    const fs::path from = run_ / StepName(step) / old_name;
    const fs::path to = folder_ / name;
    struct stat status {};
    if (::lstat(from.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<std::uint64_t>(status.st_size) !=
            LayoutOfSegment(segment.payload_size_bytes).file_size_bytes)
      return false;
    FFR_TRY(MakeFolder(to.parent_path()));
    if (::link(from.c_str(), to.c_str()) != 0) return false;
    kept_.push_back(to);
    return true;
  }

  // Steps are removed and saved again by name, while links were made. A save's id never returns.
  Result<bool> IsKeptFrom(std::uint64_t step, const AttemptId& attempt) override {
    if (IsVisible(step, attempt)) return true;
    for (const fs::path& path : std::exchange(kept_, {}))
      if (::unlink(path.c_str()) != 0) return ErrnoError("remove", path, errno);
    return false;
  }

 protected:
  Result<void> MakeVisible(std::span<const WrittenFile> /*files*/) override {
    const fs::path final_path = run_ / StepName(step_);
    PrepareHint();
    // Under the attempt's name it is garbage of this host, should we be killed right then.
    if (replaces_) static_cast<void>(Claim(final_path));
    const int error =
        replaces_ ? RenameInPlace(folder_, final_path) : RenameNoReplace(folder_, final_path);
    if (error != 0 && !IsVisible(step_, id_)) {
      if (error == EEXIST || error == ENOTEMPTY) return StepExists(final_path);
      RemoveAttempt(folder_);  // Should the first rename come to pass yet, one finds nothing.
      return ErrnoError("rename to " + final_path.string() + " the folder", folder_, error);
    }
    const fs::path replaced = std::exchange(folder_, final_path);
    if (const auto synced = SyncParentFolder(final_path); !synced) {
      Error failure = synced.error();
      failure.message += "; the step is visible, but may not outlive a power cut";
      return failure;
    }
    // Committed. What follows may fail without harm.
    if (replaces_) RemoveAttempt(replaced);  // What has changed places with it.
    RemoveOwners();
    PublishHint();
    CollectGarbage(run_, NewestStep());
    return {};
  }

  void Discard() noexcept override { RemoveAttempt(folder_); }

 private:
  // Whether `step` is `attempt`. Asked of this one too: a rename whose answer a server lost looks
  // like a failure.
  bool IsVisible(std::uint64_t step, const AttemptId& attempt) const;

  // The hint is made in the attempt's folder, so that a kill leaves no temporary file outside it.
  void PrepareHint() {
    const std::string text = StepName(step_) + "\n";
    const auto bytes = std::as_bytes(std::span(text));
    static_cast<void>(Put(kLatestName, bytes.size(), [&](std::uint64_t offset, std::uint64_t) {
      return bytes.subspan(offset);
    }));
  }
  void PublishHint() const {
    std::error_code ignored;
    fs::rename(folder_ / kLatestName, run_ / kLatestName, ignored);
    static_cast<void>(SyncParentFolder(run_ / kLatestName));
  }

  // Of a copy that went on, several hosts may be.
  void RemoveOwners() const {
    std::error_code error;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
         entry.increment(error))
      if (entry->path().filename().string().starts_with(kOwnerPrefix))
        ::unlink(entry->path().c_str());
  }

  std::uint64_t NewestStep() const;

  fs::path run_;
  std::uint64_t step_;
  AttemptId id_;
  fs::path folder_;
  UniqueFd lock_;
  bool direct_;
  bool replaces_;
  std::vector<fs::path> kept_;  // All in one folder.
};

// --- Reading -------------------------------------------------------------------------------------

Result<std::vector<std::byte>> ReadAll(const ReadOnlyFile& file, const fs::path& path) {
  std::vector<std::byte> bytes(file.size_bytes);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto got =
        ::pread(file.fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", path, errno);
    if (got == 0)
      return Error{ErrorCode::kCorruption, "read " + path.string() + ": it became shorter"};
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

class FolderStep final : public CommittedStep {
 public:
  explicit FolderStep(fs::path folder) : folder_(std::move(folder)) {}

  std::string Describe(std::string_view name) const override { return (folder_ / name).string(); }

  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    const fs::path path = folder_ / name;
    const auto file = FFR_TRY(OpenReadOnly(path, false));
    if (file.size_bytes > size_bytes_max)
      return Error{ErrorCode::kCorruption,
                   path.string() + ": has " + std::to_string(file.size_bytes) +
                       " bytes, more than the " + std::to_string(size_bytes_max) + " expected"};
    return ReadAll(file, path);
  }

  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    std::vector<fs::path> paths;
    for (const std::string& name : names) paths.push_back(folder_ / name);
    return OpenLocalFiles(paths, {.io = IoPolicy::kDirect});
  }

 private:
  fs::path folder_;
};

Result<void> PublishSmall(const fs::path& path, std::string_view text) {
  auto file = FFR_TRY(AtomicFile::Create(path, {}));
  FFR_TRY(file.Append(std::as_bytes(std::span(text))));
  return file.Publish();
}

// The process may go to another folder while a save or a reader goes on.
fs::path FromRoot(const fs::path& folder) {
  std::error_code failure;
  auto absolute = fs::absolute(folder, failure);
  return failure ? folder : absolute;
}

class FolderTarget final : public CheckpointTarget {
 public:
  FolderTarget(std::string_view folder, bool direct)
      : run_(FromRoot(folder)), name_(folder), direct_(direct) {}

  const std::string& name() const noexcept override { return name_; }

  Result<std::vector<std::uint64_t>> Steps() const override {
    std::vector<std::uint64_t> steps;
    std::error_code error;
    fs::directory_iterator entry(run_, error);
    if (error == std::errc::no_such_file_or_directory) return steps;
    for (; !error && entry != fs::directory_iterator(); entry.increment(error))
      if (const auto step = StepOf(entry->path().filename().string())) steps.push_back(*step);
    if (error) return ErrnoError("list folder", run_, error.value());
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    const fs::path folder = run_ / StepName(step);
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return ErrnoError("open folder", folder, errno);
    return std::unique_ptr<CommittedStep>(new FolderStep(folder));
  }

  // Under that name it is invisible; should we be killed now, a later save collects it.
  Result<void> Remove(std::uint64_t step) override {
    const fs::path from = run_ / StepName(step);
    const fs::path to =
        run_ / (std::string(kRemovedPrefix) + Hex(Random<std::array<std::byte, 16>>()));
    if (const int error = RenameNoReplace(from, to); error != 0)
      return ErrnoError("remove", from, error);
    FFR_TRY(SyncParentFolder(to));
    RemoveTree(to);
    return {};
  }

  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    const fs::path committed = run_ / StepName(step);
    std::error_code ignored;
    if (fs::exists(committed, ignored)) return StepExists(committed);
    return Make(step, attempt, false);
  }

  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt) override {
    return Make(step, attempt, true);
  }

  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    const fs::path folder = run_ / AttemptName(step, attempt);
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored))
      return Error{ErrorCode::kInvalidArgument,
                   "checkpoint: rank 0 made " + folder.string() +
                       ", but this rank does not see it; the target must be a folder that all "
                       "ranks share"};
    return Made(step, attempt, UniqueFd(), false);
  }

  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    const auto decided = PublishSmall(run_ / name, answer);
    if (decided) return std::string(answer);
    if (decided.error().code != ErrorCode::kConflict) return decided.error();
    const auto file = FFR_TRY(OpenReadOnly(run_ / name, false));
    const auto bytes = FFR_TRY(ReadAll(file, run_ / name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void Forget(std::string_view name) noexcept override {
    std::error_code ignored;
    fs::remove(run_ / name, ignored);
  }

 private:
  Result<std::unique_ptr<CheckpointAttempt>> Make(std::uint64_t step, const AttemptId& attempt,
                                                  bool replaces) const {
    FFR_TRY(MakeFolders(run_));
    const fs::path folder = run_ / AttemptName(step, attempt);
    UniqueFd lock = FFR_TRY(MakeAttemptFolder(folder));
    if (const auto synced = SyncParentFolder(folder); !synced) {
      RemoveAttempt(folder);
      return synced.error();
    }
    return Made(step, attempt, std::move(lock), replaces);
  }

  std::unique_ptr<CheckpointAttempt> Made(std::uint64_t step, const AttemptId& attempt,
                                          UniqueFd lock, bool replaces) const {
    return std::make_unique<FolderAttempt>(run_, step, attempt, run_ / AttemptName(step, attempt),
                                           std::move(lock), direct_, replaces);
  }

  fs::path run_;
  std::string name_;
  bool direct_;
};

bool FolderAttempt::IsVisible(std::uint64_t step, const AttemptId& attempt) const {
  const auto visible = IsAttemptVisible(FolderTarget(run_.string(), false), step, attempt);
  return visible && visible.value();
}

std::uint64_t FolderAttempt::NewestStep() const {
  const auto steps = FolderTarget(run_.string(), false).Steps();
  return steps && !steps.value().empty() ? steps.value().back() : step_;
}

}  // namespace

std::unique_ptr<CheckpointTarget> OpenFolderTarget(std::string_view folder, bool direct) {
  return std::make_unique<FolderTarget>(folder, direct);
}

}  // namespace ffrecord::client
