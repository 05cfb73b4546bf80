#include "server/service/cluster/peer_ranges.h"

namespace ffrecord::server {

Result<void> PeerRanges::Read(const ExtentId& id, std::uint64_t offset_bytes,
                              std::span<std::byte> destination) {
  const std::lock_guard lock(mutex_);
  const auto now = net::Clock::now();
  Error last{ErrorCode::kUnavailable, "no node that has the extent answers"};
  if (now < paused_until_) return last;
  const auto deadline = now + kTimeMax;
  for (const std::string& node : holders_of_(id)) {
    const auto read = ReadFrom(node, id, offset_bytes, destination, deadline);
    if (read) return read;
    last.message = read.error().message;
    if (net::Clock::now() >= deadline) break;
  }
  paused_until_ = net::Clock::now() + kPause;
  return last;
}

Result<void> PeerRanges::ReadFrom(const std::string& node, const ExtentId& id,
                                  std::uint64_t offset_bytes, std::span<std::byte> destination,
                                  net::Deadline deadline) {
  Link& link = links_[node];
  const bool is_old = net::Clock::now() - link.made > Peers::kLinkTime;
  if (is_old || !link.channel || !link.channel->reusable() || !link.channel->Alive()) {
    link.channel = nullptr;
    link.channel = FFR_TRY(peers_.Dial(node, deadline));
    link.made = net::Clock::now();
  }
  return ReadExtentPart(*link.channel, id, offset_bytes, destination, deadline);
}

}  // namespace ffrecord::server
