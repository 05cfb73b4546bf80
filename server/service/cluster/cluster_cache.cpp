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
  if (reader.remaining() == 0) return name;  // Its manifest was not known yet.
  auto manifest = DecodeDatasetManifest(reader.TakeBytes(reader.remaining()));
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
  auto names = std::make_shared<ClusterState::NameMap>();
  std::string after;
  for (bool more = true; more;) {
    auto page = FFR_TRY(store_.List(kNameKeys, after, kPageSize));
    for (const auto& entry : page.entries)
      if (auto name = DecodeName(entry.value))
        names->emplace(entry.key.substr(kNameKeys.size()), std::move(*name));
    more = page.more;
    if (!page.entries.empty()) after = page.entries.back().key;
  }
  state.names = std::move(names);
  saved_ = state;
  return state;
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
  auto saved = std::make_shared<ClusterState::NameMap>(*saved_.names);
  saved_.names = saved;  // As far as it has come, also after a failure.
  BlockingStore::Commit commit;
  std::size_t size_bytes = 0;
  for (const auto& [text, name] : *saved)
    if (!state.names->contains(text)) commit.deletes.push_back(std::string(kNameKeys) + text);
  std::vector<ClusterState::NameMap::const_iterator> put;
  const auto flush = [&]() -> Result<void> {
    if (commit.puts.empty() && commit.deletes.empty()) return {};
    // After a failure it may be there, and then it is not what it should be.
    for (const auto& at : put) saved->insert_or_assign(at->first, ClusterState::Name{});
    FFR_TRY(store_.TryCommit(commit));
    std::erase_if(*saved, [&](const auto& entry) { return !state.names->contains(entry.first); });
    for (const auto& at : put) saved->insert_or_assign(at->first, at->second);
    put.clear();
    commit = {};
    size_bytes = 0;
    return {};
  };
  for (auto at = state.names->begin(); at != state.names->end(); ++at) {
    const auto& [text, name] = *at;
    const auto old = saved->find(text);
    const bool is_saved = old != saved->end() && old->second.revision == name.revision &&
                          old->second.record == name.record;
    if (is_saved && (!name.manifest || old->second.manifest)) continue;
    std::vector<std::byte> manifest;
    if (name.manifest) manifest = FFR_TRY(EncodeDatasetManifest(*name.manifest));
    commit.puts.push_back({std::string(kNameKeys) + text, EncodeName(name, manifest)});
    put.push_back(at);
    size_bytes += manifest.size();
    if (size_bytes >= kCommitBytes) FFR_TRY(flush());
  }
  FFR_TRY(flush());
  saved_.names = state.names;
  return {};
}

}  // namespace ffrecord::server
