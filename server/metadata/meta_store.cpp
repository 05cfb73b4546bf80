#include "server/metadata/meta_store.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace ffrecord::server {
namespace {

Error Refused(std::string why) {
  return {ErrorCode::kInvalidArgument, "the commit to the metadata " + std::move(why)};
}

}  // namespace

Result<void> CheckKeys(const MetaStore::Commit& commit) {
  std::set<std::string_view> keys;
  const auto is_new = [&keys](const std::string& key) { return keys.insert(key).second; };
  for (const auto& put : commit.puts)
    if (!is_new(put.key)) return Refused("changes the key " + put.key + " twice");
  for (const auto& key : commit.deletes)
    if (!is_new(key)) return Refused("changes the key " + key + " twice");
  return {};
}

Result<void> CheckCommit(const MetaStore::Commit& commit) {
  std::size_t size_bytes = 0;
  for (const auto& compare : commit.compares) size_bytes += compare.key.size();
  for (const auto& put : commit.puts) size_bytes += put.key.size() + put.value.size();
  for (const auto& key : commit.deletes) size_bytes += key.size();
  if (size_bytes > MetaStore::kCommitSizeMax)
    return Refused("has " + std::to_string(size_bytes) + " bytes, more than " +
                   std::to_string(MetaStore::kCommitSizeMax) + "; store large values as extents");

  const std::size_t changes = commit.puts.size() + commit.deletes.size();
  if (std::max(changes, commit.compares.size()) > MetaStore::kCommitOperationCountMax)
    return Refused("has " + std::to_string(commit.compares.size()) + " compares and " +
                   std::to_string(changes) + " changes, more than " +
                   std::to_string(MetaStore::kCommitOperationCountMax) + "; make several commits");
  return CheckKeys(commit);
}

}  // namespace ffrecord::server
