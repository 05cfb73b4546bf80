#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

namespace ffrecord::server {

// The id of a daemon or of one of its disks: random, made once.
using DiskId = std::array<std::byte, 16>;

// Which disk of which daemon a data directory is. Lies in the file `identity` of the directory,
// which is written once and never changed: an empty directory, such as a mount point without its
// disk, has none.
struct DiskIdentity {
  DiskId daemon{};
  DiskId disk{};

  bool operator==(const DiskIdentity&) const = default;

  // The text of the file; format.md, "Identity".
  std::string Encode() const;
  // Fails with kCorruption if `text` is not exactly such a text.
  static Result<DiskIdentity> Decode(std::string_view text);
};

// None if `folder` has no such file. Fails with kCorruption, kDenied, kIo.
Result<std::optional<DiskIdentity>> ReadDiskIdentity(const std::filesystem::path& folder);

// Writes the file whole and durably, or not at all. Fails with kConflict if there is one, kDenied,
// kIo.
Result<void> WriteDiskIdentity(const std::filesystem::path& folder, const DiskIdentity& identity);

}  // namespace ffrecord::server
