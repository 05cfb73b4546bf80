#include "server/cluster/newest_keys.h"

#include <algorithm>
#include <array>

#include "libffrecord/base/checksum.h"

namespace ffrecord::server::cluster {

Anchor AnchorOf(const MetaStore::KeyValue& key) {
  constexpr std::array kKinds{kDatasetKeys, kUploadKeys, kTombstoneKeys};
  const auto is_of = [&](std::string_view kind) { return key.key.starts_with(kind); };
  if (std::ranges::none_of(kKinds, is_of)) return {};
  return {key.key, key.mod_revision, Xxh3(key.value)};
}

void NewestKeys::Update(const std::set<std::string>& changed, const KeyMirror& mirror) {
  std::erase_if(keys_, [&](const Anchor& anchor) { return changed.contains(anchor.key); });
  for (const std::string& key : changed)
    if (const MetaStore::KeyValue* const value = mirror.Find(key)) Add(*value);
  if (!keys_.empty()) return;
  // All that were newest are deleted: rare enough to look at every key.
  for (const auto& [key, value] : mirror.entries()) Add(value);
}

void NewestKeys::Add(const MetaStore::KeyValue& key) {
  const Anchor anchor = AnchorOf(key);
  if (anchor.revision == 0) return;
  const auto place = std::ranges::upper_bound(keys_, anchor.revision, {}, &Anchor::revision);
  if (keys_.size() == kCount && place == keys_.begin()) return;
  keys_.insert(place, anchor);
  if (keys_.size() > kCount) keys_.erase(keys_.begin());
}

}  // namespace ffrecord::server::cluster
