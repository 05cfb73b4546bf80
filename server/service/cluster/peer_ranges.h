#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "server/service/cluster/peers.h"

namespace ffrecord::server {

// Parts of extents that other nodes hold, over connections that are kept for the next ones. For
// jobs that plan: a read waits for kTimeMax at most, and once one has failed the next fail at once
// for kPause. Thread-safe; one read at a time.
class PeerRanges {
 public:
  static constexpr std::chrono::milliseconds kTimeMax{2'000};
  static constexpr std::chrono::milliseconds kPause{5'000};

  // The nodes that may hold the extent, the likeliest first, without this one.
  using HoldersOf = std::function<std::vector<std::string>(const ExtentId& id)>;

  // Borrows `peers`.
  PeerRanges(const Peers& peers, HoldersOf holders_of)
      : peers_(peers), holders_of_(std::move(holders_of)) {}

  // Bytes of the extent from an offset on; they are not verified. Fails with kUnavailable.
  Result<void> Read(const ExtentId& id, std::uint64_t offset_bytes,
                    std::span<std::byte> destination);

 private:
  struct Link {
    std::unique_ptr<net::Channel> channel;
    net::Deadline made{};
  };
  Result<void> ReadFrom(const std::string& node, const ExtentId& id, std::uint64_t offset_bytes,
                        std::span<std::byte> destination, net::Deadline deadline);

  const Peers& peers_;
  const HoldersOf holders_of_;
  std::mutex mutex_;
  std::map<std::string, Link> links_;
  net::Deadline paused_until_{};
};

}  // namespace ffrecord::server
