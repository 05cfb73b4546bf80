#include "server/service/catalog/disk_members.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "server/service/catalog/name_records.h"

namespace ffrecord::server {
namespace {

std::string DiskKey(const DiskId& id) { return std::string(kDiskKeys) + Hex(id); }

MetaStore::Put PutOf(const DiskPlan::Use& use, bool has_joined) {
  const std::string path = std::filesystem::absolute(use.path).string();
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(has_joined));
  writer.PutBytes(std::as_bytes(std::span(path)));
  return {DiskKey(use.id), std::move(writer).Take()};
}

Result<DiskMember> DecodeMember(const MetaStore::KeyValue& entry) {
  DiskMember member;
  const std::string_view id = std::string_view(entry.key).substr(kDiskKeys.size());
  ByteReader reader(entry.value);
  member.has_joined = reader.Take<std::uint8_t>() != 0;
  if (!reader.ok() || !FromHex(id, member.id))
    return Error{ErrorCode::kCorruption,
                 "the metadata's record of a disk is damaged: " + entry.key};
  const auto path = reader.TakeBytes(reader.remaining());
  member.path.assign(std::string(reinterpret_cast<const char*>(path.data()), path.size()));
  return member;
}

Result<void> CommitAll(BlockingStore& meta, const MetaStore::Commit& commit) {
  if (commit.puts.empty() && commit.deletes.empty()) return {};
  const auto outcome = FFR_TRY(meta.TryCommit(commit));
  if (outcome.committed) return {};
  return Error{ErrorCode::kConflict, "another daemon changed the metadata"};
}

// Which are where they were is on record already.
bool IsRecorded(const DiskPlan::Use& use, std::span<const DiskMember> members) {
  const auto found = std::ranges::find(members, use.id, &DiskMember::id);
  return found != members.end() && found->has_joined &&
         found->path == std::filesystem::absolute(use.path);
}

}  // namespace

Result<DiskMembers> ReadDiskMembers(BlockingStore& meta) {
  DiskMembers read;
  if (const auto daemon = FFR_TRY(meta.Get(kDaemonKey))) {
    if (daemon->value.size() != sizeof(DiskId))
      return Error{ErrorCode::kCorruption, "the metadata's record of the daemon is damaged"};
    std::ranges::copy(daemon->value, read.daemon.emplace().begin());
  }
  Result<void> decoded;
  FFR_TRY(ForEachEntry(meta, kDiskKeys, [&](const MetaStore::KeyValue& entry) {
    auto member = DecodeMember(entry);
    if (member)
      read.members.push_back(std::move(member).value());
    else
      decoded = member.error();
  }));
  FFR_TRY(std::move(decoded));
  return read;
}

// On record before it has an identity, so that no identity is ever unknown; joined after, so that
// no disk that is on record as joined is without.
Result<void> RecordDisks(BlockingStore& meta, const DiskMembers& before, const DiskPlan& plan) {
  const DiskId daemon = before.daemon ? *before.daemon : Random<DiskId>();
  MetaStore::Commit begin;
  MetaStore::Commit end;
  if (!before.daemon) {
    begin.compares.push_back({std::string(kDaemonKey), 0});
    begin.puts.push_back({std::string(kDaemonKey), {daemon.begin(), daemon.end()}});
  }
  for (const DiskId& id : plan.dropped) begin.deletes.push_back(DiskKey(id));
  for (const DiskPlan::Use& use : plan.used) {
    if (use.is_new) begin.puts.push_back(PutOf(use, false));
    if (use.is_new || !IsRecorded(use, before.members)) end.puts.push_back(PutOf(use, true));
  }
  FFR_TRY(CommitAll(meta, begin));
  for (const DiskPlan::Use& use : plan.used)
    if (use.is_new) FFR_TRY(WriteDiskIdentity(use.path, {daemon, use.id}));
  return CommitAll(meta, end);
}

}  // namespace ffrecord::server
