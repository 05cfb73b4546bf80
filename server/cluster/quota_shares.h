#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "server/cluster/view.h"
#include "server/metadata/name_quotas.h"

namespace ffrecord::server::cluster {

// Quotas that hold for publications through all nodes at the same time.
//
// A publication that compared one counter of its prefix would conflict with every other one below
// that prefix. So the bytes that are left of a quota are dealt out as kShareCount shares, each a
// key of its own. A publication takes the bytes by which its name grows off one share that has
// them: it compares and puts that key alone. Only where no share has enough, all of them are
// compared and dealt out anew, in the same commit.
//
// At each revision of the store, the names below a prefix and its shares have no more bytes than
// its quota. A view that shows more, as where operators have lowered the quota or names were
// published without one, deals anew. Removals leave the shares alone: their bytes are dealt out
// when they are needed.
inline constexpr std::uint32_t kShareCount = 16;
// The shares of one quota's rest: for names, or for another kind.
struct ShareKeys {
  std::string_view kind;
  std::string_view prefix;

  std::string KeyOf(std::uint32_t share) const;
};

// Makes `commit` take so many bytes off one share that has them. False: none has, or the shares
// have more than `left_bytes` together; nothing is changed.
bool TakeShare(const View& view, const ShareKeys& keys, std::uint64_t left_bytes,
               std::uint64_t growth_bytes, std::uint64_t turn, MetaStore::Commit& commit);
// Makes `commit` deal out so many bytes, whatever the shares have.
void DealAnew(const View& view, const ShareKeys& keys, std::uint64_t left_bytes,
              MetaStore::Commit& commit);

// Whether a name may have so many bytes, by what the view shows, and by what a rebuild may bring
// back. Fails as CheckNameQuotas.
Result<void> CheckQuotas(const NameQuotas& quotas, const View& view, std::string_view name,
                         std::uint64_t size_bytes);

// Checks the quotas as CheckQuotas(), and makes `commit` take what the name grows by off the
// shares. It rests on the view: the caller compares the name's own key. `turn` says which share is
// tried first, so that publications at the same time take different ones.
Result<void> TakeQuotas(const NameQuotas& quotas, const View& view, std::string_view name,
                        std::uint64_t size_bytes, std::uint64_t turn, MetaStore::Commit& commit);

}  // namespace ffrecord::server::cluster
