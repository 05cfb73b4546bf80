#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/view.h"
#include "server/metadata/name_quotas.h"

namespace ffrecord::server::cluster {

// Quotas that hold for what has been uploaded below a prefix and not published, through all nodes
// at the same time.
//
// The owner of an extent is the prefix below which its client may publish. Before a node takes
// bytes of an extent whose owner a quota holds for, the extent is put on record: it is pending, on
// however many nodes. It counts while its upload is open and no name refers to it or has referred
// to it. The bytes that are left are dealt out in shares, as those of publications are
// (quota_shares.h).
//
// At each revision of the store, what counts below a prefix and its shares have no more bytes than
// the quota by which the shares were dealt out. That quota is on record beside them: a node with a
// smaller one takes them back, and deals out what its own leaves.
inline constexpr std::string_view kPendingKeys = "pending/";            // <id>: PendingRecord.
inline constexpr std::string_view kUploadQuotaKeys = "upload-quotas/";  // As quotas/.

struct PendingRecord {
  std::uint64_t size_bytes = 0;
  std::string owner;

  bool operator==(const PendingRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PendingRecord> Decode(std::span<const std::byte> bytes);
};
std::string PendingKey(const ExtentId& id);

// An extent that a client begins to upload.
struct UploadRoom {
  ExtentId id{};
  std::uint64_t size_bytes = 0;
  std::string owner;
  NameQuotas quotas;  // All: it may be another's. Empty: none holds for the owner.
};
UploadRoom RoomOf(const ExtentId& id, std::uint64_t size_bytes, std::string owner,
                  const NameQuotas& quotas);

// No quota holds for it, or it is on record with its size at least.
bool HasRoom(const View& view, const UploadRoom& room);
// Makes `commit` put it on record. Fails with kIo (EDQUOT), with names and figures, if what is
// pending passes a quota with it. It rests on the view, and `turn` means the same, as in
// TakeQuotas().
Result<void> TakeRoom(const View& view, const UploadRoom& room, std::uint64_t turn,
                      MetaStore::Commit& commit);

// Keys of extents that do not count any more, so many at most.
std::vector<const MetaStore::KeyValue*> PendingNoMore(const View& view, std::size_t count_max);

}  // namespace ffrecord::server::cluster
