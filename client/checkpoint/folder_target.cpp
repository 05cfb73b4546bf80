#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "client/checkpoint/attempt_folder.h"
#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/step_folder.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/verified.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/file.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLatestName = "LATEST";

// Creates `path` and the folders above it, each durable in the one that holds it.
Result<void> MakeFolders(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if (path.has_parent_path() && path.parent_path() != path)
    FFR_TRY(MakeFolders(path.parent_path()));
  FFR_TRY(MakeFolder(path));
  return SyncParentFolder(path);
}

// --- Writing -------------------------------------------------------------------------------------

// Changes the names of two folders in one step; returns an errno, EINVAL or ENOSYS where the file
// system cannot.
int Exchange(const fs::path& one, const fs::path& other) {
  const auto done =
      ::syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  return done == 0 ? 0 : errno;
}

Error StepExists(const fs::path& path) {
  return Error{ErrorCode::kConflict, "checkpoint: " + path.string() +
                                         " is committed already; save another step, or remove it "
                                         "first"};
}

class FolderAttempt final : public CheckpointAttempt {
 public:
  FolderAttempt(fs::path run, std::uint64_t step, const AttemptId& id, fs::path folder,
                UniqueFd lock, bool direct, HeldFolder replaced)
      : run_(std::move(run)),
        step_(step),
        id_(id),
        folder_(std::move(folder)),
        lock_(std::move(lock)),
        direct_(direct),
        replaced_(std::move(replaced)) {}

  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    const fs::path path = folder_ / name;
    // Files appear whole: one that is there was written by an earlier process, for this attempt.
    // It may have been damaged since.
    std::error_code error;
    if (fs::file_size(path, error) == size_bytes && !error) {
      if (FFR_TRY(HoldsThese(path, size_bytes, source))) return WrittenFile{std::string(name), {}};
      if (::unlink(path.c_str()) != 0) return ErrnoError("remove", path, errno);
    }
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
    std::set<fs::path> folders;
    for (const fs::path& path : kept_)
      if (folders.insert(path.parent_path()).second) FFR_TRY(SyncParentFolder(path));
    return written;
  }

  // A hard link. Where there is none to be had (another file system, too many links, no such
  // thing here, the step just removed, its bytes damaged or not readable) the bytes are written
  // again.
  Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                          std::string_view name) override {
    const std::optional<WrittenFile> none;
    const fs::path from = run_ / StepName(base.step) / SegmentName(base.rank, index);
    const fs::path to = folder_ / name;
    struct stat status {};
    if (::lstat(from.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<std::uint64_t>(status.st_size) !=
            LayoutOfSegment(base.segments[index].payload_size_bytes).file_size_bytes)
      return none;
    FFR_TRY(MakeFolder(to.parent_path()));
    if (::link(from.c_str(), to.c_str()) != 0) return none;
    const auto is_whole = IsWholeHere({std::string(name), {&base, index}});
    if (is_whole && is_whole.value()) {
      kept_.push_back(to);
      return std::optional(WrittenFile{std::string(name), {}});
    }
    if (::unlink(to.c_str()) != 0) return ErrnoError("remove", to, errno);
    return none;
  }

  Result<void> DropKept(std::string_view name) override {
    const fs::path path = folder_ / name;
    if (std::erase(kept_, path) > 0 && ::unlink(path.c_str()) != 0)
      return ErrnoError("remove", path, errno);
    return {};
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
    const bool replaces = replaced_.IsAt(final_path);
    // Under the attempt's name it is garbage of this host, should we be killed right then.
    if (replaces) static_cast<void>(ClaimFolder(final_path));
    const int error = replaces ? TakePlace(final_path) : TakeName(final_path);
    // A copy has the id of the damaged one that it replaces.
    if (error != 0 && (replaced_.IsAt(final_path) || !IsVisible(step_, id_))) {
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
    // Committed. The rest may fail without harm.
    if (replaces) RemoveAttempt(replaced);  // The step that has changed places with it.
    if (replaces) SettleAside(run_, step_);
    RemoveOwners();
    PublishHint();
    CollectGarbage(run_, NewestStep(), [&](std::uint64_t step) { return IsWholeStep(step); });
    return {};
  }

  void Discard() noexcept override { RemoveAttempt(folder_); }

 private:
  // Whether the file is as `source` says. Reads it past no cache: it has just been written, or lies
  // in another attempt that was killed.
  static Result<bool> HoldsThese(const fs::path& path, std::uint64_t size_bytes,
                                 const FileSource& source) {
    const auto file = FFR_TRY(OpenReadOnly(path, false));
    std::vector<std::byte> held;
    for (std::uint64_t done = 0; done < size_bytes; done += held.size()) {
      const auto wanted = FFR_TRY(source(done, size_bytes - done));
      held.resize(wanted.size());
      const auto read = ReadExactly(file.fd.get(), path, done, held);
      if (!read || !std::ranges::equal(held, wanted)) return false;
    }
    return true;
  }

  Result<bool> IsWholeHere(const SegmentInFile& segment) const;

  // Gives the attempt's folder the name of the step, which no folder has. If another save is the
  // step, and is set aside at the moment, it is the step still, and gets the name back. Returns an
  // errno.
  int TakeName(const fs::path& final_path) const {
    const int error = RenameNoReplace(folder_, final_path);
    if (error != 0 || !FindAside(run_, step_, &replaced_)) return error;
    const int back = RenameNoReplace(final_path, folder_);
    if (back != 0) return back;
    // If it is not there any more, it has been removed, for good.
    const auto aside = FindAside(run_, step_, &replaced_);
    const int put_back = aside ? PutBack(*aside, step_) : ENOENT;
    return put_back == ENOENT ? TakeName(final_path) : EEXIST;
  }

  // Puts the attempt's folder in the place of `replaced_`: in one step where the file system
  // exchanges names, and the old folder then has the attempt's name. A save that took the step's
  // place since the look keeps it, or gets it back. Returns an errno.
  int TakePlace(const fs::path& final_path) const {
    const int error = Exchange(folder_, final_path);
    if (error == ENOENT) return TakeName(final_path);
    if (error == EINVAL || error == ENOSYS) return TakePlaceInTwoSteps(final_path);
    if (error != 0) return error;
    std::error_code gone;
    if (replaced_.IsAt(folder_) || !fs::exists(folder_, gone)) return 0;
    const int back = Exchange(folder_, final_path);
    return back != 0 ? back : EEXIST;
  }

  int TakePlaceInTwoSteps(const fs::path& final_path) const {
    for (int tries = kTriesMax; tries > 0; --tries) {
      const auto aside = SetAside(run_, step_);
      if (!aside && aside.error().code != ErrorCode::kNotFound) return aside.error().system_errno;
      if (aside && !replaced_.IsAt(aside.value())) {
        const int back = PutBack(aside.value(), step_);
        return back != 0 ? back : EEXIST;
      }
      const int error = TakeName(final_path);
      if (error == 0) return 0;
      // Put back by the collector of another save, or else by this one.
      const bool is_back = replaced_.IsAt(final_path);
      if (!is_back && aside) static_cast<void>(PutBack(aside.value(), step_));
      if (!is_back || (error != EEXIST && error != ENOTEMPTY)) return error;
    }
    return EBUSY;
  }

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

  // A copy that went on may have owners on several hosts.
  void RemoveOwners() const {
    std::error_code error;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
         entry.increment(error))
      if (entry->path().filename().string().starts_with(kOwnerPrefix))
        ::unlink(entry->path().c_str());
  }

  std::uint64_t NewestStep() const;
  // Whether the files that are here of a committed step are whole: a place of a replicated target
  // has only some of its parts.
  bool IsWholeStep(std::uint64_t step) const;

  static constexpr int kTriesMax = 100;

  fs::path run_;
  std::uint64_t step_;
  AttemptId id_;
  fs::path folder_;
  UniqueFd lock_;
  bool direct_;
  HeldFolder replaced_;  // The step that gives way; none if none does.
  std::vector<fs::path> kept_;
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

  // The same for all links to a file. Not the path: a step is found by its attempt's name first.
  std::string IdentityOf(std::string_view name) const override {
    struct stat status {};
    const fs::path path = folder_ / name;
    if (::stat(path.c_str(), &status) != 0 &&
        ::stat((path.string() + std::string(kPackedSuffix)).c_str(), &status) != 0)
      return "";
    std::string identity;
    for (const auto number :
         {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          static_cast<std::int64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)})
      identity += std::to_string(number) + " ";
    return identity;
  }

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
  FolderTarget(std::string_view folder, bool direct, std::chrono::milliseconds timeout)
      : run_(FromRoot(folder)), name_(folder), direct_(direct), timeout_(timeout) {}

  const std::string& name() const noexcept override { return name_; }

  Result<std::vector<std::uint64_t>> Steps() const override {
    std::vector<std::uint64_t> steps;
    std::error_code error;
    fs::directory_iterator entry(run_, error);
    if (error == std::errc::no_such_file_or_directory) return steps;
    for (; !error && entry != fs::directory_iterator(); entry.increment(error))
      for (const auto step : {StepOf(entry->path().filename().string()),
                              AsideStepOf(entry->path().filename().string())})
        if (step) steps.push_back(*step);
    if (error) return OfRun("list folder", run_, error.value());
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    return steps;
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    fs::path folder = FFR_TRY(FolderOf(step));
    return std::unique_ptr<CommittedStep>(std::make_unique<FolderStep>(std::move(folder)));
  }

  // Under its last name the folder is invisible; should we be killed then, a later save collects
  // it.
  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    const fs::path to = run_ / RemovedName();
    if (only) {
      FFR_TRY(RenameOnly(step, *only, to));
    } else {
      const fs::path from = run_ / StepName(step);
      // First those that would be the step once its folder is gone.
      const bool was_aside = RemoveAside(run_, step);
      const int error = RenameNoReplace(from, to);
      if (error == ENOENT && was_aside) return SyncParentFolder(to);
      if (error != 0) return ErrnoError("remove", from, error);
    }
    FFR_TRY(SyncParentFolder(to));
    RemoveTree(to);
    return {};
  }

  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    const fs::path committed = run_ / StepName(step);
    std::error_code ignored;
    if (fs::exists(committed, ignored) || FindAside(run_, step)) return StepExists(committed);
    return Make(step, attempt, {});
  }

  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    const auto folder = FolderOf(step);
    HeldFolder there(folder ? folder.value() : run_ / StepName(step));
    if (!FFR_TRY(gives_way())) return Begin(step, attempt);
    return Make(step, attempt, std::move(there));
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
    return Made(step, attempt, UniqueFd(), {});
  }

  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    FFR_TRY(MakeFolders(run_));
    const auto decided = PublishSmall(run_ / name, answer);
    if (decided) return std::string(answer);
    if (decided.error().code != ErrorCode::kConflict) return decided.error();
    return Decided(name);
  }

  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator entry(run_, error);
    if (error == std::errc::no_such_file_or_directory) return names;
    for (; !error && entry != fs::directory_iterator(); entry.increment(error))
      if (entry->path().filename().string().starts_with(prefix))
        names.push_back(entry->path().filename().string());
    if (error) return OfRun("list folder", run_, error.value());
    return names;
  }

  Result<std::string> Decided(std::string_view name) const override {
    const auto file = FFR_TRY(OpenReadOnly(run_ / name, false));
    const auto bytes = FFR_TRY(ReadAll(file, run_ / name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void Forget(std::string_view name) noexcept override {
    std::error_code ignored;
    fs::remove(run_ / name, ignored);
  }

 private:
  // The step may leave one name for the other between two looks.
  Result<fs::path> FolderOf(std::uint64_t step) const {
    fs::path folder = run_ / StepName(step);
    struct stat status {};
    if (::stat(folder.c_str(), &status) == 0) return folder;
    if (errno != ENOENT) return OfRun("open folder", folder, errno);
    if (auto aside = FindAside(run_, step)) return *std::move(aside);
    if (::stat(folder.c_str(), &status) == 0) return folder;
    return OfRun("open folder", folder, errno);
  }

  // Renames the step's folder to `to` if it is the save `only`, and no folder that takes its place
  // meanwhile.
  Result<void> RenameOnly(std::uint64_t step, const AttemptId& only, const fs::path& to) const {
    for (;;) {
      if (!FFR_TRY(IsAttemptVisible(*this, step, only))) return AnotherSave(*this, step);
      auto aside = SetAside(run_, step);
      if (!aside && aside.error().code != ErrorCode::kNotFound) return aside.error();
      const auto found = aside ? std::optional(aside.value()) : FindAside(run_, step);
      if (!found) continue;  // Gone, or put back.
      const auto root = ReadRootManifest(FolderStep(*found), step);
      if (root && root.value().attempt == only && ::rename(found->c_str(), to.c_str()) == 0)
        return {};
      const bool is_gone = ::access(found->c_str(), F_OK) != 0 && errno == ENOENT;
      static_cast<void>(PutBack(*found, step));
      if (is_gone) continue;  // Another process put it back.
      if (!root && !IsDamage(root.error())) return root.error();
    }
  }

  // A file in the place of a folder is no run without steps.
  static Error OfRun(std::string_view tried, const fs::path& path, int system_errno) {
    Error error = ErrnoError(tried, path, system_errno);
    if (system_errno != ENOTDIR) return error;
    return Error{ErrorCode::kIo, error.message + "; a target is a folder", ENOTDIR};
  }

  Result<std::unique_ptr<CheckpointAttempt>> Make(std::uint64_t step, const AttemptId& attempt,
                                                  HeldFolder replaced) const {
    FFR_TRY(MakeFolders(run_));
    CollectDead(run_, AttemptName(step, attempt));
    const fs::path folder = run_ / AttemptName(step, attempt);
    UniqueFd lock = FFR_TRY(MakeAttemptFolder(folder, timeout_));
    if (const auto synced = SyncParentFolder(folder); !synced) {
      RemoveAttempt(folder);
      return synced.error();
    }
    return Made(step, attempt, std::move(lock), std::move(replaced));
  }

  std::unique_ptr<CheckpointAttempt> Made(std::uint64_t step, const AttemptId& attempt,
                                          UniqueFd lock, HeldFolder replaced) const {
    return std::make_unique<FolderAttempt>(run_, step, attempt, run_ / AttemptName(step, attempt),
                                           std::move(lock), direct_, std::move(replaced));
  }

  fs::path run_;
  std::string name_;
  bool direct_;
  std::chrono::milliseconds timeout_;
};

Result<bool> FolderAttempt::IsWholeHere(const SegmentInFile& segment) const {
  return AreWhole(FolderStep(folder_), {&segment, 1});
}

bool FolderAttempt::IsVisible(std::uint64_t step, const AttemptId& attempt) const {
  const auto visible = IsAttemptVisible(FolderTarget(run_.string(), false, {}), step, attempt);
  return visible && visible.value();
}

bool FolderAttempt::IsWholeStep(std::uint64_t step) const {
  const FolderStep files(run_ / StepName(step));
  const auto root = ReadRootManifest(files, step);
  if (!root) return false;
  std::vector<PartManifest> parts;
  for (std::uint32_t rank = 0; rank < root.value().parts.size(); ++rank) {
    auto part = ReadPartManifest(files, root.value(), rank);
    if (!part && part.error().code == ErrorCode::kNotFound) continue;
    if (!part) return false;
    parts.push_back(std::move(part).value());
  }
  const auto whole = AreWhole(files, FilesOf(parts));
  return whole && whole.value();
}

std::uint64_t FolderAttempt::NewestStep() const {
  const auto steps = FolderTarget(run_.string(), false, {}).Steps();
  return steps && !steps.value().empty() ? steps.value().back() : step_;
}

}  // namespace

std::unique_ptr<CheckpointTarget> OpenFolderTarget(std::string_view folder, bool direct,
                                                   std::chrono::milliseconds timeout) {
  return std::make_unique<FolderTarget>(folder, direct, timeout);
}

}  // namespace ffrecord::client
