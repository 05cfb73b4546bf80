#include "server/service/catalog/upload_ledger.h"

#include <vector>

namespace ffrecord::server {

void UploadLedger::Add(const ExtentId& id, std::uint64_t size_bytes,
                       std::string_view owner_prefix) {
  Entry& entry = entries_.try_emplace(id, Entry{0, std::string(owner_prefix)}).first->second;
  if (size_bytes <= entry.size_bytes) return;
  sizes_[entry.owner_prefix] += size_bytes - entry.size_bytes;
  entry.size_bytes = size_bytes;
}

void UploadLedger::Remove(const ExtentId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const auto sum = sizes_.find(found->second.owner_prefix);
  sum->second -= found->second.size_bytes;
  if (sum->second == 0) sizes_.erase(sum);
  entries_.erase(found);
}

void UploadLedger::RemoveUpload(std::uint64_t upload) {
  std::vector<ExtentId> ids;
  for (const auto& [id, entry] : entries_)
    if (UploadOf(id) == upload) ids.push_back(id);
  for (const ExtentId& id : ids) Remove(id);
}

std::uint64_t UploadLedger::SizeBelow(std::string_view prefix, const ExtentId& but_not) const {
  std::uint64_t size_bytes = 0;
  for (auto at = sizes_.lower_bound(prefix); at != sizes_.end() && at->first.starts_with(prefix);
       ++at)
    size_bytes += at->second;
  const auto found = entries_.find(but_not);
  const bool is_in = found != entries_.end() && found->second.owner_prefix.starts_with(prefix);
  return is_in ? size_bytes - found->second.size_bytes : size_bytes;
}

}  // namespace ffrecord::server
