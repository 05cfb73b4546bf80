#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cut_store.h"
#include "libffrecord/base/clock.h"
#include "memory_store.h"
#include "server/metadata/memory_store.h"
#include "server/service/cluster/action_carrier.h"
#include "server/service/cluster/client_desk.h"
#include "server/service/cluster/metadata_desk.h"
#include "server/service/cluster/operator_desk.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace ffrecord::test {

// The rooms of one node without its thread: the test steps them by a clock of its own, over a store
// in memory, and is the only thread that changes anything.
class NodeRooms {
 public:
  using TimePoint = server::cluster::TimePoint;

  explicit NodeRooms(server::ClusterOptions options) : options_(std::move(options)) {
    machines_.Enrol(std::nullopt);
  }

  // Lets time pass, in steps.
  void RunFor(std::chrono::milliseconds time) {
    const std::chrono::milliseconds step(50);
    for (std::chrono::milliseconds passed(0); passed < time; passed += step) {
      clock_.RunFor(step);
      do Step();
      while (Drain());
    }
  }
  void Put(std::string_view key, std::vector<std::byte> value) {
    const auto put = state_.TryCommit({{}, {{std::string(key), std::move(value)}}, {}}, Now());
    EXPECT_TRUE(put) << put.error().message;
  }
  std::optional<server::MetaStore::KeyValue> Get(std::string_view key) const {
    return state_.Get(key);
  }
  // As the node's thread does as it ends.
  void End() {
    machines_.inbox()->Close();
    Drain();
    machines_.GiveUpRequests();
    machines_.waiters().AnswerAll(server::NodeMachines::Stopped());
    metadata_.GiveUp();
  }

  server::NodeMachines& machines() { return machines_; }
  server::OperatorDesk& operators() { return operators_; }
  server::MetadataDesk& metadata() { return metadata_; }
  // The node's way to the store.
  CutStore& way() { return *way_; }

 private:
  static TimePoint Now() { return Clock::now(); }

  // In the order of NodeLoop.
  void Step() {
    memory_->Run(Now());
    metadata_.Step(Now());
    machines_.StepEnrolment(Now());
    if (machines_.are_running()) {
      machines_.StepNode(Now());
      (void)shown_.Refresh(Now(), machines_.node(), machines_.enrolment().cluster());
      machines_.AnswerFinished();
      metadata_.AnswerRebuilt();
    }
    machines_.waiters().Answer(Now());
  }
  // False: there was nothing.
  bool Drain() {
    std::vector<server::ServiceInbox::Message> messages;
    memory_->Run(Now());
    (void)machines_.inbox()->Take(Now(), messages);
    for (const auto& message : messages) message();
    return !messages.empty();
  }

  VirtualClock clock_;
  const TempFolder folder_;
  const server::ClusterOptions options_;
  server::MetaState state_;
  const std::shared_ptr<server::MemoryMetaStore> memory_ =
      std::make_shared<server::MemoryMetaStore>(
          state_, server::MemoryMetaStore::Options{.next_trip = {}, .now = Now()});
  const std::shared_ptr<CutStore> way_ = std::make_shared<CutStore>(memory_);
  const std::unique_ptr<server::BlockingStore> home_ = MakeMemoryStore();
  const std::unique_ptr<server::ExtentStore> store_ =
      server::ExtentStore::Open(folder_ / "extents").value();
  server::NodeExtents extents_{*store_};
  server::ShownState shown_{{options_.node, options_.replicas, /*adopts=*/false, {}}};
  server::StateKeeper keeper_{server::ClusterCache(*home_), options_.node, [] {}};
  server::Peers peers_{server::PeerDialer(options_.node, nullptr, {}),
                       [](const std::string&) { return server::Peers::Place{}; },
                       0,
                       {}};
  server::StripeDoctor doctor_{options_.node, shown_, extents_, peers_};
  server::ExtentMover mover_{options_.node, shown_,
                             extents_,      peers_,
                             doctor_,       [](const net::PutSeal&) { return Result<void>(); }};
  server::NodeMachines machines_{
      options_,
      {},
      extents_,
      std::make_shared<server::ServiceInbox>(),
      shown_,
      keeper_,
      [this](std::vector<server::cluster::Action> actions) { carrier_.Carry(std::move(actions)); }};
  server::ActionCarrier carrier_{options_.node, *way_, machines_, peers_, extents_, mover_};
  server::OperatorDesk operators_{options_, *way_, machines_};
  server::MetadataDesk metadata_{options_, *way_, machines_, shown_};
};

}  // namespace ffrecord::test
