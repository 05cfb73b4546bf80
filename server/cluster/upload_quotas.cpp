#include "server/cluster/upload_quotas.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "server/cluster/quota_shares.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::uint8_t kVersion = 1;

std::optional<ExtentId> ExtentOfKey(std::string_view key) {
  ExtentId id{};
  if (!FromHex(key.substr(kPendingKeys.size()), id)) return std::nullopt;
  return id;
}

// One that was published and removed again is no upload any more, though its upload is still open.
bool Counts(const View& view, const ExtentId& id) {
  return view.names.Find(id) == nullptr && !view.tombstones.WasRemoved(id) &&
         view.mirror.Find(UploadKey(UploadOf(id))) != nullptr;
}

// Sum of pending bytes of owners below the prefix, without that extent.
std::uint64_t PendingBelow(const View& view, std::string_view prefix, const ExtentId& but_not) {
  std::uint64_t size_bytes = 0;
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kPendingKeys);
       at != entries.end() && at->first.starts_with(kPendingKeys); ++at) {
    const auto record = PendingRecord::Decode(at->second.value);
    const auto id = ExtentOfKey(at->first);
    if (record && id && *id != but_not && record.value().owner.starts_with(prefix) &&
        Counts(view, *id))
      size_bytes += record.value().size_bytes;
  }
  return size_bytes;
}

// As it is on record: the upload that began it first owns it.
struct Pending {
  std::uint64_t revision = 0;  // 0: it is not.
  PendingRecord record;
};
Pending PendingOf(const View& view, const UploadRoom& room) {
  const MetaStore::KeyValue* const key = view.mirror.Find(PendingKey(room.id));
  Pending pending{0, {0, room.owner}};
  if (key == nullptr) return pending;
  pending.revision = key->mod_revision;
  if (auto record = PendingRecord::Decode(key->value)) pending.record = std::move(record).value();
  return pending;
}

// The quota by which the shares of a prefix were dealt out last; none: that is not on record.
std::string DealtKey(const ShareKeys& keys) { return keys.KeyOf(kShareCount); }
std::optional<std::uint64_t> DealtQuota(const View& view, const ShareKeys& keys) {
  const MetaStore::KeyValue* const key = view.mirror.Find(DealtKey(keys));
  const auto dealt = key == nullptr ? Result<QuotaShare>(Error{}) : QuotaShare::Decode(key->value);
  return dealt ? std::optional(dealt.value().size_bytes) : std::nullopt;
}

}  // namespace

std::vector<std::byte> PendingRecord::Encode() const {
  ByteWriter writer;
  writer.Put(kVersion);
  writer.Put(size_bytes);
  writer.PutText(owner);
  return std::move(writer).Take();
}

Result<PendingRecord> PendingRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const bool is_known = reader.Take<std::uint8_t>() == kVersion;
  PendingRecord record{reader.Take<std::uint64_t>(), {}};
  if (reader.ok()) record.owner = reader.TakeText(reader.remaining());
  if (is_known && reader.AtEnd()) return record;
  return Error{ErrorCode::kCorruption, "the record of an extent that is pending is malformed"};
}

std::string PendingKey(const ExtentId& id) { return Key(kPendingKeys, Hex(id)); }

UploadRoom RoomOf(const ExtentId& id, std::uint64_t size_bytes, std::string owner,
                  const NameQuotas& quotas) {
  const auto holds = [&](const auto& quota) { return owner.starts_with(quota.first); };
  const bool is_held = std::ranges::any_of(quotas, holds);
  return {id, size_bytes, std::move(owner), is_held ? quotas : NameQuotas()};
}

bool HasRoom(const View& view, const UploadRoom& room) {
  if (room.quotas.empty()) return true;
  const Pending pending = PendingOf(view, room);
  return pending.revision != 0 && pending.record.size_bytes >= room.size_bytes;
}

Result<void> TakeRoom(const View& view, const UploadRoom& room, std::uint64_t turn,
                      MetaStore::Commit& commit) {
  Pending pending = PendingOf(view, room);
  // One on record that does not count has lost its bytes to others.
  const std::uint64_t had_bytes =
      pending.revision != 0 && Counts(view, room.id) ? pending.record.size_bytes : 0;
  const std::uint64_t growth_bytes = room.size_bytes - std::min(room.size_bytes, had_bytes);
  for (const auto& [prefix, quota_bytes] : room.quotas) {
    if (!pending.record.owner.starts_with(prefix)) continue;
    const ShareKeys keys{kUploadQuotaKeys, prefix};
    const auto dealt_bytes = DealtQuota(view, keys);
    if (dealt_bytes && *dealt_bytes <= quota_bytes &&
        TakeShare(view, keys, quota_bytes, growth_bytes, turn, commit))
      continue;
    const std::uint64_t others_bytes = PendingBelow(view, prefix, room.id);
    FFR_TRY(CheckUploadQuota(prefix, quota_bytes, others_bytes, room.size_bytes));
    DealAnew(view, keys, quota_bytes - others_bytes - room.size_bytes, commit);
    commit.puts.push_back({DealtKey(keys), QuotaShare{quota_bytes}.Encode()});
  }
  pending.record.size_bytes = room.size_bytes;
  const std::string key = PendingKey(room.id);
  commit.compares.push_back({key, pending.revision});
  commit.puts.push_back({key, pending.record.Encode()});
  return {};
}

std::vector<const MetaStore::KeyValue*> PendingNoMore(const View& view, std::size_t count_max) {
  std::vector<const MetaStore::KeyValue*> over;
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kPendingKeys);
       over.size() < count_max && at != entries.end() && at->first.starts_with(kPendingKeys);
       ++at) {
    const auto id = ExtentOfKey(at->first);
    if (!id || !Counts(view, *id)) over.push_back(&at->second);
  }
  return over;
}

}  // namespace ffrecord::server::cluster
