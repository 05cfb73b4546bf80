#include <ffrecord/client/stored_files.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "libffrecord/base/patience.h"
#include "libffrecord/object_store/find_objects.h"
#include "libffrecord/object_store/range_fetch.h"

namespace ffrecord::client {
namespace {

// One connection to a store brings some tens of MiB/s; several bring more.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::uint32_t kRequestsAtOnce = 16;

std::string VersionOf(const object_store::ObjectVersion& version) {
  return version.etag.empty() ? version.last_modified : version.etag;
}

}  // namespace

struct StoredFile::Impl {
  object_store::StoredObject object;
  std::string name;
  std::string version;
};

struct StoredFileMaker {
  static StoredFile Make(object_store::StoredObject object) {
    std::string name = object.name();
    std::string version = VersionOf(object.version);
    return StoredFile(std::make_shared<StoredFile::Impl>(
        StoredFile::Impl{std::move(object), std::move(name), std::move(version)}));
  }
  static std::vector<StoredFile> MakeAll(std::vector<object_store::StoredObject> objects) {
    std::vector<StoredFile> files;
    files.reserve(objects.size());
    for (auto& object : objects) files.push_back(Make(std::move(object)));
    return files;
  }
};

StoredFile::StoredFile(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}

const std::string& StoredFile::name() const noexcept { return impl_->name; }
std::uint64_t StoredFile::size_bytes() const noexcept { return impl_->object.version.size_bytes; }
const std::string& StoredFile::version() const noexcept { return impl_->version; }

Result<void> StoredFile::Read(std::uint64_t offset_bytes, std::span<std::byte> destination,
                              const GiveUp& give_up) const {
  if (offset_bytes > size_bytes() || destination.size() > size_bytes() - offset_bytes)
    return Error{ErrorCode::kInvalidArgument, name() + " has " + std::to_string(size_bytes()) +
                                                  " bytes, and is not read beyond"};
  std::vector<object_store::ObjectRange> ranges;
  for (std::size_t at = 0; at < destination.size(); at += kPieceBytes) {
    ranges.push_back(
        {.store = impl_->object.store.get(),
         .key = impl_->object.key,
         .version = &impl_->object.version,
         .destination = destination.subspan(at, std::min(kPieceBytes, destination.size() - at)),
         .offset_bytes = offset_bytes + at,
         .error = {},
         .found = {}});
  }
  Patience patience(give_up);
  FFR_TRY(object_store::FetchRanges(
      ranges, kRequestsAtOnce, [](object_store::ObjectRange&) {}, patience));
  for (auto& range : ranges)
    if (range.error) return *std::move(range.error);
  return {};
}

Result<std::vector<std::optional<StoredFile>>> LookForStoredFiles(
    std::span<const std::string> addresses, const SessionOptions& options,
    const StoredFile::GiveUp& give_up) {
  const Patience patience(give_up);
  auto objects = FFR_TRY(object_store::LookForObjects(addresses, options.timeout));
  std::vector<std::optional<StoredFile>> files;
  files.reserve(objects.size());
  for (auto& object : objects) {
    if (object)
      files.emplace_back(StoredFileMaker::Make(*std::move(object)));
    else
      files.emplace_back();
  }
  return files;
}

Result<std::vector<StoredFile>> MatchStoredFiles(const std::string& pattern,
                                                 const SessionOptions& options,
                                                 const StoredFile::GiveUp& give_up) {
  const Patience patience(give_up);
  return StoredFileMaker::MakeAll(
      FFR_TRY(object_store::FindObjects(std::span(&pattern, 1), options.timeout)));
}

Result<std::vector<StoredFile>> ListStoredFiles(const std::string& folder,
                                                const SessionOptions& options,
                                                const StoredFile::GiveUp& give_up) {
  const Patience patience(give_up);
  return StoredFileMaker::MakeAll(FFR_TRY(object_store::ListObjects(folder, options.timeout)));
}

}  // namespace ffrecord::client
