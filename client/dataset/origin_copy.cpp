#include "client/dataset/origin_copy.h"

#include <algorithm>
#include <set>
#include <utility>

#include "client/dataset/origin_files.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::uint64_t kCopyBytes = std::uint64_t{32} << 20;

// Has every byte of the file given to `take`, in order.
Result<void> ReadAll(
    const RangeReader& file,
    const std::function<Result<void>(std::uint64_t, std::span<const std::byte>)>& take) {
  const std::uint64_t size_bytes = file.file_size_bytes(0);
  std::vector<std::byte> bytes(std::min(size_bytes, kCopyBytes));
  for (std::uint64_t at = 0; at < size_bytes; at += bytes.size()) {
    bytes.resize(std::min(size_bytes - at, kCopyBytes));
    FFR_TRY(ReadWhole(file, 0, at, bytes));
    FFR_TRY(take(at, bytes));
  }
  return {};
}

// That what is at `address` has the bytes of `file`.
Result<void> CheckSame(const RangeReader& file, const std::string& address,
                       const SessionOptions& options) {
  const Error other{ErrorCode::kConflict,
                    address +
                        " exists with other bytes, and is not replaced; copy to another "
                        "folder or prefix, or remove it if it is yours"};
  const auto there = FFR_TRY(OpenOriginFiles({&address, 1}, options));
  if (there.files->file_size_bytes(0) != file.file_size_bytes(0)) return other;
  std::vector<std::byte> found;
  return ReadAll(file, [&](std::uint64_t at, std::span<const std::byte> bytes) -> Result<void> {
    found.resize(bytes.size());
    FFR_TRY(ReadWhole(*there.files, 0, at, found));
    if (!std::ranges::equal(bytes, found)) return other;
    return {};
  });
}

// False if there is a file of that name.
Result<bool> PutFile(const fs::path& path, const RangeReader& file, const TellCopied& tell) {
  auto made = AtomicFile::Create(path, {.expected_size_bytes = file.file_size_bytes(0)});
  if (!made && made.error().code == ErrorCode::kConflict) return false;
  if (!made) return std::move(made).error();
  const auto append = [&](std::uint64_t at, std::span<const std::byte> bytes) -> Result<void> {
    FFR_TRY(made.value().Append(bytes));
    tell(at + bytes.size());
    return {};
  };
  FFR_TRY(ReadAll(file, append));
  const auto published = made.value().Publish();
  if (!published && published.error().code == ErrorCode::kConflict) return false;
  if (!published) return published.error();
  return true;
}

Result<void> CheckNames(std::span<const fs::path> files) {
  std::set<fs::path> names;
  for (const fs::path& file : files)
    if (!names.insert(file.filename()).second)
      return Error{ErrorCode::kInvalidArgument,
                   file.string() + ": another file has the name " + file.filename().string() +
                       " too, and both would be copied to one place; rename one of them"};
  return {};
}

}  // namespace

Result<std::vector<std::string>> CopyToOrigin(std::span<const fs::path> files,
                                              std::string_view place, const SessionOptions& options,
                                              const TellCopied& tell) {
  FFR_TRY(CheckNames(files));
  while (place.size() > 1 && place.ends_with('/')) place.remove_suffix(1);
  const bool is_bucket = place.starts_with(kS3Scheme);
  if (!is_bucket && place.find("://") != std::string_view::npos)
    return Error{ErrorCode::kInvalidArgument,
                 std::string(place) + ": files are copied to s3://BUCKET/PREFIX or to a folder"};
  std::vector<std::string> addresses;
  std::uint64_t done = 0;
  for (const fs::path& path : files) {
    SourceOptions source;
    source.io = IoPolicy::kBuffered;
    const auto file = FFR_TRY(OpenLocalFiles({&path, 1}, source));
    const std::string address = std::string(place) + "/" + path.filename().string();
    const auto tell_of_all = [&](std::uint64_t of_this) { tell(done + of_this); };
    const bool is_new = is_bucket ? FFR_TRY(PutOriginObject(address, *file, options, tell_of_all))
                                  : FFR_TRY(PutFile(address, *file, tell_of_all));
    if (!is_new) FFR_TRY(CheckSame(*file, address, options));
    done += file->file_size_bytes(0);
    tell(done);
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace ffrecord::client
