#include "server/service/cluster/extent_mover.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace ffrecord::server {

using cluster::Body;

// All but this node.
std::vector<std::string> ExtentMover::Others(std::vector<std::string> nodes) const {
  std::erase(nodes, node_);
  return nodes;
}

Result<Body> ExtentMover::Fetch(const cluster::FetchBody& call, TimePoint deadline) {
  const auto others = Others(call.nodes);
  Body body;
  for (const ManifestExtent& extent : call.extents) {
    auto bytes = extents_.Read(extent);
    if (!bytes) bytes = peers_.Fetch(extent, others, deadline);
    if (!bytes) bytes = Restore(extent, std::move(bytes).error());
    if (!bytes) return std::move(bytes).error();
    body.insert(body.end(), bytes.value().begin(), bytes.value().end());
  }
  return body;
}

// Where no node has the extent of a manifest any more, this node may still know what it said: then
// it is put on disk again, for all. `why`: the error that is returned if it does not.
Result<Body> ExtentMover::Restore(const ManifestExtent& extent, Error why) {
  const ClusterStatePtr known = shown_.state();
  const auto is_of = [&](const auto& entry) {
    return entry.second.manifest && entry.second.record.body == std::vector{extent};
  };
  const auto name = std::ranges::find_if(*known->names, is_of);
  if (name == known->names->end()) return why;
  auto bytes = FFR_TRY(EncodeDatasetManifest(*name->second.manifest));
  FFR_TRY(CheckBytes(extent, bytes));
  spdlog::warn("event=manifest_restored name={} why=\"{}\"", name->first, why.message);
  if (const auto written = extents_.Write(extent, bytes); !written)
    spdlog::error("event=manifest_not_restored name={} error=\"{}\"", name->first,
                  written.error().message);
  return bytes;
}

Result<void> ExtentMover::Store(const cluster::StoreBody& call, TimePoint deadline) {
  if (call.node != node_) {
    const auto peer = FFR_TRY(peers_.Dial(call.node, deadline));
    return StoreExtent(*peer, call.extent, call.bytes, deadline);
  }
  extents_.NoteHeard(UploadOf(call.extent.id));
  FFR_TRY(check_seal_({call.extent.id, call.extent.xxh3}));
  return extents_.Write(call.extent, call.bytes);
}

Result<Body> ExtentMover::BytesOf(const cluster::PullExtent& call, TimePoint deadline) {
  if (!call.nodes.empty()) return peers_.Pull(call.extent, Others(call.nodes), deadline);
  if (call.part) return doctor_.Rebuild(*call.part, deadline, /*is_paced=*/true);
  return Restore(call.extent, {ErrorCode::kNotFound, "no node that answers has it"});
}

Result<void> ExtentMover::Pull(const cluster::PullExtent& call, TimePoint deadline) {
  // Before its bytes cross the network.
  FFR_TRY(extents_.store().CheckTakes(call.extent.size_bytes));
  const auto bytes = FFR_TRY(BytesOf(call, deadline));
  if (call.nodes.empty() && call.part) counters_.rebuilt.Add();
  FFR_TRY(extents_.Write(call.extent, bytes));
  counters_.pulled.Add();
  counters_.pulled_bytes.Add(bytes.size());
  return {};
}

void ExtentMover::Drop(const ExtentId& id) {
  extents_.Drop(id);
  counters_.dropped.Add();
}

}  // namespace ffrecord::server
