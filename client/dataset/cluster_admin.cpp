#include <ffrecord/client/cluster.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/dataset/change_tries.h"
#include "client/dataset/cluster.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::client {
namespace {

Result<std::shared_ptr<Cluster>> FindCluster(std::string_view address,
                                             const SessionOptions& options) {
  const auto locations = FFR_TRY(net::Location::ParseAll(address));
  auto cluster = FFR_TRY(Cluster::Find(locations, options));
  if (!cluster->is_one_daemon()) return cluster;
  return Error{ErrorCode::kInvalidArgument,
               "the daemon at " + locations.front().address.ToString() + " is of no cluster"};
}

NodeState StateOf(net::MemberState state) {
  switch (state) {
    case net::MemberState::kIn:
      return NodeState::kIn;
    case net::MemberState::kDraining:
      return NodeState::kDraining;
    case net::MemberState::kWaiting:
      return NodeState::kWaiting;
    case net::MemberState::kOut:
      break;
  }
  return NodeState::kOut;
}

net::MemberState StateOf(NodeState state) {
  switch (state) {
    case NodeState::kIn:
      return net::MemberState::kIn;
    case NodeState::kDraining:
      return net::MemberState::kDraining;
    case NodeState::kWaiting:
      return net::MemberState::kWaiting;
    case NodeState::kOut:
      break;
  }
  return net::MemberState::kOut;
}

std::string Hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::byte one : bytes) {
    hex += kDigits[std::to_integer<std::size_t>(one >> 4)];
    hex += kDigits[std::to_integer<std::size_t>(one & std::byte{15})];
  }
  return hex;
}

std::uint32_t SlotCountOf(const SlotMap& map, std::string_view node) {
  const std::uint16_t ordinal = map.Find(node);
  if (ordinal == SlotMap::kNoNode) return 0;
  return static_cast<std::uint32_t>(std::ranges::count(map.rows, ordinal));
}

}  // namespace

Result<ClusterInfo> DescribeCluster(std::string_view address, const SessionOptions& options) {
  const auto cluster = FFR_TRY(FindCluster(address, options));
  const auto view = cluster->view();
  const net::ClusterMapReply& reply = view->reply;
  ClusterInfo info{Hex(reply.cluster), reply.version, reply.replicas, reply.node, {}};
  for (const auto& node : reply.nodes)
    info.nodes.push_back({node.id,
                          node.address,
                          node.domain,
                          node.weight,
                          StateOf(node.state),
                          node.is_up,
                          SlotCountOf(view->map, node.id),
                          0,
                          {}});
  for (const net::ClusterMapReply::Waiting& one : reply.waiting) {
    const auto node = std::ranges::find(info.nodes, one.id, &ClusterNodeInfo::id);
    if (node == info.nodes.end() || node->state != NodeState::kWaiting) continue;
    node->address = one.address;
    node->waiting_since_unix_ms = one.since_unix_ms;
    node->daemon = one.daemon;
  }
  return info;
}

Result<void> SetNodeState(std::string_view address, std::string_view node, NodeState state,
                          const SessionOptions& options) {
  const auto cluster = FFR_TRY(FindCluster(address, options));
  const auto body = net::SetMember{StateOf(state), std::string(node)}.Encode();
  ChangeTries tries;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    const auto reply =
        connection.Call(net::FrameType::kSetMember, body, {}, until, "the change of a node");
    if (reply) return {};
    tries.Note(connection, reply.error());
    return reply.error();
  };
  auto done = cluster->Run(attempt, net::Clock::now() + options.timeout, ChangeTries::kAnswerTime);
  if (!done) return tries.Explain(std::move(done).error());
  return {};
}

Result<std::uint32_t> RaiseFeatureLevel(std::string_view address, std::uint32_t level,
                                        const SessionOptions& options) {
  const auto cluster = FFR_TRY(FindCluster(address, options));
  const auto body = net::SetLevel{level}.Encode();
  std::uint32_t raised = 0;
  ChangeTries tries;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    const auto reply =
        connection.Call(net::FrameType::kSetLevel, body, {}, until, "the feature level");
    if (!reply) {
      tries.Note(connection, reply.error());
      return reply.error();
    }
    raised = FFR_TRY(net::SetLevel::Decode(reply.value().body)).level;
    return {};
  };
  auto done = cluster->Run(attempt, net::Clock::now() + options.timeout, ChangeTries::kAnswerTime);
  if (!done) return tries.Explain(std::move(done).error());
  return raised;
}

}  // namespace ffrecord::client
