#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "server/service/metrics.h"

namespace ffrecord::server {

// The weights by which tenants share the threads of a disk, and the time that they have used there.
//
// A tenant's share is that of the longest prefix with which its own begins, as in "train/" for the
// tenant "train/images\nclient"; each tenant has the whole weight of its share. Tenants that no
// prefix covers have weight 1. Thread-safe.
class TenantShares {
 public:
  struct Share {
    Share(std::string of, std::uint32_t by) : prefix(std::move(of)), weight(by) {}
    const std::string prefix;
    const std::uint32_t weight;
    Counter disk_us;  // In threads of disks, of all its tenants together.
  };

  explicit TenantShares(const std::map<std::string, std::uint32_t>& weights = {}) {
    for (const auto& [prefix, weight] : weights) shares_.try_emplace(prefix, prefix, weight);
    shares_.try_emplace("", "", 1);
  }

  // `tenant` begins with the prefix of its token. The share lives as long as this.
  Share& Of(std::string_view tenant) {
    for (auto share = shares_.rbegin(); share != shares_.rend(); ++share)
      if (tenant.starts_with(share->first)) return share->second;
    return shares_.begin()->second;  // The empty prefix, where the loop ends.
  }

  // By prefix.
  const std::map<std::string, Share>& all() const noexcept { return shares_; }

 private:
  // If two prefixes of one text match, the longer one comes later.
  std::map<std::string, Share> shares_;
};

}  // namespace ffrecord::server
