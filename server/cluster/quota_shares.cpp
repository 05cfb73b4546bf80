#include "server/cluster/quota_shares.h"

#include <array>
#include <cstddef>

#include "libffrecord/base/hex.h"
#include "server/cluster/rebuild.h"
#include "server/cluster/removals.h"

namespace ffrecord::server::cluster {
namespace {

struct Share {
  std::string key;
  std::uint64_t revision = 0;  // 0: it was never dealt out.
  std::uint64_t size_bytes = 0;
};
using Shares = std::array<Share, kShareCount>;

std::uint64_t OwnSize(const NameTable& names, std::string_view name) {
  const NameTable::Name* const own = names.Find(name);
  return own == nullptr ? 0 : own->record.size_bytes;
}

// Names from before the metadata was put back may come back, and their bytes are there.
std::uint64_t OthersSize(const View& view, std::string_view prefix, std::string_view name) {
  std::uint64_t size_bytes = 0;
  const auto& all = view.names.names();
  for (auto at = all.lower_bound(prefix); at != all.end() && at->first.starts_with(prefix); ++at)
    if (at->first != name) size_bytes += at->second.record.size_bytes;
  if (!view.known_before || !MayLackNames(view)) return size_bytes;
  const KnownNames& known = *view.known_before;
  for (auto at = known.lower_bound(prefix); at != known.end() && at->first.starts_with(prefix);
       ++at)
    if (at->first != name && view.names.Find(at->first) == nullptr &&
        !WasRemovedSince(view, view.continuity.mark(), at->first, at->second.record))
      size_bytes += at->second.record.size_bytes;
  return size_bytes;
}

Shares SharesOf(const View& view, const ShareKeys& keys) {
  Shares shares;
  for (std::uint32_t i = 0; i < kShareCount; ++i) {
    shares[i].key = keys.KeyOf(i);
    const MetaStore::KeyValue* const entry = view.mirror.Find(shares[i].key);
    if (entry == nullptr) continue;
    shares[i].revision = entry->mod_revision;
    // One that cannot be read has nothing to give.
    if (const auto share = QuotaShare::Decode(entry->value))
      shares[i].size_bytes = share.value().size_bytes;
  }
  return shares;
}

// The shares have no more together than is left.
bool AreWithin(const Shares& shares, std::uint64_t left_bytes) {
  for (const Share& share : shares) {
    if (share.size_bytes > left_bytes) return false;
    left_bytes -= share.size_bytes;
  }
  return true;
}

void Put(const Share& share, std::uint64_t size_bytes, MetaStore::Commit& commit) {
  commit.compares.push_back({share.key, share.revision});
  commit.puts.push_back({share.key, QuotaShare{size_bytes}.Encode()});
}

// The first one that has so many bytes, from `turn` on; null if none has.
const Share* Choose(const Shares& shares, std::uint64_t growth_bytes, std::uint64_t turn) {
  for (std::uint32_t i = 0; i < kShareCount; ++i) {
    const Share& share = shares[(turn + i) % kShareCount];
    if (share.size_bytes >= growth_bytes) return &share;
  }
  return nullptr;
}

}  // namespace

std::string ShareKeys::KeyOf(std::uint32_t share) const {
  const std::array number{static_cast<std::byte>(share)};
  return Key(kind, Hex(number) + "/" + std::string(prefix));
}

bool TakeShare(const View& view, const ShareKeys& keys, std::uint64_t left_bytes,
               std::uint64_t growth_bytes, std::uint64_t turn, MetaStore::Commit& commit) {
  const Shares shares = SharesOf(view, keys);
  const Share* const chosen =
      AreWithin(shares, left_bytes) ? Choose(shares, growth_bytes, turn) : nullptr;
  if (chosen == nullptr) return false;
  Put(*chosen, chosen->size_bytes - growth_bytes, commit);
  return true;
}

void DealAnew(const View& view, const ShareKeys& keys, std::uint64_t left_bytes,
              MetaStore::Commit& commit) {
  for (const Share& share : SharesOf(view, keys)) Put(share, left_bytes / kShareCount, commit);
}

Result<void> CheckQuotas(const NameQuotas& quotas, const View& view, std::string_view name,
                         std::uint64_t size_bytes) {
  return CheckNameQuotas(quotas, name, OwnSize(view.names, name), size_bytes,
                         [&](const std::string& prefix) { return OthersSize(view, prefix, name); });
}

Result<void> TakeQuotas(const NameQuotas& quotas, const View& view, std::string_view name,
                        std::uint64_t size_bytes, std::uint64_t turn, MetaStore::Commit& commit) {
  FFR_TRY(CheckQuotas(quotas, view, name, size_bytes));
  const std::uint64_t own_bytes = OwnSize(view.names, name);
  if (size_bytes <= own_bytes) return {};
  for (const auto& [prefix, quota_bytes] : quotas) {
    if (!name.starts_with(prefix)) continue;
    const std::uint64_t left_bytes = quota_bytes - OthersSize(view, prefix, name) - own_bytes;
    const std::uint64_t growth_bytes = size_bytes - own_bytes;
    const ShareKeys keys{kQuotaKeys, prefix};
    if (!TakeShare(view, keys, left_bytes, growth_bytes, turn, commit))
      DealAnew(view, keys, left_bytes - growth_bytes, commit);
  }
  return {};
}

}  // namespace ffrecord::server::cluster
