#include "server/cluster/removals.h"

#include <utility>

#include "server/cluster/rebuild.h"

namespace ffrecord::server::cluster {

std::optional<HistoryRecord> UnconfirmedIn(const View& view) {
  const MetaStore::KeyValue* const key = view.mirror.Find(kHistoryKey);
  if (key == nullptr) return std::nullopt;
  auto record = HistoryRecord::Decode(key->value);
  if (!record || record.value().is_confirmed) return std::nullopt;
  return std::move(record).value();
}

// Newer than all that nodes have known, until one of them has trusted this history or a later one.
void NoteRemoval(const View& view, const std::string& name, MetaStore::Commit& commit) {
  if (const auto record = UnconfirmedIn(view))
    commit.puts.push_back(
        {Key(kRebuiltKeys, name), HistoryMark{record->incarnation, 1, {}, {}}.Encode()});
}

bool WasRemovedSince(const View& view, const HistoryMark& mark, const std::string& name,
                     const DatasetRecord& known) {
  if (view.WasRemoved(known)) return true;
  const MetaStore::KeyValue* const key = view.mirror.Find(Key(kRebuiltKeys, name));
  const auto record = key == nullptr ? std::nullopt : UnconfirmedIn(view);
  if (!record) return false;
  const auto noted = HistoryMark::Decode(key->value);
  return noted && !IsNewer(mark, noted.value(), *record);
}

}  // namespace ffrecord::server::cluster
