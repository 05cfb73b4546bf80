#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/records.h"
#include "server/cluster/unanswered_commits.h"
#include "server/metadata/meta_store.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/node_machines.h"

namespace ffrecord::server {

// Operators' changes of a cluster: its members and its feature level.
//
// Threads: SetMember() and RaiseLevel() may be called from any thread, and all else happens on the
// node's thread. A `done` is called once, within 8 s or when the service stops, on the node's
// thread or the store's. Ownership: ClusterService owns it; it borrows the options, the store and
// the machines.
class OperatorDesk {
 public:
  using TimePoint = cluster::TimePoint;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  OperatorDesk(const ClusterOptions& options, MetaStore& store, NodeMachines& machines)
      : options_(options), store_(store), machines_(machines) {}

  void SetMember(const net::SetMember& request, Done<void> done);
  // To 0: to the highest that all nodes know. Tells the level that the cluster has. Fails with
  // kConflict if not all nodes are known to know it, kInvalidArgument if it is below the present
  // one.
  void RaiseLevel(std::uint32_t level, Done<std::uint32_t> done);

 private:
  // A change by an operator, until it is answered.
  struct Change {
    template <class T>
    Change(TimePoint by, Done<T> done)
        : deadline(by), refuse([done](Error refusal) { done(std::move(refusal)); }) {}
    void Refuse(Error refusal) const { refuse(unanswered.Explain(std::move(refusal))); }

    const TimePoint deadline;
    const std::function<void(Error)> refuse;
    cluster::UnansweredCommits unanswered;
  };
  using ChangePtr = std::shared_ptr<Change>;
  void BeginChange(const ChangePtr& change, std::function<void()> begin);
  // Then `made` is called; or `again`, to look and decide anew, if it lost or had no answer.
  void CommitChange(const ChangePtr& change, MetaStore::Commit commit, std::function<void()> made,
                    std::function<void()> again);
  void AwaitOutcome(const ChangePtr& change, const MetaStore::Outcome& outcome,
                    const std::function<void()>& made, const std::function<void()>& again);
  void WriteMember(const net::SetMember& request, const ChangePtr& change, const Done<void>& done);
  Result<void> CheckChange(const std::string& node, const cluster::MemberRecord& member,
                           cluster::MemberRecord::State state) const;
  Result<std::vector<MetaStore::Compare>> FindReplacements(const std::string& node) const;
  Result<std::uint32_t> FindCommonLevel() const;
  void BeginToRaise(std::uint32_t level, const ChangePtr& change, const Done<std::uint32_t>& done);
  void WriteLevel(std::uint32_t level, const ChangePtr& change, const Done<std::uint32_t>& done);
  const cluster::View& view() const { return machines_.view(); }

  const ClusterOptions& options_;
  MetaStore& store_;
  NodeMachines& machines_;
};

}  // namespace ffrecord::server
