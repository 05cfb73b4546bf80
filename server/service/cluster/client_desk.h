#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/storage_messages.h"
#include "server/cluster/publication.h"
#include "server/metadata/name_quotas.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/state_keeper.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Clients' requests to the machines of a node: publish, look, upload.
//
// Threads: any. A `done` is called once, on the node's thread or on the caller's, by its deadline
// or when the service stops; it must not block. Ownership: ClusterService owns it; it borrows the
// machines, the extents, the state and the keeper.
class ClientDesk {
 public:
  using TimePoint = cluster::TimePoint;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  ClientDesk(NodeMachines& machines, NodeExtents& extents, const ShownState& shown,
             const StateKeeper& keeper)
      : machines_(machines), extents_(extents), shown_(shown), keeper_(keeper) {}

  void Publish(cluster::Publication::Request request, Done<std::uint64_t> done);
  // This node's table shows all that was published and removed before the call: the coordinator was
  // asked after it. Fails with kUnavailable at once while this node has no lease: others can tell.
  void CatchUp(std::string name, std::chrono::milliseconds patience, Done<void> done);
  // A place for an extent whose upload is on record, or none if it is sealed here already. `owner`:
  // the prefix below which its client may publish it. Fails with kIo (EDQUOT) if what is uploaded
  // and not published passes one of `quotas` with it.
  void BeginPut(const net::PutBegin& begin, const std::string& owner, const NameQuotas& quotas,
                Done<std::optional<NewExtent>> done);
  // Whether that extent may be sealed here now. Waits for the node's thread.
  Result<void> CheckSeal(const net::PutSeal& seal);

 private:
  void BeginPutNow(const net::PutBegin& begin, const cluster::UploadRoom& room,
                   const Done<std::optional<NewExtent>>& done);
  Result<std::optional<NewExtent>> Place(const net::PutBegin& begin) const;
  Result<void> CheckPut(const net::PutBegin& begin) const;
  Result<void> CheckSealNow(const net::PutSeal& seal) const;
  Result<void> MayTake(std::uint64_t upload) const;
  void AwaitName(std::uint64_t revision, std::string name, TimePoint deadline, Done<void> done);
  void AwaitSaved(std::uint64_t revision, TimePoint deadline, Done<void> done);

  NodeMachines& machines_;
  NodeExtents& extents_;
  const ShownState& shown_;
  const StateKeeper& keeper_;
};

}  // namespace ffrecord::server
