#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord::client {

// The names that the folder of a committed step can have in its run: that of the step, or, for a
// moment, .aside-<step>-<32 hex>. A folder is set aside by a save that takes its place where the
// file system cannot exchange two names, and by a removal that then looks whose it is. It remains
// the step while no folder has the step's name, so that a kill between two renames loses nothing.

// renameat2 with RENAME_NOREPLACE; where the file system does not know the flag, a plain rename
// does as well: it fails on a folder that is not empty, and a committed step never is. Returns an
// errno.
int RenameNoReplace(const std::filesystem::path& from, const std::filesystem::path& to);

// The step of a folder that is set aside; nothing if `name` is none.
std::optional<std::uint64_t> AsideStepOf(std::string_view name);

// A folder that a path named: the path names another one as soon as its step was saved again. It is
// held open, so that no folder made later gets its inode.
class HeldFolder {
 public:
  HeldFolder() = default;  // None.
  explicit HeldFolder(const std::filesystem::path& path);
  bool IsAt(const std::filesystem::path& path) const;

 private:
  UniqueFd folder_;
};

// A folder of `step` that is set aside, and not `other`; nothing if there is none.
std::optional<std::filesystem::path> FindAside(const std::filesystem::path& run, std::uint64_t step,
                                               const HeldFolder* other = nullptr);

// Renames the folder of `step`, and returns its new path. Folders of the step that were set aside
// before are settled. Fails as rename().
Result<std::filesystem::path> SetAside(const std::filesystem::path& run, std::uint64_t step);

// The folder `aside` gets the name of `step` again, if no folder has it. Returns an errno.
int PutBack(const std::filesystem::path& aside, std::uint64_t step);

// Removes the folders of `step` that are set aside while the step has its folder: they have not
// been the step. If it has none, another process has just set it aside, and it gets its name again.
void SettleAside(const std::filesystem::path& run, std::uint64_t step);

// Removes the folders of `step` that are set aside, also if one is the step; whether there was one.
bool RemoveAside(const std::filesystem::path& run, std::uint64_t step);

}  // namespace ffrecord::client
