#include "server/storage/extent_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

// For each core: most wait for the disk, unless all is in memory.
constexpr std::size_t kThreadsPerCore = 4;
constexpr std::size_t kThreadsMax = 32;

struct CloseFolder {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

Error Corrupt(const char* what) { return Error{ErrorCode::kCorruption, what}; }

Result<ExtentTrailer> OpenTrailer(int folder, const char* name) {
  // O_NONBLOCK: reading the trailer refuses a FIFO, without waiting for it.
  const UniqueFd fd(::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ELOOP) return Corrupt("a link, which is never followed");
  if (!fd) return ErrnoError("open", name, errno);
  return ReadTrailer(fd.get(), name);
}

const ManifestExtent* Find(std::span<const ManifestExtent> known, const ExtentId& id) {
  const auto found = std::ranges::lower_bound(known, id, {}, &ManifestExtent::id);
  return found == known.end() || found->id != id ? nullptr : &*found;
}

// Adds what lies in one slot to `found`.
void ScanSlot(const fs::path& path, std::span<const ManifestExtent> known, FoundExtents& found) {
  const auto refuse = [&](const fs::path& what, std::string_view why) {
    found.refused.push_back(what.string() + ": " + std::string(why));
  };
  const Folder folder(::opendir(path.c_str()));
  if (!folder) return refuse(path, std::string("cannot be listed: ") + std::strerror(errno));
  // The process before this one may have been killed after it had named or removed a file, and
  // before it had synced that. From now on it is said that the extent is sealed, or gone.
  // EINVAL: this file system has nothing to sync in a folder.
  const bool is_durable = ::fsync(::dirfd(folder.get())) == 0 || errno == EINVAL;
  const std::string unsynced =
      is_durable ? "" : std::string("sync folder: ") + std::strerror(errno);
  const std::string slot = path.filename().string();
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    ExtentId id;
    if (!ParseExtentName(slot, name, id)) {
      refuse(path / name, "not the name of an extent");
      continue;
    }
    // Where the file system does not tell what it is, or it is something else, it is opened.
    const ManifestExtent* const extent = entry->d_type == DT_REG ? Find(known, id) : nullptr;
    if (extent != nullptr) {
      found.known.push_back(extent);
      continue;
    }
    auto trailer = OpenTrailer(::dirfd(folder.get()), entry->d_name);
    if (!is_durable)
      refuse(path / name, unsynced);
    else if (!trailer)
      refuse(path / name, trailer.error().message);
    else if (trailer.value().id != id)
      refuse(path / name, "the trailer is that of extent " + Hex(trailer.value().id));
    else
      found.extents.push_back(std::move(trailer).value());
  }
  if (errno != 0) refuse(path, std::string("cannot be listed: ") + std::strerror(errno));
}

}  // namespace

Result<ExtentTrailer> ReadTrailer(int file, const fs::path& name) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return ErrnoError("look at", name, errno);
  if (!S_ISREG(status.st_mode)) return Corrupt("not a regular file");
  std::array<std::byte, ExtentTrailer::kEncodedSizeBytes> bytes;
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  if (size_bytes < bytes.size()) return Corrupt("shorter than its trailer");
  const ssize_t read =
      ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(size_bytes - bytes.size()));
  if (read < 0) return ErrnoError("read the trailer of", name, errno);
  if (static_cast<std::size_t>(read) != bytes.size())
    return Corrupt("became shorter while it was read");
  return DecodeExtentTrailer(bytes, size_bytes);
}

Result<FoundExtents> ScanExtents(const fs::path& folder, std::span<const ManifestExtent> known) {
  std::error_code error;
  std::vector<fs::path> slots;
  for (const auto& slot : fs::directory_iterator(folder, error)) slots.push_back(slot.path());
  if (error) return ErrnoError("list the folder", folder, error.value());

  std::atomic<std::size_t> next{0};
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  const std::size_t count =
      std::clamp<std::size_t>(slots.size(), 1, std::min(cores * kThreadsPerCore, kThreadsMax));
  std::vector<FoundExtents> parts(count);
  const auto scan = [&](FoundExtents& part) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < slots.size();)
      ScanSlot(slots[i], known, part);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < count; ++i)
    threads.emplace_back([&scan, &part = parts[i]] { scan(part); });
  scan(parts[0]);
  for (std::thread& thread : threads) thread.join();

  FoundExtents found = std::move(parts[0]);
  for (const FoundExtents& part : std::span(parts).subspan(1)) {
    found.known.insert(found.known.end(), part.known.begin(), part.known.end());
    found.extents.insert(found.extents.end(), part.extents.begin(), part.extents.end());
    found.refused.insert(found.refused.end(), part.refused.begin(), part.refused.end());
  }
  return found;
}

}  // namespace ffrecord::server
