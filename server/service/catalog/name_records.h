#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "server/metadata/blocking_store.h"

namespace ffrecord::server {

// How published names lie in a MetaStore: datasets/<name> says which manifest and what LIST tells,
// manifests/<attempt> holds it. Numbers in keys have 16 hex digits.

inline constexpr std::string_view kDatasetKeys = "datasets/";
inline constexpr std::string_view kManifestKeys = "manifests/";

std::string NumberKey(std::string_view prefix, std::uint64_t number);
bool ParseNumberKey(std::string_view prefix, std::string_view key, std::uint64_t& number);
std::string NameKey(std::string_view name);

struct NameRecord {
  std::uint64_t attempt = 0;  // That published it.
  std::uint64_t size_bytes = 0;
  std::uint64_t file_count = 0;
  std::uint64_t revision = 0;  // Revision of its key; not in the record.

  std::vector<std::byte> Encode() const;
};

// None if nothing is published under `name`. Fails as the MetaStore, with kCorruption.
Result<std::optional<NameRecord>> FindName(BlockingStore& meta, std::string_view name);
// The manifest, encoded. Fails as the MetaStore, with kCorruption if it is not there.
Result<std::vector<std::byte>> ReadManifest(BlockingStore& meta, const NameRecord& name);

// All that is published.
struct PublishedNames {
  struct Dataset {
    std::string name;
    DatasetManifest manifest;
  };
  std::vector<Dataset> datasets;
  std::vector<std::string> damaged;  // Name and reason of each whose manifest cannot be read.

  // The extents of all datasets, in order of their ids, each once.
  std::vector<ManifestExtent> Extents() const;
};

// Fails as the MetaStore.
Result<PublishedNames> ReadPublishedNames(BlockingStore& meta);

// Calls `visit` with every entry below `prefix`. Fails as the MetaStore.
template <class Visit>
Result<void> ForEachEntry(BlockingStore& meta, std::string_view prefix, Visit visit) {
  constexpr std::uint32_t kPageSize = 256;
  std::string after;
  for (;;) {
    const auto page = FFR_TRY(meta.List(prefix, after, kPageSize));
    for (const auto& entry : page.entries) visit(entry);
    if (!page.more) return {};
    after = page.entries.back().key;
  }
}

}  // namespace ffrecord::server
