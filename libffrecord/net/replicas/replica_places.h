#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "libffrecord/net/replicas/replica_map.h"
#include "libffrecord/net/rpc/remote_files.h"

namespace ffrecord::net {

// The daemons of a source, and which of them hold which extent, as far as it is known at one time.
struct ReplicaView {
  // The same files at each daemon, by size and order; at least one.
  std::vector<std::shared_ptr<const RemoteFiles>> replicas;
  std::shared_ptr<const ReplicaMap> map;  // Extents are numbered as in each of `replicas`.
};

// Knows where the replicas of one source are, as that changes. Thread-safe; a forked child may go
// on using it.
class ReplicaPlaces {
 public:
  virtual ~ReplicaPlaces() = default;

  // The newest view. Never waits. A later one begins with the replicas of an earlier one.
  virtual std::shared_ptr<const ReplicaView> Now() = 0;
  // A daemon has said that this is the version of its map: a newer one is to be had. Never waits.
  virtual void NoteVersion(std::uint32_t /*map_version*/) {}
  // A daemon does not answer, or no daemon has what it should: a newer view may help. Never waits.
  virtual void NoteFailure() {}
};

}  // namespace ffrecord::net
