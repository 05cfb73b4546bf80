#include "server/storage/disk_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "identity";
constexpr std::string_view kTitle = "ffrecord disk 1\n";
constexpr std::string_view kDaemon = "daemon ";
constexpr std::string_view kDisk = "disk ";
constexpr std::string_view kCheck = "check ";
constexpr std::size_t kSizeBytesMax = 4096;

Error Corrupt(std::string_view what) { return Error{ErrorCode::kCorruption, std::string(what)}; }

// Takes "<key><hex>\n" off the front of `text`.
bool TakeLine(std::string_view& text, std::string_view key, std::span<std::byte> value) {
  const std::size_t size = key.size() + 2 * value.size() + 1;
  if (text.size() < size || !text.starts_with(key) || text[size - 1] != '\n') return false;
  if (!FromHex(text.substr(key.size(), 2 * value.size()), value)) return false;
  text.remove_prefix(size);
  return true;
}

}  // namespace

std::string DiskIdentity::Encode() const {
  std::string text(kTitle);
  text.append(kDaemon).append(Hex(daemon)).append("\n");
  text.append(kDisk).append(Hex(disk)).append("\n");
  const std::string check = Hex(Xxh3(std::as_bytes(std::span(text))));
  return text.append(kCheck).append(check).append("\n");
}

Result<DiskIdentity> DiskIdentity::Decode(std::string_view text) {
  std::string_view rest = text;
  if (!rest.starts_with(kTitle)) return Corrupt("it does not begin with 'ffrecord disk 1'");
  rest.remove_prefix(kTitle.size());
  DiskIdentity identity;
  if (!TakeLine(rest, kDaemon, identity.daemon) || !TakeLine(rest, kDisk, identity.disk))
    return Corrupt("a line is damaged");
  // One spelling only: what is read is what was written.
  if (text != identity.Encode()) return Corrupt("its check does not match");
  return identity;
}

Result<std::optional<DiskIdentity>> ReadDiskIdentity(const fs::path& folder) {
  const fs::path path = folder / kName;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::optional<DiskIdentity>();
  if (!fd) return ErrnoError("open", path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("look at", path, errno);
  if (!S_ISREG(status.st_mode) || status.st_size > static_cast<off_t>(kSizeBytesMax))
    return Corrupt(path.string() + " is damaged: it is not a small file");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  FFR_TRY(ReadExactly(fd.get(), path, 0, std::as_writable_bytes(std::span(text))));
  const auto identity = DiskIdentity::Decode(text);
  if (!identity) return Corrupt(path.string() + " is damaged: " + identity.error().message);
  return std::optional(identity.value());
}

Result<void> WriteDiskIdentity(const fs::path& folder, const DiskIdentity& identity) {
  const std::string text = identity.Encode();
  auto file = FFR_TRY(AtomicFile::Create(folder / kName, {}));
  FFR_TRY(file.Append(std::as_bytes(std::span(text))));
  return file.Publish();
}

}  // namespace ffrecord::server
