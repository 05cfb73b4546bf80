#include "client/dataset/origin_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <ffrecord/client/dataset.h>

#include "client/dataset/object_source.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord::client {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
// Read at a time, by as many requests as make it up.
constexpr std::uint64_t kReadBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

Result<OriginFiles> OpenPaths(std::span<const std::string> locations) {
  OriginFiles opened;
  std::vector<std::filesystem::path> paths;
  for (const std::string& location : locations) {
    std::error_code failed;
    // Without links: the nodes follow none.
    paths.push_back(std::filesystem::canonical(location, failed));
    if (failed)
      return Error{
          failed == std::errc::no_such_file_or_directory ? ErrorCode::kNotFound : ErrorCode::kIo,
          location + ": " + failed.message(), failed.value()};
    opened.origins.push_back({paths.back().string(), ""});
  }
  SourceOptions options;
  options.io = IoPolicy::kBuffered;
  opened.files = FFR_TRY(OpenLocalFiles(paths, options));
  return opened;
}

}  // namespace

Result<void> ReadWhole(const RangeReader& files, std::uint32_t file, std::uint64_t offset_bytes,
                       std::span<std::byte> bytes) {
  std::vector<RangeRead> ranges;
  for (std::uint64_t at = 0; at < bytes.size(); at += kPieceBytes)
    ranges.push_back({file, offset_bytes + at,
                      bytes.subspan(at, std::min<std::uint64_t>(kPieceBytes, bytes.size() - at))});
  FFR_TRY(files.Read(ranges));
  for (const RangeRead& range : ranges)
    if (range.status != ErrorCode::kOk)
      return Error{range.status,
                   files.file_name(file) + " cannot be read: " + files.Trouble(file, range.status)};
  return {};
}

Result<OriginFiles> OpenOriginFiles(std::span<const std::string> locations,
                                    const SessionOptions& options) {
  const auto is_s3 = [](const std::string& text) { return text.starts_with(kS3Scheme); };
  const bool has_objects = std::ranges::any_of(locations, is_s3);
  for (const std::string& location : locations)
    if (is_s3(location) != has_objects ||
        (!has_objects && location.find("://") != std::string::npos))
      return Error{ErrorCode::kInvalidArgument,
                   location +
                       ": the files of a name of class origin are either all objects, "
                       "s3://BUCKET/KEY, or all paths in a shared folder"};
  if (!has_objects) return OpenPaths(locations);
  auto objects = FFR_TRY(OpenOriginObjects(locations, options));
  return OriginFiles{std::move(objects.files), std::move(objects.origins)};
}

Result<ManifestFile> DescribeOriginFile(const OriginFiles& files, std::uint32_t number,
                                        std::string name, std::uint64_t upload,
                                        const std::function<void(std::uint64_t)>& tell) {
  const std::uint64_t size_bytes = files.files->file_size_bytes(number);
  ManifestFile file{std::move(name), size_bytes, {}, files.origins[number]};
  std::vector<std::byte> bytes(std::min(size_bytes, kReadBytes));
  for (std::uint64_t begin = 0; begin < size_bytes; begin += kExtentSizeMax) {
    const std::uint64_t end = std::min(size_bytes, begin + kExtentSizeMax);
    Xxh3Stream sum;
    for (std::uint64_t at = begin; at < end; at += bytes.size()) {
      const auto part = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), end - at));
      FFR_TRY(ReadWhole(*files.files, number, at, part));
      sum.Update(part);
      tell(at + part.size());
    }
    const auto id = MakeExtentId(upload, number, static_cast<std::uint32_t>(file.extents.size()));
    file.extents.push_back({id, end - begin, sum.Finish64()});
  }
  return file;
}

}  // namespace ffrecord::client
