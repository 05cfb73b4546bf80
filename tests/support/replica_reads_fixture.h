#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/net/replicas/replica_reads.h"
#include "whole_replicas.h"

namespace ffrecord::net {

using namespace std::chrono_literals;
using Reads = ReplicaReads;

inline constexpr std::uint64_t kSize = 1000;

// Every extent has these candidates.
class WrittenMap final : public ReplicaMap {
 public:
  WrittenMap(std::vector<NodeIndex> nodes, std::size_t owner_count)
      : nodes_(std::move(nodes)), owner_count_(owner_count) {}
  std::span<const NodeIndex> NodesOf(std::uint32_t /*extent*/) const override { return nodes_; }
  std::size_t OwnerCountOf(std::uint32_t /*extent*/) const override { return owner_count_; }
  bool MovesExtents() const override { return moves_; }
  bool AsksInOrder() const override { return asks_in_order_; }

  bool moves_ = false;
  bool asks_in_order_ = false;

 private:
  const std::vector<NodeIndex> nodes_;
  const std::size_t owner_count_;
};

// The machine with a clock of the test's own: events in, actions kept.
class ReplicaReadsTest : public testing::Test {
 protected:
  explicit ReplicaReadsTest(std::size_t node_count = 3) { Start(node_count); }
  void Start(std::size_t node_count) {
    map_.emplace(node_count);
    health_.emplace(node_count);
    reads_.emplace(*map_, *health_, node_count, 7);
  }

  void Step(const Reads::Event& event) {
    actions_.clear();
    reads_->Step(now_, event, actions_);
    for (const auto& action : actions_)
      if (const auto* send = std::get_if<Reads::Send>(&action)) sent_[send->leg] = *send;
  }
  // Lets the time pass, with a Tick whenever one is wanted; all actions of that time.
  Reads::Actions Pass(Reads::Duration time) {
    Reads::Actions all;
    const auto end = now_ + time;
    while (reads_->NextTime() <= end) {
      now_ = std::max(now_, reads_->NextTime());
      Step(Reads::Tick{});
      all.insert(all.end(), actions_.begin(), actions_.end());
    }
    now_ = end;
    actions_ = all;
    return all;
  }
  void Begin(Reads::BatchId batch, std::size_t part_count, Reads::Duration timeout = 30s,
             std::uint64_t size_bytes = kSize) {
    Step(Reads::Begin{batch, std::vector<Reads::PartSize>(part_count, {0, size_bytes}),
                      now_ + timeout});
  }
  // A batch of one part, by this map.
  void BeginBy(const ReplicaMap& map, Reads::BatchId batch, std::uint64_t size_bytes = kSize) {
    Step(Reads::NewMap{&map});
    Step(Reads::Begin{batch, {{0, size_bytes}}, now_ + 30s});
  }
  template <class Action>
  std::vector<Action> All() const {
    std::vector<Action> found;
    for (const auto& action : actions_)
      if (const auto* one = std::get_if<Action>(&action)) found.push_back(*one);
    return found;
  }
  // The one action of this kind.
  template <class Action>
  Action Only() const {
    const auto found = All<Action>();
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? Action{} : found.front();
  }
  void Arrive(Reads::LegId leg, std::uint32_t entry, ErrorCode status = ErrorCode::kOk) {
    Step(Reads::Arrived{leg, entry, status});
  }
  void EndLeg(Reads::LegId leg, ErrorCode status = ErrorCode::kOk) {
    Step(Reads::LegEnded{leg, status});
  }
  // The node of the first leg of a batch of one part, all of which goes well.
  NodeIndex ReadOne(Reads::BatchId batch) {
    Begin(batch, 1);
    const auto send = All<Reads::Send>().front();
    now_ += 1ms;
    for (const auto& [leg, one] : std::map(sent_)) {
      if (one.batch != batch) continue;
      Arrive(leg, 0);
      EndLeg(leg);
    }
    return send.node;
  }

  Reads::Time now_ = Reads::Time{} + 1h;
  std::optional<WholeReplicas> map_;
  std::optional<ReplicaHealth> health_;
  std::optional<Reads> reads_;
  Reads::Actions actions_;
  std::map<Reads::LegId, Reads::Send> sent_;
};

}  // namespace ffrecord::net
