#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "libffrecord/format/dataset_manifest.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// How uploads that have begun and extents that are to go lie in a MetaStore: uploads/<upload> is
// there while that upload goes on, and holds the prefix below which its client may write, or
// nothing; deletes/<what> holds the ids of extents to unlink. generation is bumped by every publish
// and delete.

inline constexpr std::string_view kUploadKeys = "uploads/";
inline constexpr std::string_view kTombstoneKeys = "deletes/";
inline constexpr std::string_view kGenerationKey = "generation";

std::vector<std::byte> EncodeIds(std::span<const ExtentId> ids);
std::vector<ExtentId> DecodeIds(std::span<const std::byte> bytes);

// Whether a commit that puts these makes room: it puts nothing but tombstones, the generation, and
// which disks the daemon has.
bool MakesRoom(std::span<const MetaStore::Put> puts);

}  // namespace ffrecord::server
