#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "server/service/cluster/adoption_driver.h"
#include "server/service/cluster/metadata_desk.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/state_keeper.h"

namespace ffrecord::server {

// The thread that owns the machines of a node: takes messages from their inbox, and steps all rooms
// of the node in their order.
//
// Threads: its own, which never waits for a disk, for the store or for another node; Start() and
// Stop() belong to one other thread. Ownership: ClusterService owns it; it borrows the rooms, and
// owns the thread.
class NodeLoop {
 public:
  struct Rooms {
    NodeMachines& machines;
    ShownState& shown;
    StateKeeper& keeper;
    NodeExtents& extents;
    Peers& peers;
    MetadataDesk& metadata;
    AdoptionDriver* adoption;  // Null: the daemon does not adopt.
  };
  // `upload_grace`: uploads that are silent for longer are forgotten.
  NodeLoop(const Rooms& rooms, std::chrono::milliseconds upload_grace)
      : rooms_(rooms), upload_grace_(upload_grace) {}
  ~NodeLoop() { Stop(); }
  NodeLoop(const NodeLoop&) = delete;
  NodeLoop& operator=(const NodeLoop&) = delete;

  // Requires that the machines have begun to enrol.
  void Start();
  // Answers all that is open, and joins. False: it did not run.
  bool Stop();

 private:
  using TimePoint = cluster::TimePoint;
  void Run();
  TimePoint Wake() const;
  void Step(TimePoint now);
  void StepNode(TimePoint now);
  void Upkeep(TimePoint now);
  void NoteTrouble();
  void AnswerAll();

  const Rooms rooms_;
  const std::chrono::milliseconds upload_grace_;
  // The thread's:
  std::string logged_reason_;
  TimePoint upkeep_next_{};
  TimePoint refused_next_{};
  std::thread thread_;
};

}  // namespace ffrecord::server
