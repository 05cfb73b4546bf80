#include "server/service/catalog/name_records.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::server {

std::string NumberKey(std::string_view prefix, std::uint64_t number) {
  return std::string(prefix) + Hex(number);
}

bool ParseNumberKey(std::string_view prefix, std::string_view key, std::uint64_t& number) {
  key.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number, 16);
  return error == std::errc() && end == key.data() + key.size() && key.size() == 16;
}

std::string NameKey(std::string_view name) { return std::string(kDatasetKeys) + std::string(name); }

std::vector<std::byte> NameRecord::Encode() const {
  return net::EncodeFields(attempt, size_bytes, file_count);
}

Result<std::optional<NameRecord>> FindName(BlockingStore& meta, std::string_view name) {
  const auto entry = FFR_TRY(meta.Get(NameKey(name)));
  if (!entry) return std::optional<NameRecord>();
  NameRecord found;
  found.revision = entry->mod_revision;
  if (!net::DecodeFields(entry->value, found.attempt, found.size_bytes, found.file_count))
    return Error{ErrorCode::kCorruption, "the record of the name " + std::string(name) +
                                             " is damaged in the daemon's metadata"};
  return std::optional(found);
}

Result<std::vector<std::byte>> ReadManifest(BlockingStore& meta, const NameRecord& name) {
  auto entry = FFR_TRY(meta.Get(NumberKey(kManifestKeys, name.attempt)));
  if (!entry)
    return Error{ErrorCode::kCorruption, "the manifest is missing in the daemon's metadata"};
  return std::move(entry->value);
}

namespace {

Result<DatasetManifest> ReadPublished(BlockingStore& meta, const std::string& name) {
  const auto record = FFR_TRY(FindName(meta, name));
  if (!record) return Error{ErrorCode::kCorruption, "its record is gone"};
  const auto bytes = FFR_TRY(ReadManifest(meta, *record));
  auto manifest = FFR_TRY(DecodeDatasetManifest(bytes));
  if (record->size_bytes == manifest.size_bytes() && record->file_count == manifest.files.size())
    return manifest;
  return Error{ErrorCode::kCorruption, "its record does not fit its manifest"};
}

}  // namespace

Result<PublishedNames> ReadPublishedNames(BlockingStore& meta) {
  std::vector<std::string> names;
  FFR_TRY(ForEachEntry(meta, kDatasetKeys, [&](const MetaStore::KeyValue& entry) {
    names.push_back(entry.key.substr(kDatasetKeys.size()));
  }));
  PublishedNames published;
  for (std::string& name : names) {
    auto manifest = ReadPublished(meta, name);
    if (manifest)
      published.datasets.push_back({std::move(name), std::move(manifest).value()});
    else
      published.damaged.push_back(name + ": " + manifest.error().message);
  }
  return published;
}

std::vector<ManifestExtent> PublishedNames::Extents() const {
  std::vector<ManifestExtent> extents;
  for (const Dataset& dataset : datasets)
    for (const ManifestFile& file : dataset.manifest.files)
      extents.insert(extents.end(), file.extents.begin(), file.extents.end());
  std::ranges::sort(extents, {}, &ManifestExtent::id);
  const auto is_same = [](const auto& one, const auto& other) { return one.id == other.id; };
  extents.erase(std::unique(extents.begin(), extents.end(), is_same), extents.end());
  return extents;
}

}  // namespace ffrecord::server
