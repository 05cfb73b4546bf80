#include "server/service/catalog/extent_references.h"

#include <algorithm>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {
namespace {

template <class Visit>
void ForEachExtent(const DatasetManifest& manifest, Visit visit) {
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents) visit(extent.id);
  for (const ManifestExtent& extent : manifest.parity) visit(extent.id);
}

}  // namespace

void ExtentReferences::Reserve(std::size_t extent_count) {
  const std::lock_guard lock(mutex_);
  names_.reserve(extent_count);
}

void ExtentReferences::Change(const std::string& name, const DatasetManifest* before,
                              const DatasetManifest* after) {
  const std::lock_guard lock(mutex_);
  const auto place = sizes_.try_emplace(name).first;
  if (after != nullptr) {
    place->second = after->size_bytes();
    ForEachExtent(*after, [&](const ExtentId& id) { names_.emplace(id, &place->first); });
  }
  if (before != nullptr) {
    ForEachExtent(*before, [&](const ExtentId& id) {
      const auto [first, last] = names_.equal_range(id);
      const auto reference = std::find_if(
          first, last, [&](const auto& entry) { return entry.second == &place->first; });
      FFR_ASSERT(reference != last);
      names_.erase(reference);
    });
  }
  if (after == nullptr) sizes_.erase(place);
}

std::size_t ExtentReferences::name_count() const {
  const std::lock_guard lock(mutex_);
  return sizes_.size();
}

bool ExtentReferences::Contains(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  return names_.contains(id);
}

std::size_t ExtentReferences::CountOf(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  return names_.count(id);
}

std::vector<bool> ExtentReferences::AreReferenced(std::string_view prefix,
                                                  std::span<const ExtentId> ids) const {
  std::vector<bool> referenced;
  referenced.reserve(ids.size());
  const std::lock_guard lock(mutex_);
  for (const ExtentId& id : ids) {
    const auto [first, last] = names_.equal_range(id);
    referenced.push_back(std::any_of(
        first, last, [&](const auto& entry) { return entry.second->starts_with(prefix); }));
  }
  return referenced;
}

std::uint64_t ExtentReferences::SizeOf(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(name);
  return found == sizes_.end() ? 0 : found->second;
}

std::uint64_t ExtentReferences::SizeBelow(std::string_view prefix, std::string_view but_not) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t size_bytes = 0;
  for (auto at = sizes_.lower_bound(prefix); at != sizes_.end() && at->first.starts_with(prefix);
       ++at)
    if (at->first != but_not) size_bytes += at->second;
  return size_bytes;
}

}  // namespace ffrecord::server
