#pragma once

#include "simulation.h"

namespace ffrecord::test {

struct Simulation::Node {
  std::string id;
  SimDisk disk;
  // On its disk as well: how far it has seen the metadata, and the names by then.
  server::cluster::HistoryMark mark;
  server::cluster::KnownNames known;
  bool is_up = false;
  std::uint64_t incarnation = 0;  // Of its process, counted also by crashes.
  std::string owner;              // What its process writes into the key `leader`.
  std::int64_t drift_ppm = 0;     // Its clock runs so much faster than the store's.
  Duration clock_offset{};        // And begins elsewhere.
  TimePoint paused_until{};
  std::deque<Act> held;  // What came while it was paused.
  TimePoint wake_planned{};
  std::unique_ptr<server::MemoryMetaStore> store;
  TimePoint store_wake{};  // When it has something to do next.
  bool is_store_running = false;
  std::map<server::cluster::CallId, server::MetaStore::WatchId> watches;
  std::unique_ptr<server::cluster::ClusterNode> machine;
  // Requests of clients that go on, and who waits for them.
  std::map<server::cluster::ClusterNode::RequestId, Done<std::uint64_t>> requests;
};

template <class F>
void Simulation::On(Node& node, F act) {
  if (!node.is_up) return;
  if (now_ < node.paused_until)
    node.held.emplace_back(std::move(act));  // A crash forgets it.
  else
    act();
}

}  // namespace ffrecord::test
