#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/slot_map.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/replicas/replica_map.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::client {

// A process's knowledge of a cluster at one time: its nodes, their addresses, and which of them
// should hold which extent. A value.
struct ClusterView {
  // Where a node was or is reached. Nodes keep their places; one that moves gets another.
  struct Place {
    std::string node;
    net::Location location;
  };

  net::ClusterMapReply reply;
  SlotMap map;                // The map of the reply's version.
  std::vector<Place> places;  // Their indices are NodeIndex values.
  // The node that the first view came from has names that the others do not have yet.
  bool has_own_names = false;

  // The places of nodes that may hold extents of this slot, its owners first, as
  // SlotMap::OwnersByAffinity has them, then the others as SlotMap::OrderOf has them, then those
  // that are up although they were taken out of the cluster: one may have the last replica. At most
  // ReplicaMap::kCandidatesMax. Nodes without an address are left out.
  struct Candidates {
    std::vector<net::NodeIndex> nodes;
    std::size_t owner_count = 0;
  };
  // `replicas`: of the extent; 0: as many as the cluster has.
  Candidates CandidatesOf(std::uint32_t slot, std::size_t replicas = 0) const;
  // Those that are to fetch what has an origin, as SlotMap::FetchOrderOf has them; the first one
  // counts as the owner.
  Candidates FetchersOf(std::uint32_t slot) const;
  // As the nodes said last.
  bool IsUp(net::NodeIndex place) const;

  // Where the nodes are that are up.
  std::vector<net::NodeIndex> PlacesUp() const;

  // Where an extent of this slot may be written: the owners first, then the others; of both, those
  // that are up first. Draining nodes, and those without an address, are left out.
  struct Target {
    net::NodeIndex place;
    std::string domain;
  };
  std::vector<Target> TargetsOf(std::uint32_t slot) const;
  // Where a member of a stripe of this slot may be written: its owner, if it is up, then the others
  // as in TargetsOf().
  std::vector<Target> StripeTargetsOf(std::uint32_t slot, std::size_t member,
                                      std::size_t member_count) const;
  // The places of nodes to ask for a data member of a stripe: its owner, then those that bring what
  // they lack, as SlotMap::FetchOrderOf has them.
  Candidates BringersOf(std::uint16_t owner, std::uint32_t slot) const;

 private:
  Candidates PlacesOf(std::span<const std::uint16_t> order, std::size_t owner_count) const;
};

// The view after `before` (null: the first), from an answer of a node and the payload beside it;
// `seed` says how nodes are reached. Fails with kCorruption if the answer does not fit its map, and
// with kUnavailable if the cluster has no map yet.
Result<ClusterView> NextView(const ClusterView* before, net::ClusterMapReply reply,
                             std::span<const std::byte> payload, const net::Location& seed);

// That of a single daemon: a node in all slots of a map of version 0, which no cluster has.
ClusterView ViewOfOneDaemon(const net::Location& location);

}  // namespace ffrecord::client
