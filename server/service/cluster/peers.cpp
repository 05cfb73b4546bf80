#include "server/service/cluster/peers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/patience.h"

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

void Peers::Note(Link& link, const std::string& node, const Error* error) {
  const bool fails = error != nullptr;
  if (std::exchange(link.is_failing, fails) == fails || link.thread.is_stopping()) return;
  if (fails)
    spdlog::warn("event=peer_fails node={} error=\"{}\"", node, error->message);
  else
    spdlog::info("event=peer_answers node={}", node);
}

Result<std::unique_ptr<net::Channel>> Peers::Dial(const std::string& node,
                                                  net::Deadline deadline) const {
  const Place place = find_place_(node);
  if (place.address.empty())
    return Error{ErrorCode::kUnavailable, "node " + node + ": its address is not known"};
  auto channel = dialer_.Dial(place.address, deadline);
  if (channel) {
    auto checked = CheckIsNode(*channel.value(), node, place.cluster, place.map_version, deadline);
    if (!checked) channel = std::move(checked).error();
  }
  if (!channel) NoteRefusal(node, &channel.error());
  return channel;
}

void Peers::NoteRefusal(const std::string& node, const Error* error) const {
  // A node that is away says nothing of whether it is one of ours.
  if (error != nullptr && error->code != ErrorCode::kDenied) return;
  const std::lock_guard lock(mutex_);
  if (error == nullptr) {
    if (refusals_.erase(node) > 0) spdlog::info("event=peer_accepted node={}", node);
  } else if (std::exchange(refusals_[node], error->message) != error->message) {
    spdlog::warn("event=peer_refused node={} error=\"{}\"", node, error->message);
  }
}

std::map<std::string, std::string> Peers::Refusals() const {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

std::vector<std::string> Peers::Refused() const {
  std::vector<std::string> nodes;
  const std::lock_guard lock(mutex_);
  for (const auto& [node, why] : refusals_) nodes.push_back(node);
  return nodes;
}

void Peers::AskRefusedAgain() {
  const net::Deadline deadline = Clock::now() + kPiecePatience;
  for (const std::string& node : Refused()) {
    const bool is_gone = find_place_(node).is_gone;
    {
      const std::lock_guard lock(mutex_);
      if (is_gone) refusals_.erase(node);
      if (is_gone || !asked_again_.insert(node).second) continue;
    }
    Ask<cluster::Flags>(
        node, deadline,
        // Any question will do that needs what nodes need of each other.
        [node, deadline](net::Channel& peer) {
          return CallPeer(peer, cluster::AskHeard{node, {0}}, deadline);
        },
        [this, node](const Result<cluster::Flags>&) {
          const std::lock_guard lock(mutex_);
          asked_again_.erase(node);
        });
  }
}

Result<std::vector<std::byte>> Peers::Fetch(const ManifestExtent& extent,
                                            std::span<const std::string> nodes,
                                            net::Deadline deadline,
                                            const PauseBefore& pause) const {
  Error last{ErrorCode::kUnavailable, "no node that has the extent answers"};
  for (const std::string& node : nodes) {
    const auto now = Clock::now();
    if (now >= deadline) break;
    auto channel = Dial(node, std::min(deadline, now + kPiecePatience));
    if (!channel) {
      last = channel.error();
      continue;
    }
    std::vector<std::byte> bytes;
    bytes.reserve(extent.size_bytes);
    const auto read = ReadExtent(
        *channel.value(), extent, deadline, kPiecePatience,
        [&](std::span<const std::byte> piece) -> Result<void> {
          bytes.insert(bytes.end(), piece.begin(), piece.end());
          return {};
        },
        pause);
    NoteRefusal(node, read ? nullptr : &read.error());
    const auto checked = read ? CheckBytes(extent, bytes) : read;
    if (checked) return bytes;
    // Else it would offer them until its scrubber comes by, and nobody would compute others.
    if (read) DoubtExtent(*channel.value(), std::min(deadline, Clock::now() + kPiecePatience));
    last = checked.error();
  }
  return Error{ErrorCode::kUnavailable, last.message};
}

Result<std::vector<std::byte>> Peers::Pull(const ManifestExtent& extent,
                                           std::span<const std::string> nodes,
                                           net::Deadline deadline) {
  return Fetch(extent, nodes, deadline,
               [this](std::uint64_t size_bytes) { return AwaitPull(size_bytes); });
}

Result<void> Peers::AwaitPull(std::uint64_t size_bytes) {
  const auto at = pull_pace_.Take(pull_clock_.now(), size_bytes);
  for (;;) {
    const auto now = pull_clock_.now();
    if (now >= at) return {};
    if (Patience::OfThread().IsOver()) return Error{ErrorCode::kUnavailable, "the daemon stops"};
    pull_clock_.sleep(std::min<PullPace::Time::duration>(at - now, Patience::kInterval));
  }
}

}  // namespace ffrecord::server
