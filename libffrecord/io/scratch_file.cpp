#include "libffrecord/io/scratch_file.h"

#include <unistd.h>

#include <cerrno>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/file.h"

namespace ffrecord {

Result<ScratchFile> ScratchFile::Create(const std::filesystem::path& path) {
  return ScratchFile(FFR_TRY(UnnamedFile::Create(path, /*replace=*/true)));
}

Result<void> ScratchFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.fd(), bytes.data(), bytes.size(), static_cast<off_t>(size_bytes_));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoError("write a temporary file beside", file_.path(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    size_bytes_ += static_cast<std::uint64_t>(written);
  }
  return {};
}

Result<void> ScratchFile::ReadAt(std::uint64_t offset_bytes,
                                 std::span<std::byte> destination) const {
  FFR_ASSERT(offset_bytes <= size_bytes_);
  FFR_ASSERT(destination.size() <= size_bytes_ - offset_bytes);
  return ReadExactly(file_.fd(), file_.path(), offset_bytes, destination);
}

}  // namespace ffrecord
