#include "server/service/cluster/peers.h"

#include <algorithm>

namespace ffrecord::server {
namespace {

// A node that is silent for so long is left for the next one.
constexpr std::chrono::seconds kPiecePatience{5};

}  // namespace

void Peers::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  bulk_.Stop();
  for (auto& [node, link] : links_) link->thread.Stop();
}

void Peers::Post(const std::string& node, std::function<void(Link&)> task) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  auto& link = links_[node];
  if (!link) link = std::make_unique<Link>();
  link->thread.Post([&link = *link, task = std::move(task)] { task(link); });
}

Result<std::unique_ptr<net::Channel>> Peers::Dial(const std::string& node,
                                                  net::Deadline deadline) const {
  const std::string address = address_of_(node);
  if (address.empty())
    return Error{ErrorCode::kUnavailable, "node " + node + ": its address is not known"};
  return dialer_.Dial(address, deadline);
}

Result<std::vector<std::byte>> Peers::Fetch(const ManifestExtent& extent,
                                            std::span<const std::string> nodes,
                                            net::Deadline deadline) const {
  Error last{ErrorCode::kUnavailable, "no node that has the extent answers"};
  for (const std::string& node : nodes) {
    const auto now = net::Deadline::clock::now();
    if (now >= deadline) break;
    auto channel = Dial(node, std::min(deadline, now + kPiecePatience));
    if (!channel) {
      last = channel.error();
      continue;
    }
    std::vector<std::byte> bytes;
    bytes.reserve(extent.size_bytes);
    const auto read = ReadExtent(*channel.value(), extent, deadline, kPiecePatience,
                                 [&](std::span<const std::byte> piece) -> Result<void> {
                                   bytes.insert(bytes.end(), piece.begin(), piece.end());
                                   return {};
                                 });
    const auto checked = read ? CheckBytes(extent, bytes) : read;
    if (checked) return bytes;
    last = checked.error();
  }
  return Error{ErrorCode::kUnavailable, last.message};
}

}  // namespace ffrecord::server
