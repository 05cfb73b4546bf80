#include "server/service/cluster/cluster_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord::server {
namespace {

constexpr const char* kIdKey = "cluster/id";
constexpr const char* kNodeKey = "cluster/node";
constexpr const char* kMarkKey = "cluster/history";
constexpr const char* kAnchorKey = "cluster/anchor";
constexpr const char* kSlotsKey = "cluster/slots";
constexpr const char* kNodesKey = "cluster/nodes";
constexpr const char* kLevelKey = "cluster/level";
constexpr const char* kAncestorsKey = "cluster/ancestors";
constexpr std::string_view kNameKeys = "cluster/names/";
constexpr std::uint32_t kPageSize = 64;
constexpr std::size_t kCommitBytes = std::size_t{16} << 20;

std::vector<std::byte> EncodeName(const ClusterState::Name& name,
                                  std::span<const std::byte> manifest) {
  const auto record = name.record.Encode();
  ByteWriter writer;
  writer.Put(name.revision);
  writer.Put(static_cast<std::uint32_t>(record.size()));
  writer.PutBytes(record);
  writer.PutBytes(manifest);
  return std::move(writer).Take();
}

std::optional<ClusterState::Name> DecodeName(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ClusterState::Name name;
  name.revision = reader.Take<std::uint64_t>();
  auto record = cluster::DatasetRecord::Decode(reader.TakeBytes(reader.Take<std::uint32_t>()));
  if (!reader.ok() || !record) return std::nullopt;
  name.record = std::move(record).value();
  const auto own = name.record.manifest ? std::span(*name.record.manifest)
                                        : reader.TakeBytes(reader.remaining());
  if (own.empty()) return name;  // Its manifest was not known yet.
  auto manifest = DecodeDatasetManifest(own);
  if (!manifest) return std::nullopt;
  name.manifest = std::make_shared<const DatasetManifest>(std::move(manifest).value());
  return name;
}

// The nodes in the form of a reply to clients, which names them all.
std::vector<std::byte> EncodeNodes(const ClusterState& state) {
  net::ClusterMapReply reply;
  reply.node = "cache";
  reply.nodes = state.nodes;
  return reply.Encode();
}

ClusterState::Nodes DecodeNodes(std::span<const std::byte> bytes) {
  auto reply = net::ClusterMapReply::Decode(bytes);
  if (!reply) return {};
  for (auto& node : reply.value().nodes) node.is_up = false;  // Nobody knows.
  return std::move(reply).value().nodes;
}

std::vector<std::byte> EncodeNumbers(std::span<const std::uint64_t> numbers) {
  ByteWriter writer;
  for (const std::uint64_t number : numbers) writer.Put(number);
  return std::move(writer).Take();
}

std::vector<std::uint64_t> DecodeNumbers(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  for (std::uint64_t& number : numbers) number = reader.Take<std::uint64_t>();
  return numbers;
}

// The record to write for a name. None: nothing, for it is there.
Result<std::optional<std::vector<std::byte>>> Unsaved(const ClusterState::Name* saved,
                                                      const ClusterState::Name& name) {
  const bool is_saved =
      saved != nullptr && saved->revision == name.revision && saved->record == name.record;
  if (is_saved && (!name.manifest || saved->manifest))
    return std::optional<std::vector<std::byte>>();
  std::vector<std::byte> manifest;
  if (name.manifest && !name.record.manifest)
    manifest = FFR_TRY(EncodeDatasetManifest(*name.manifest));
  return std::optional(EncodeName(name, manifest));
}

}  // namespace

Result<std::optional<net::ClusterId>> ClusterCache::ReadId() {
  const auto found = FFR_TRY(store_.Get(kIdKey));
  net::ClusterId id{};
  if (!found || found->value.size() != id.size()) return std::optional<net::ClusterId>();
  std::ranges::copy(found->value, id.begin());
  return std::optional(id);
}

Result<std::optional<std::string>> ClusterCache::ReadNode() {
  const auto found = FFR_TRY(store_.Get(kNodeKey));
  if (!found) return std::optional<std::string>();
  return std::optional(
      std::string(reinterpret_cast<const char*>(found->value.data()), found->value.size()));
}

Result<void> ClusterCache::CheckNode(const std::string& node) {
  const auto before = FFR_TRY(ReadNode());
  if (!before || *before == node) return {};
  return Error{ErrorCode::kConflict,
               "the data folder is that of node " + *before + ", and this daemon is node " + node +
                   ": give it `node = \"" + *before + "\"`; or, if the folder is a copy, or node " +
                   *before + " was removed, give this daemon an empty one"};
}

Result<void> ClusterCache::WriteId(const net::ClusterId& id, const std::string& node) {
  const auto text = std::as_bytes(std::span(node));
  FFR_TRY(store_.TryCommit(
      {{}, {{kIdKey, {id.begin(), id.end()}}, {kNodeKey, {text.begin(), text.end()}}}, {}}));
  return {};
}

Result<cluster::HistoryMark> ClusterCache::ReadMark() {
  const auto found = FFR_TRY(store_.Get(kMarkKey));
  if (!found) return cluster::HistoryMark();
  auto mark = FFR_TRY(cluster::HistoryMark::Decode(found->value));
  if (const auto anchor = FFR_TRY(store_.Get(kAnchorKey)))
    FFR_TRY(mark.DecodeAnchor(anchor->value));
  return mark;
}

Result<void> ClusterCache::WriteMark(const cluster::HistoryMark& mark) {
  FFR_TRY(
      store_.TryCommit({{}, {{kMarkKey, mark.Encode()}, {kAnchorKey, mark.EncodeAnchor()}}, {}}));
  return {};
}

Result<ClusterState> ClusterCache::Load() {
  ClusterState state;
  state.is_from_cache = true;
  if (const auto slots = FFR_TRY(store_.Get(kSlotsKey))) {
    auto record = cluster::SlotsRecord::Decode(slots->value);
    if (record)
      state.slots = std::make_shared<const cluster::SlotsRecord>(std::move(record).value());
  }
  if (const auto nodes = FFR_TRY(store_.Get(kNodesKey))) state.nodes = DecodeNodes(nodes->value);
  if (const auto level = FFR_TRY(store_.Get(kLevelKey))) state.level = cluster::LevelIn(&*level);
  if (const auto numbers = FFR_TRY(store_.Get(kAncestorsKey)))
    state.ancestors = DecodeNumbers(numbers->value);
  ClusterState::NameMap::Changes names;
  std::string after;
  for (bool more = true; more;) {
    auto page = FFR_TRY(store_.List(kNameKeys, after, kPageSize));
    for (const auto& entry : page.entries)
      if (auto name = DecodeName(entry.value))
        names.emplace(entry.key.substr(kNameKeys.size()), std::move(*name));
    more = page.more;
    if (!page.entries.empty()) after = page.entries.back().key;
  }
  state.names = std::make_shared<const ClusterState::NameMap>(std::move(names));
  saved_ = state;
  return state;
}

Result<std::vector<ExtentId>> ClusterCache::LoadExtents() {
  const ClusterState state = FFR_TRY(Load());
  std::vector<ExtentId> ids;
  for (const auto& [text, name] : *state.names) {
    for (const ManifestExtent& extent : name.record.body) ids.push_back(extent.id);
    if (name.manifest)
      ForEachHeldExtent(*name.manifest,
                        [&](const ManifestExtent& extent) { ids.push_back(extent.id); });
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Result<void> ClusterCache::Save(const ClusterState& state) {
  if (*state.slots != *saved_.slots) {
    FFR_TRY(store_.TryCommit({{}, {{kSlotsKey, state.slots->Encode()}}, {}}));
    saved_.slots = state.slots;
  }
  if (state.nodes != saved_.nodes) {
    FFR_TRY(store_.TryCommit({{}, {{kNodesKey, EncodeNodes(state)}}, {}}));
    saved_.nodes = state.nodes;
  }
  if (state.level != saved_.level) {
    FFR_TRY(store_.TryCommit({{}, {{kLevelKey, cluster::LevelRecord{state.level}.Encode()}}, {}}));
    saved_.level = state.level;
  }
  if (state.ancestors != saved_.ancestors) {
    FFR_TRY(store_.TryCommit({{}, {{kAncestorsKey, EncodeNumbers(state.ancestors)}}, {}}));
    saved_.ancestors = state.ancestors;
  }
  if (state.names == saved_.names) return {};
  return SaveNames(state);
}

Result<void> ClusterCache::SaveNames(const ClusterState& state) {
  using NameMap = ClusterState::NameMap;
  const NameMap before = *saved_.names;
  BlockingStore::Commit commit;
  NameMap::Changes changes;
  std::size_t size_bytes = 0;
  // saved_ is as far as it has come, also after a failure.
  const auto save = [&](NameMap::Changes made) {
    saved_.names = std::make_shared<const NameMap>(saved_.names->With(std::move(made)));
  };
  const auto flush = [&]() -> Result<void> {
    if (changes.empty()) return {};
    // After a failure it may be there, and then it is not what it should be.
    NameMap::Changes unsure;
    for (const auto& [text, name] : changes) unsure[text] = ClusterState::Name{};
    save(std::move(unsure));
    FFR_TRY(store_.TryCommit(std::exchange(commit, {})));
    save(std::exchange(changes, {}));
    size_bytes = 0;
    return {};
  };
  Result<void> saved;
  NameMap::ForEachDifference(before, *state.names, [&](const auto& text, auto* old, auto* now) {
    if (!saved) return;
    if (now == nullptr) {
      commit.deletes.push_back(std::string(kNameKeys) + text);
      changes[text] = std::nullopt;
      return;
    }
    auto unsaved = Unsaved(old, *now);
    if (!unsaved) saved = unsaved.error();
    if (!unsaved || !unsaved.value()) return;
    size_bytes += unsaved.value()->size();
    commit.puts.push_back({std::string(kNameKeys) + text, *std::move(unsaved).value()});
    changes[text] = *now;
    if (size_bytes >= kCommitBytes) saved = flush();
  });
  FFR_TRY(std::move(saved));
  FFR_TRY(flush());
  saved_.names = state.names;
  return {};
}

}  // namespace ffrecord::server
