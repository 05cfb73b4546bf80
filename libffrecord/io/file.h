#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord {

// The alignment that direct I/O on a file needs, as statx reports it, for memory and for offsets.
// 0: direct I/O is not possible.
struct DirectAlignment {
  std::uint32_t memory_bytes = 0;
  std::uint32_t offset_bytes = 0;
};

// An open regular file that is only read. Move-only.
struct ReadOnlyFile {
  UniqueFd fd;
  UniqueFd direct_fd;  // The same file with O_DIRECT; none if it was not asked for or is refused.
  DirectAlignment direct_alignment;
  std::uint64_t size_bytes = 0;
};

// Fails with kInvalidArgument if the path holds a zero byte: the kernel would cut the path there
// and use another file. Call it before opening or creating a path that a caller gave.
Result<void> CheckPath(const std::filesystem::path& path);

// Opens `path` with O_CLOEXEC. Fails with kNotFound if there is none, with kInvalidArgument if it
// is not a regular file (a folder, a FIFO: never blocks), with kDenied if it may not be read, with
// kIo otherwise. Every message names the path. It is no failure if the file system has no O_DIRECT
// (tmpfs, overlay).
Result<ReadOnlyFile> OpenReadOnly(const std::filesystem::path& path, bool want_direct);

// The file of `fd` opened once more, with O_DIRECT; without a descriptor where the file system does
// not allow that.
struct DirectFile {
  UniqueFd fd;
  DirectAlignment alignment;
};
DirectFile OpenDirect(int fd);

// An Error with the code that fits `system_errno`, kIo by default. Its message names the action and
// the file.
Error ErrnoError(std::string_view tried, const std::filesystem::path& path, int system_errno);

// Raises the process's soft limit of open files if necessary, as far as the hard limit allows, so
// that `count` more can be opened. The limit stays raised. Returns how many descriptors the caller
// may open, which may be fewer or more than `count`; some are left for the rest of the process.
std::uint64_t MakeRoomForDescriptors(std::uint64_t count) noexcept;

// Reads all of `destination` at `offset_bytes`. Fails with kIo, or with kCorruption if the file
// ends before.
Result<void> ReadExactly(int fd, const std::filesystem::path& path, std::uint64_t offset_bytes,
                         std::span<std::byte> destination);

// fsync of the folder that holds `path`, so that a rename or link in it survives a crash.
Result<void> SyncParentFolder(const std::filesystem::path& path);

}  // namespace ffrecord
