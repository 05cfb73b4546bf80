#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/in_place_front.h"
#include "libffrecord/source/local_files.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// A local file that is read: a record file, or a source with the index that was made of it.
struct IndexedSource {
  std::filesystem::path path;   // The record file, or the source.
  std::filesystem::path index;  // Empty for a record file.
  InPlaceFront front = {};      // Front of the index.
};

// The name of an index in place is that of its source and this.
inline constexpr const char* kIndexSuffix = ".ffindex";

// The front of the index `path`. Fails as OpenReadOnly and DecodeInPlaceFront.
Result<InPlaceFront> ReadInPlaceFront(const std::filesystem::path& path);

// The source of the index `path`: the file of its name beside it, or else the one that it names.
std::filesystem::path SourceOf(const std::filesystem::path& path, const InPlaceFront& front);

// Whether any of `paths` has, or is, an index in place. One look for each file that is not called
// *.ffr, and none for others.
bool AnyIsIndexed(std::span<const std::filesystem::path> paths);

// The files to read for `paths`, in their order: a source is read with the index beside it, an
// index with the source that it names, or one of that name beside it. Fails with kConflict if a
// source, or the file that describes it, has changed since it was indexed, with kNotFound if it is
// missing, as DecodeInPlaceFront and OpenReadOnly.
Result<std::vector<IndexedSource>> FindIndexed(std::span<const std::filesystem::path> paths);

// A RangeReader in which each source and its index are one version 2 file. Fails as OpenLocalFiles,
// and with kCorruption if an index is too short.
Result<std::unique_ptr<RangeReader>> OpenIndexed(std::vector<IndexedSource> files,
                                                 const SourceOptions& options);

}  // namespace ffrecord
