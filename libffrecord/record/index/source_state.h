#pragma once

#include <cstdint>
#include <filesystem>

#include <ffrecord/result.h>
#include <ffrecord/source_description.h>

namespace ffrecord {

// Size and time of a file, by which a change is noticed.
struct FileState {
  std::uint64_t size_bytes = 0;
  std::int64_t time_ns = 0;  // Time of its last change, since 1970.

  bool operator==(const FileState&) const = default;
};

// Fails with kNotFound if there is no such file, with kDenied or kIo.
Result<FileState> StateOf(const std::filesystem::path& path);
// The same of an open file; messages name `path`.
Result<FileState> StateOf(int fd, const std::filesystem::path& path);

// Fails with kConflict if the file that describes `source` has changed since it was as
// `description` says. If there is none any more, nothing contradicts the index.
Result<void> CheckDescription(const std::filesystem::path& source,
                              const SourceDescription& description);

}  // namespace ffrecord
