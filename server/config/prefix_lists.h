#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

namespace ffrecord::server {

// Settings that are lists of values by prefix, "train/=500G, runs/=2T". An empty prefix means
// everything. Both functions fail with kInvalidArgument, naming the setting and the entry.

// How many bytes the names that begin with a prefix may have together. Sizes have K, M, G or T
// behind them, powers of 1,024, or nothing.
Result<std::map<std::string, std::uint64_t>> ParseQuotas(std::string_view text);

// How many of these quotas hold for a name at most.
std::size_t NestedQuotaCount(const std::map<std::string, std::uint64_t>& quotas);

// How much of a disk's time a tenant gets beside others whose tokens begin with another prefix: 1
// to kTenantWeightMax.
inline constexpr std::uint32_t kTenantWeightMax = 100;
Result<std::map<std::string, std::uint32_t>> ParseTenantWeights(std::string_view text);

// The marks of TrafficMarks::classes, "urgent=46, prefetch=8": DSCPs and priorities of sockets.
// Classes that a list does not name have none. Fails as ParseQuotas().
Result<TrafficMarks> ParseTrafficMarks(std::string_view dscp, std::string_view priority);

// Places that daemons may fetch files from, "s3://bucket/data, /mnt/shared": buckets, prefixes and
// absolute folders. Without the slash that one may end with. Fails as ParseQuotas().
Result<std::vector<std::string>> ParseOrigins(std::string_view text);

}  // namespace ffrecord::server
