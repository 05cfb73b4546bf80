#include "libffrecord/record/index/source_state.h"

#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "libffrecord/io/file.h"

namespace ffrecord {
namespace {

FileState StateIn(const struct stat& found) noexcept {
  return {static_cast<std::uint64_t>(found.st_size),
          found.st_mtim.tv_sec * std::int64_t{1'000'000'000} + found.st_mtim.tv_nsec};
}

// The file that describes `source`.
std::filesystem::path PathOf(SourceDescription::Kind kind, const std::filesystem::path& source) {
  if (kind == SourceDescription::Kind::kMdsFolder) return source.parent_path() / "index.json";
  constexpr std::string_view kSuffix = ".bin";
  std::string_view stem = source.native();
  if (stem.ends_with(kSuffix)) stem.remove_suffix(kSuffix.size());
  return std::string(stem) + ".idx";
}

}  // namespace

Result<FileState> StateOf(const std::filesystem::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return ErrnoError("look at", path, errno);
  return StateIn(found);
}

Result<FileState> StateOf(int fd, const std::filesystem::path& path) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return ErrnoError("look at", path, errno);
  return StateIn(found);
}

Result<void> CheckDescription(const std::filesystem::path& source,
                              const SourceDescription& description) {
  if (description.kind == SourceDescription::Kind::kNone) return {};
  const std::filesystem::path path = PathOf(description.kind, source);
  const auto state = StateOf(path);
  if (!state && state.error().code == ErrorCode::kNotFound) return {};
  if (!state) return state.error();
  if (state.value() == FileState{description.size_bytes, description.time_ns}) return {};
  return Error{ErrorCode::kConflict,
               source.string() + ": " + path.string() +
                   ", which describes it, was changed after it was indexed: its size or time is "
                   "another; make the index again ('ffrecord index')"};
}

}  // namespace ffrecord
