#include "client/checkpoint/step_folder.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/checkpoint/attempt_folder.h"
#include "client/checkpoint/target.h"
#include "libffrecord/io/file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAsidePrefix = ".aside-";

std::vector<fs::path> AllAside(const fs::path& run, std::uint64_t step) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(run, error), end; !error && entry != end;
       entry.increment(error))
    if (AsideStepOf(entry->path().filename().string()) == step) found.push_back(entry->path());
  return found;
}

}  // namespace

int RenameNoReplace(const fs::path& from, const fs::path& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

std::optional<std::uint64_t> AsideStepOf(std::string_view name) {
  if (!name.starts_with(kAsidePrefix)) return std::nullopt;
  name.remove_prefix(kAsidePrefix.size());
  std::uint64_t step = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data(), last, step);
  if (error != std::errc() || end == last || *end != '-') return std::nullopt;
  return step;
}

std::optional<fs::path> FindAside(const fs::path& run, std::uint64_t step,
                                  const HeldFolder* other) {
  for (fs::path& path : AllAside(run, step))
    if (other == nullptr || !other->IsAt(path)) return std::move(path);
  return std::nullopt;
}

Result<fs::path> SetAside(const fs::path& run, std::uint64_t step) {
  const fs::path from = run / StepName(step);
  std::error_code ignored;
  if (fs::exists(from, ignored)) SettleAside(run, step);
  fs::path aside =
      run / (std::string(kAsidePrefix) + std::to_string(step) + "-" + RandomFolderId());
  if (::rename(from.c_str(), aside.c_str()) != 0) return ErrnoError("set aside", from, errno);
  return aside;
}

int PutBack(const fs::path& aside, std::uint64_t step) {
  return RenameNoReplace(aside, aside.parent_path() / StepName(step));
}

void SettleAside(const fs::path& run, std::uint64_t step) {
  for (const fs::path& path : AllAside(run, step)) {
    const int error = PutBack(path, step);
    if (error == EEXIST || error == ENOTEMPTY) RemoveAttempt(path);
  }
}

bool RemoveAside(const fs::path& run, std::uint64_t step) {
  const auto found = AllAside(run, step);
  for (const fs::path& path : found) RemoveAttempt(path);
  return !found.empty();
}

HeldFolder::HeldFolder(const fs::path& path)
    : folder_(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)) {}

bool HeldFolder::IsAt(const fs::path& path) const {
  struct stat held {};
  struct stat there {};
  return folder_ && ::fstat(folder_.get(), &held) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

}  // namespace ffrecord::client
