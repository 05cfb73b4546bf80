#include "server/service/origin/origin_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

// Whether no part between slashes is empty, "." or "..": so a prefix of the text is a place.
bool IsPlain(std::string_view path) {
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (part.empty() || part == "." || part == "..") return false;
    if (part.size() == path.size()) return true;
    path.remove_prefix(part.size() + 1);
  }
  return false;
}

bool IsAddress(std::string_view text) {
  if (text.starts_with(kS3Scheme))
    return IsPlain(text.substr(kS3Scheme.size())) &&
           text.find_first_of("?*[") == std::string_view::npos;
  return text.starts_with('/') && IsPlain(text.substr(1));
}

// Below `folder` no link is followed: so nothing outside is reached, even if others can write
// there.
Result<UniqueFd> OpenBelow(const std::string& folder, std::string_view rest,
                           const std::string& address) {
  UniqueFd at(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at) return ErrnoError("open the folder", folder, errno);
  while (!rest.empty()) {
    const std::string part(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    // O_NONBLOCK: a FIFO is refused below, and not waited for.
    const int flags = rest.empty() ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;
    UniqueFd next(::openat(at.get(), part.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
    if (!next) return ErrnoError("open", address, errno);
    at = std::move(next);
  }
  return at;
}

Result<void> ReadOriginFile(const std::string& folder, const OriginFile& file,
                            std::uint64_t offset_bytes, std::uint64_t size_bytes,
                            const OriginReader::TakePiece& take) {
  const std::string& address = file.origin.address;
  const UniqueFd fd =
      FFR_TRY(OpenBelow(folder, std::string_view(address).substr(folder.size() + 1), address));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("look at", address, errno);
  if (!S_ISREG(status.st_mode)) return OriginChanged(file, "it is no regular file");
  if (static_cast<std::uint64_t>(status.st_size) != file.size_bytes)
    return OriginChanged(file, "it has " + std::to_string(status.st_size) + " bytes and had " +
                                   std::to_string(file.size_bytes));
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, size_bytes));
  for (std::uint64_t done = 0; done < size_bytes;) {
    if (Patience::OfThread().IsOver())
      return Error{ErrorCode::kUnavailable, address + ": the daemon stops"};
    const std::size_t wanted = std::min<std::uint64_t>(piece.size(), size_bytes - done);
    const ssize_t got =
        ::pread(fd.get(), piece.data(), wanted, static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", address, errno);
    if (got == 0) return OriginChanged(file, "it became shorter while it was read");
    FFR_TRY(take(std::span(piece).first(static_cast<std::size_t>(got))));
    done += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace

Error OriginChanged(const OriginFile& file, const std::string& what) {
  return {ErrorCode::kConflict, file.origin.address + " has changed since it was published: " +
                                    what + "; put it back as it was, or publish the name again"};
}

std::uint64_t OriginsHash(std::vector<std::string> places) {
  if (places.empty()) return 0;
  std::ranges::sort(places);
  std::string text;
  for (const std::string& place : places) text += place + '\n';
  return std::max<std::uint64_t>(Xxh3(std::as_bytes(std::span(text))), 1);
}

OriginReader::OriginReader(Options options)
    : options_(std::move(options)), stores_(MakeOriginStores(options_.timeout)) {}

std::optional<std::size_t> OriginReader::PlaceOf(std::string_view address) const {
  std::optional<std::size_t> place;
  for (std::size_t i = 0; i < options_.allowed.size(); ++i) {
    const std::string& allowed = options_.allowed[i];
    if (address.size() > allowed.size() && address.starts_with(allowed) &&
        address[allowed.size()] == '/' &&
        (!place || allowed.size() > options_.allowed[*place].size()))
      place = i;
  }
  return place;
}

Result<void> OriginReader::Check(std::string_view address) const {
  if (!IsAddress(address))
    return Error{ErrorCode::kInvalidArgument,
                 std::string(address) +
                     ": the address of an origin is s3://BUCKET/KEY or an "
                     "absolute path, without patterns, . and .."};
  if (!PlaceOf(address))
    return Error{ErrorCode::kDenied, std::string(address) +
                                         ": the daemon may not read it; add the bucket, or the "
                                         "folder, to its setting origins"};
  return {};
}

Result<void> OriginReader::Read(const OriginFile& file, std::uint64_t offset_bytes,
                                std::uint64_t size_bytes, const TakePiece& take) const {
  FFR_TRY(Check(file.origin.address));
  if (file.origin.address.starts_with(kS3Scheme))
    return ReadOriginObject(*stores_, file, offset_bytes, size_bytes, take);
  const std::string& folder = options_.allowed[*PlaceOf(file.origin.address)];
  return ReadOriginFile(folder, file, offset_bytes, size_bytes, take);
}

}  // namespace ffrecord::server
