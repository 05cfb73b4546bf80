#pragma once

#include "simulation.h"

namespace ffrecord::test {

struct Simulation::Node {
  std::string id;
  SimDisk disk;
  bool is_up = false;
  std::uint64_t incarnation = 0;  // Of its process, counted also by crashes.
  TimePoint paused_until{};
  std::deque<Act> held;  // What came while it was paused.
  TimePoint wake_planned{};
  std::unique_ptr<server::MemoryMetaStore> store;
  TimePoint store_wake{};  // When it has something to do next.
  std::unique_ptr<server::cluster::ClusterNode> machine;
  // Requests of clients that go on, and who waits for them.
  std::map<server::cluster::ClusterNode::RequestId, Done<std::uint64_t>> requests;
};

}  // namespace ffrecord::test
