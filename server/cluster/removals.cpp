#include "server/cluster/removals.h"

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "libffrecord/base/hex.h"
#include "server/cluster/rebuild.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::string_view kNameTombstoneKeys = "deletes/name-";

}  // namespace

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

std::string NameTombstonePrefix(std::uint64_t revision) {
  return Key(kNameTombstoneKeys, Hex(revision) + "-");
}

std::optional<std::uint64_t> RevisionBefore(const View& view, std::uint64_t attempt) {
  const ExtentId body = BodyExtentOf(attempt);
  for (const auto& [key, tombstone] : view.tombstones.all()) {
    if (!Contains(tombstone.record.runs, body)) continue;
    const std::string digits = NameIn(kNameTombstoneKeys, key).value_or("");
    std::array<std::byte, sizeof(std::uint64_t)> bytes{};
    if (!FromHex(digits.substr(0, 2 * bytes.size()), bytes)) continue;
    std::uint64_t revision = 0;
    for (const std::byte byte : bytes)
      revision = revision << 8 | std::to_integer<std::uint64_t>(byte);
    return revision;
  }
  return std::nullopt;
}

}  // namespace ffrecord::server::cluster
