#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

namespace ffrecord::server {

// The bytes that all names with a prefix may have together, by prefix.
using NameQuotas = std::map<std::string, std::uint64_t>;

// Whether the name may have `size_bytes`, while it has `own_bytes` now (0: it is new).
// `size_below(prefix)` is the size in bytes of all other names that begin with the prefix. Fails
// with kIo (EDQUOT), with names and figures, if that passes a quota. A name that does not grow
// always may, also where a quota was lowered below what is there.
template <class SizeBelow>
Result<void> CheckNameQuotas(const NameQuotas& quotas, std::string_view name,
                             std::uint64_t own_bytes, std::uint64_t size_bytes,
                             const SizeBelow& size_below) {
  if (size_bytes <= own_bytes) return {};
  for (const auto& [prefix, quota_bytes] : quotas) {
    if (!name.starts_with(prefix)) continue;
    const std::uint64_t others_bytes = size_below(prefix);
    if (others_bytes <= quota_bytes && size_bytes <= quota_bytes - others_bytes) continue;
    return Error{ErrorCode::kIo,
                 std::string(name) + " has " + std::to_string(size_bytes) +
                     " bytes: with the other " + std::to_string(others_bytes) + " bytes under '" +
                     prefix + "' that is more than the quota of " + std::to_string(quota_bytes) +
                     "; remove something there, or have the quota raised",
                 EDQUOT};
  }
  return {};
}

// Whether an upload may have another `size_bytes` that no name refers to, below the prefix of a
// quota where others have `pending_bytes` such. Fails with kIo (EDQUOT), with figures.
inline Result<void> CheckUploadQuota(const std::string& prefix, std::uint64_t quota_bytes,
                                     std::uint64_t pending_bytes, std::uint64_t size_bytes) {
  if (pending_bytes <= quota_bytes && size_bytes <= quota_bytes - pending_bytes) return {};
  return Error{ErrorCode::kIo,
               "uploads of " + std::to_string(pending_bytes) +
                   " bytes wait to be published under '" + prefix +
                   "': " + std::to_string(size_bytes) + " more would pass the quota of " +
                   std::to_string(quota_bytes) + "; publish them, or wait until they are given up",
               EDQUOT};
}

}  // namespace ffrecord::server
