#include "server/cluster/records.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kExtentSizeBytes = 32;
constexpr std::size_t kRunSizeBytes = 8 + 4 + 4 + 4;

Error Corrupt(std::string_view what) {
  return Error{ErrorCode::kCorruption,
               "the cluster's metadata: " + std::string(what) + " cannot be decoded"};
}

ByteWriter Begin() {
  ByteWriter writer;
  writer.Put(kVersion);
  return writer;
}

// False: it is of a version that this program does not know.
bool Begin(ByteReader& reader) { return reader.Take<std::uint8_t>() == kVersion; }

void PutText(ByteWriter& writer, std::string_view text) {
  writer.Put(static_cast<std::uint16_t>(text.size()));
  writer.PutText(text);
}
std::string TakeText(ByteReader& reader) {
  return std::string(reader.TakeText(reader.Take<std::uint16_t>()));
}

// A count of items that are each at least that large; 0, and the reader fails, if they do not fit.
std::uint32_t TakeCount(ByteReader& reader, std::size_t item_size_bytes) {
  const auto count = reader.Take<std::uint32_t>();
  if (count <= reader.remaining() / item_size_bytes) return count;
  reader.TakeBytes(reader.remaining() + 1);
  return 0;
}

std::uint32_t BigEndian(const ExtentId& id, std::size_t offset) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value = value << 8 | std::to_integer<std::uint32_t>(id[offset + i]);
  return value;
}
ExtentRun RunOf(const ExtentId& id) {
  return {UploadOf(id), BigEndian(id, 8), BigEndian(id, 12), 1};
}

}  // namespace

std::string Key(std::string_view kind, std::string_view name) {
  return std::string(kind) + std::string(name);
}

std::string UploadKey(std::uint64_t upload) { return Key(kUploadKeys, Hex(upload)); }

std::string UploadTombstoneKey(std::uint64_t upload) {
  return Key(kTombstoneKeys, "upload-" + Hex(upload));
}

std::optional<std::uint64_t> UploadOfKey(std::string_view key) {
  const auto digits = NameIn(kUploadKeys, key);
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  if (!digits || !FromHex(*digits, bytes)) return std::nullopt;
  std::uint64_t upload = 0;
  for (const std::byte byte : bytes) upload = upload << 8 | std::to_integer<std::uint64_t>(byte);
  return upload;
}

std::optional<std::string> NameIn(std::string_view kind, std::string_view key) {
  if (!key.starts_with(kind)) return std::nullopt;
  return std::string(key.substr(kind.size()));
}

std::vector<std::byte> NodeRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(epoch);
  writer.Put(lease);
  PutText(writer, address);
  writer.Put(level);
  if (origins_hash) writer.Put(*origins_hash);
  return std::move(writer).Take();
}

Result<NodeRecord> NodeRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  NodeRecord record;
  const bool is_known = Begin(reader);
  record.epoch = reader.Take<std::uint64_t>();
  record.lease = reader.Take<std::uint64_t>();
  record.address = TakeText(reader);
  record.level = reader.Take<std::uint32_t>();
  if (reader.remaining() >= sizeof(std::uint64_t))
    record.origins_hash = reader.Take<std::uint64_t>();
  // Later programs may append fields: nodes of both run while the cluster is upgraded.
  if (!is_known || !reader.ok()) return Corrupt("a node");
  return record;
}

std::vector<std::byte> LevelRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(level);
  return std::move(writer).Take();
}

Result<LevelRecord> LevelRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  LevelRecord record;
  const bool is_known = Begin(reader);
  record.level = reader.Take<std::uint32_t>();
  if (!is_known || !reader.AtEnd()) return Corrupt("the feature level");
  return record;
}

std::uint32_t LevelIn(const MetaStore::KeyValue* key) {
  if (key == nullptr) return LevelRecord().level;
  const auto record = LevelRecord::Decode(key->value);
  return record ? record.value().level : std::numeric_limits<std::uint32_t>::max();
}

std::string ExplainLevel(std::uint32_t level, std::uint32_t known) {
  const bool is_read = level != std::numeric_limits<std::uint32_t>::max();
  return "the cluster is at feature level " + (is_read ? std::to_string(level) : "?") +
         ", and this daemon knows " + std::to_string(known) +
         ": install the version of ffrecordd that its other nodes run";
}

std::vector<std::byte> MemberRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(static_cast<std::uint8_t>(state));
  writer.Put(weight);
  PutText(writer, domain);
  return std::move(writer).Take();
}

Result<MemberRecord> MemberRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  MemberRecord record;
  const bool is_known = Begin(reader);
  const auto state = reader.Take<std::uint8_t>();
  record.state = static_cast<State>(state);
  record.weight = reader.Take<std::uint32_t>();
  record.domain = TakeText(reader);
  if (!is_known || !reader.AtEnd() || state > static_cast<std::uint8_t>(State::kWaiting))
    return Corrupt("a member");
  return record;
}

std::vector<std::byte> WaitingRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(since_unix_ms);
  PutText(writer, address);
  PutText(writer, daemon);
  return std::move(writer).Take();
}

Result<WaitingRecord> WaitingRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  WaitingRecord record;
  const bool is_known = Begin(reader);
  record.since_unix_ms = reader.Take<std::uint64_t>();
  record.address = TakeText(reader);
  record.daemon = TakeText(reader);
  if (!is_known || !reader.ok()) return Corrupt("a node that waits");
  return record;
}

bool DatasetRecord::operator==(const DatasetRecord& other) const {
  const auto numbers = [](const DatasetRecord& of) {
    return std::tie(of.attempt, of.replicas, of.size_bytes, of.file_count, of.body);
  };
  const bool has_equal =
      manifest == other.manifest || (manifest && other.manifest && *manifest == *other.manifest);
  return numbers(*this) == numbers(other) && has_equal;
}

std::vector<std::byte> DatasetRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(attempt);
  writer.Put(replicas);
  writer.Put(size_bytes);
  writer.Put(file_count);
  writer.Put(static_cast<std::uint32_t>(body.size()));
  for (const ManifestExtent& extent : body) {
    writer.PutBytes(extent.id);
    writer.Put(extent.size_bytes);
    writer.Put(extent.xxh3);
  }
  if (manifest) writer.PutBytes(*manifest);
  return std::move(writer).Take();
}

Result<DatasetRecord> DatasetRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  DatasetRecord record;
  const bool is_known = Begin(reader);
  record.attempt = reader.Take<std::uint64_t>();
  record.replicas = reader.Take<std::uint8_t>();
  record.size_bytes = reader.Take<std::uint64_t>();
  record.file_count = reader.Take<std::uint64_t>();
  record.body.resize(TakeCount(reader, kExtentSizeBytes));
  std::uint64_t body_size = 0;
  for (ManifestExtent& extent : record.body) {
    const auto id = reader.TakeBytes(extent.id.size());
    std::ranges::copy(id, extent.id.begin());
    extent.size_bytes = reader.Take<std::uint64_t>();
    extent.xxh3 = reader.Take<std::uint64_t>();
    if (extent.size_bytes > DatasetManifest::kEncodedSizeMax) return Corrupt("a name");
    body_size += extent.size_bytes;
  }
  if (record.body.empty() && reader.ok() && reader.remaining() > 0) {
    const auto own = reader.TakeBytes(reader.remaining());
    record.manifest = std::make_shared<const std::vector<std::byte>>(own.begin(), own.end());
  }
  if (!is_known || !reader.AtEnd() || record.replicas == 0 ||
      record.replicas > SlotMap::kRowSizeMax || body_size > DatasetManifest::kEncodedSizeMax)
    return Corrupt("a name");
  return record;
}

ExtentId BodyExtentOf(std::uint64_t attempt) {
  constexpr std::uint32_t kBodyFile = 0xFFFFFFFF;  // In an upload.
  return MakeExtentId(attempt, kBodyFile, 0);
}

std::vector<std::byte> QuotaShare::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(size_bytes);
  return std::move(writer).Take();
}

Result<QuotaShare> QuotaShare::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const bool is_known = Begin(reader);
  const QuotaShare share{reader.Take<std::uint64_t>()};
  if (!is_known || !reader.AtEnd()) return Corrupt("a share of a quota");
  return share;
}

std::vector<ExtentRun> RunsOf(std::vector<ExtentId> ids) {
  std::vector<ExtentRun> runs;
  std::vector<ExtentRun> each;
  for (const ExtentId& id : ids) each.push_back(RunOf(id));
  std::ranges::sort(each);
  each.erase(std::unique(each.begin(), each.end()), each.end());
  for (const ExtentRun& one : each) {
    if (!runs.empty() && runs.back().upload == one.upload && runs.back().file == one.file &&
        runs.back().first + runs.back().count == one.first)
      ++runs.back().count;
    else
      runs.push_back(one);
  }
  return runs;
}

bool Contains(std::span<const ExtentRun> runs, const ExtentId& id) {
  const ExtentRun one = RunOf(id);
  const auto behind =
      std::ranges::upper_bound(runs, one, [](const ExtentRun& left, const ExtentRun& right) {
        return std::tie(left.upload, left.file, left.first) <
               std::tie(right.upload, right.file, right.first);
      });
  if (behind == runs.begin()) return false;
  const ExtentRun& run = *std::prev(behind);
  return run.upload == one.upload && run.file == one.file && one.first - run.first < run.count;
}

bool TombstoneRecord::Names(const ExtentId& id) const {
  return (upload != 0 && UploadOf(id) == upload) || Contains(runs, id);
}

std::vector<std::byte> TombstoneRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(static_cast<std::uint64_t>(grace.count()));
  writer.Put(upload);
  writer.Put(static_cast<std::uint32_t>(runs.size()));
  for (const ExtentRun& run : runs) {
    writer.Put(run.upload);
    writer.Put(run.file);
    writer.Put(run.first);
    writer.Put(run.count);
  }
  return std::move(writer).Take();
}

Result<TombstoneRecord> TombstoneRecord::Decode(std::span<const std::byte> bytes) {
  // So that a node's clock cannot overflow; nobody waits for years.
  constexpr std::uint64_t kGraceMsMax = std::uint64_t{1} << 40;
  ByteReader reader(bytes);
  TombstoneRecord record;
  const bool is_known = Begin(reader);
  const auto grace_ms = reader.Take<std::uint64_t>();
  record.grace = std::chrono::milliseconds(std::min(grace_ms, kGraceMsMax));
  record.upload = reader.Take<std::uint64_t>();
  record.runs.resize(TakeCount(reader, kRunSizeBytes));
  for (ExtentRun& run : record.runs) {
    run.upload = reader.Take<std::uint64_t>();
    run.file = reader.Take<std::uint32_t>();
    run.first = reader.Take<std::uint32_t>();
    run.count = reader.Take<std::uint32_t>();
  }
  if (!is_known || !reader.AtEnd() || grace_ms > kGraceMsMax ||
      !std::ranges::is_sorted(record.runs))
    return Corrupt("a tombstone");
  return record;
}

std::optional<HistoryRecord::Term> HistoryRecord::NewestTerm(std::uint64_t mod_revision) const {
  if (terms.empty()) return std::nullopt;
  const Term& newest = terms.back();
  return Term{newest.token, newest.revision == 0 ? mod_revision : newest.revision};
}

void HistoryRecord::AddTerm(std::uint64_t token, std::uint64_t mod_revision) {
  if (!terms.empty()) terms.back() = *NewestTerm(mod_revision);
  if (terms.size() == kTermCountMax) terms.erase(terms.begin());
  terms.push_back({token, 0});
}

void HistoryRecord::Confirm(std::uint64_t mod_revision) {
  if (!terms.empty()) terms.back() = *NewestTerm(mod_revision);
  is_confirmed = true;
}

void HistoryRecord::AddAncestors(std::span<const std::uint64_t> incarnations) {
  for (const std::uint64_t one : incarnations)
    if (std::ranges::find(ancestors, one) == ancestors.end()) ancestors.push_back(one);
  if (ancestors.size() > kAncestorCountMax)
    ancestors.erase(ancestors.begin(), ancestors.end() - kAncestorCountMax);
}

std::vector<std::byte> HistoryRecord::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(incarnation);
  writer.Put(static_cast<std::uint8_t>(is_confirmed));
  writer.Put(map_version_min);
  writer.Put(base_revision);
  PutText(writer, why);
  writer.Put(static_cast<std::uint32_t>(ancestors.size()));
  for (const std::uint64_t ancestor : ancestors) writer.Put(ancestor);
  writer.Put(static_cast<std::uint32_t>(terms.size()));
  for (const Term& term : terms) {
    writer.Put(term.token);
    writer.Put(term.revision);
  }
  return std::move(writer).Take();
}

Result<HistoryRecord> HistoryRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  HistoryRecord record;
  const bool is_known = Begin(reader);
  record.incarnation = reader.Take<std::uint64_t>();
  const auto confirmed = reader.Take<std::uint8_t>();
  record.is_confirmed = confirmed != 0;
  record.map_version_min = reader.Take<std::uint32_t>();
  record.base_revision = reader.Take<std::uint64_t>();
  record.why = TakeText(reader);
  record.ancestors.resize(TakeCount(reader, sizeof(std::uint64_t)));
  for (std::uint64_t& ancestor : record.ancestors) ancestor = reader.Take<std::uint64_t>();
  record.terms.resize(TakeCount(reader, 2 * sizeof(std::uint64_t)));
  for (Term& term : record.terms) {
    term.token = reader.Take<std::uint64_t>();
    term.revision = reader.Take<std::uint64_t>();
  }
  if (!is_known || !reader.AtEnd() || confirmed > 1 ||
      record.ancestors.size() > kAncestorCountMax || record.terms.size() > kTermCountMax)
    return Corrupt("its history");
  return record;
}

std::vector<std::byte> HistoryMark::Encode() const {
  ByteWriter writer = Begin();
  writer.Put(incarnation);
  writer.Put(revision);
  writer.Put(term.token);
  writer.Put(term.revision);
  return std::move(writer).Take();
}

Result<HistoryMark> HistoryMark::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  HistoryMark mark;
  const bool is_known = Begin(reader);
  mark.incarnation = reader.Take<std::uint64_t>();
  mark.revision = reader.Take<std::uint64_t>();
  mark.term.token = reader.Take<std::uint64_t>();
  mark.term.revision = reader.Take<std::uint64_t>();
  if (!is_known || !reader.AtEnd()) return Corrupt("what this node has seen of it");
  return mark;
}

std::vector<std::byte> HistoryMark::EncodeAnchor() const {
  ByteWriter writer = Begin();
  writer.Put(revision);
  writer.Put(anchor.revision);
  writer.Put(anchor.hash);
  PutText(writer, anchor.key);
  return std::move(writer).Take();
}

Result<void> HistoryMark::DecodeAnchor(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const bool is_known = Begin(reader);
  const auto of_revision = reader.Take<std::uint64_t>();
  Anchor read;
  read.revision = reader.Take<std::uint64_t>();
  read.hash = reader.Take<std::uint64_t>();
  read.key = TakeText(reader);
  if (!is_known || !reader.AtEnd()) return Corrupt("what this node has seen of it");
  if (of_revision == revision) anchor = std::move(read);
  return {};
}

std::vector<std::string> SlotsRecord::OwnersOf(const ExtentId& id, std::size_t replicas) const {
  std::vector<std::string> owners;
  for (const std::uint16_t node : map.NodesOf(SlotOf(id)))
    if (owners.size() < replicas) owners.push_back(map.nodes[node].id);
  return owners;
}

bool SlotsRecord::IsOwner(std::string_view node, const ExtentId& id, std::size_t replicas) const {
  const std::uint16_t ordinal = map.Find(node);
  const auto row = map.NodesOf(SlotOf(id));
  const auto owners = row.first(std::min(row.size(), replicas));
  return ordinal != SlotMap::kNoNode && std::ranges::find(owners, ordinal) != owners.end();
}

std::vector<std::string> SlotsRecord::CandidatesOf(const ExtentId& id,
                                                   const std::set<std::string>& live) const {
  const std::uint32_t slot = SlotOf(id);
  std::vector<std::string> candidates;
  const auto add = [&](const std::string& node) {
    if (std::ranges::find(candidates, node) == candidates.end()) candidates.push_back(node);
  };
  for (const std::uint16_t node : map.NodesOf(slot)) add(map.nodes[node].id);
  if (previous)
    for (const std::uint16_t node : previous->NodesOf(slot)) add(previous->nodes[node].id);
  for (const std::uint16_t node : map.OrderOf(slot)) add(map.nodes[node].id);
  for (const std::string& node : live) add(node);
  return candidates;
}

std::vector<std::byte> SlotsRecord::Encode() const {
  ByteWriter writer = Begin();
  const auto now = EncodeSlotMap(map);
  writer.Put(static_cast<std::uint32_t>(now.size()));
  writer.PutBytes(now);
  if (previous) writer.PutBytes(EncodeSlotMap(*previous));
  return std::move(writer).Take();
}

Result<SlotsRecord> SlotsRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const bool is_known = Begin(reader);
  const auto now = reader.TakeBytes(reader.Take<std::uint32_t>());
  if (!is_known || !reader.ok()) return Corrupt("the slot map");
  SlotsRecord record;
  record.map = FFR_TRY(DecodeSlotMap(now));
  if (reader.remaining() > 0)
    record.previous = FFR_TRY(DecodeSlotMap(reader.TakeBytes(reader.remaining())));
  return record;
}

}  // namespace ffrecord::server::cluster
