#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/erasure_code.h"

namespace ffrecord {

// The name of one extent, a piece of a file that lies whole on a node.
//
// Bytes 0-7: the upload that brought it, random. Bytes 8-11: the file in that upload, big-endian.
// Bytes 12-15: the extent in that file, big-endian; so names sort. No extent is called all zeros.
using ExtentId = std::array<std::byte, 16>;

ExtentId MakeExtentId(std::uint64_t upload, std::uint32_t file, std::uint32_t extent) noexcept;
std::uint64_t UploadOf(const ExtentId& id) noexcept;

// Files are cut into extents of this size; a file's last one holds the rest.
inline constexpr std::uint64_t kExtentSizeMax = std::uint64_t{64} << 20;

struct ManifestExtent {
  ExtentId id{};
  std::uint64_t size_bytes = 0;  // 1 to kExtentSizeMax.
  std::uint64_t xxh3 = 0;        // XXH3-64 of its bytes, seed 0.

  bool operator==(const ManifestExtent&) const = default;
};

// Where the bytes of a file are if the nodes only cache them: an object of a store, or a file of a
// folder that all nodes share.
struct FileOrigin {
  // s3://BUCKET/KEY or an absolute path. Empty: the file has no origin, and nodes hold its extents.
  std::string address;
  std::string version;  // The store's ETag when the file was published; empty: it named none.

  bool operator==(const FileOrigin&) const = default;
};

// One named file: its bytes are those of its extents, in order. All extents but the last hold
// kExtentSizeMax bytes, so that an offset finds its extent by division. An empty file has none.
struct ManifestFile {
  std::string name;  // 1 to 1,024 bytes, no control characters; unique in its manifest.
  std::uint64_t size_bytes = 0;
  std::vector<ManifestExtent> extents;
  FileOrigin origin = {};

  bool has_origin() const noexcept { return !origin.address.empty(); }
  bool operator==(const ManifestFile&) const = default;
};

// The ordered list of files that one published name stands for. format.md, "Dataset manifest".
// A dataset lists its FFRecord files; a checkpoint its manifests and segments. A value: copies are
// independent.
struct DatasetManifest {
  // The most that a frame can carry: room for 16 TiB in extents of full size.
  static constexpr std::size_t kEncodedSizeMax = std::size_t{8} << 20;
  static constexpr std::size_t kNameSizeMax = 1024;
  static constexpr std::uint8_t kReplicasMax = 3;
  static constexpr std::size_t kOriginSizeMax = 4096;  // For an address, and for a version.

  std::vector<ManifestFile> files;  // All of them have an origin, or none has.
  // The durability class of a name of a cluster: replicas of each extent, 1 to kReplicasMax; 0: as
  // many as the cluster has, or none but those that the erasure code stands for. With one, of each
  // stripe (stripes.h) any `code.data` members give the others. Files with origins have neither.
  std::uint8_t replicas = 0;
  ErasureCode code = {};
  std::vector<ManifestExtent> parity = {};  // `code.parity` of each stripe, in order.

  std::uint64_t size_bytes() const noexcept;  // Sum over all files,
  std::size_t extent_count() const noexcept;  // and their extents, without parity.
  // The durability class of the name is `origin`: nodes cache its extents, and hold no replicas.
  bool has_origins() const noexcept { return !files.empty() && files.front().has_origin(); }
  bool has_code() const noexcept { return !code.is_none(); }
  // The file called `name`, or null.
  const ManifestFile* Find(std::string_view name) const noexcept;

  bool operator==(const DatasetManifest&) const = default;
};

// Calls `visit` with each extent that nodes are to hold, those of parity last.
template <class Visit>
void ForEachHeldExtent(const DatasetManifest& manifest, const Visit& visit) {
  for (const ManifestFile& file : manifest.files) {
    if (file.has_origin()) continue;
    for (const ManifestExtent& extent : file.extents) visit(extent);
  }
  for (const ManifestExtent& extent : manifest.parity) visit(extent);
}

// Fails with kInvalidArgument if a file breaks a rule above, or if the result passes
// kEncodedSizeMax.
Result<std::vector<std::byte>> EncodeDatasetManifest(const DatasetManifest& manifest);

// Fails with kCorruption if anything in `bytes` is not as EncodeDatasetManifest makes it. Allocates
// no more than a few times the size of `bytes`.
Result<DatasetManifest> DecodeDatasetManifest(std::span<const std::byte> bytes);

}  // namespace ffrecord
