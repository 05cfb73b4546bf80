#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/cluster_node.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/enrolment.h"
#include "server/service/cluster/service_inbox.h"
#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/state_keeper.h"
#include "server/service/cluster/waiters.h"

namespace ffrecord::server {

// The machines of a node, which are its ClusterNode and the Enrolment before it, and the callers
// that wait for them.
//
// Threads: Post(), Ask() and inbox() may be called from any thread; all else belongs to the node's
// thread (NodeLoop), and waits for nothing. Ownership: ClusterService owns it; it owns the
// machines, and borrows the extents, the state and the keeper.
class NodeMachines {
 public:
  using TimePoint = cluster::TimePoint;
  using RequestId = cluster::ClusterNode::RequestId;
  template <class T>
  using Done = std::function<void(Result<T>)>;
  template <class Question>
  using AnswerTo = std::decay_t<decltype(std::declval<const cluster::ClusterNode&>().OnAsk(
      TimePoint(), std::declval<const Question&>()))>;
  // Carries the actions out, in their order, and answers each once by Take().
  using Carry = std::function<void(std::vector<cluster::Action>)>;

  // `options` outlives it. `known`: the metadata that the node has from before its start.
  NodeMachines(const ClusterOptions& options, cluster::ClusterNode::Options known,
               const cluster::LocalExtents& extents, std::shared_ptr<ServiceInbox> inbox,
               const ShownState& shown, StateKeeper& keeper, Carry carry);

  // --- Any thread ---

  // Runs `message` on the node's thread. False, and it is dropped, once the service stops.
  bool Post(ServiceInbox::Message message) { return inbox_->Post(std::move(message)); }
  // The inbox, for callbacks that may come after this is gone.
  const std::shared_ptr<ServiceInbox>& inbox() const noexcept { return inbox_; }
  // Answers another node's question.
  template <class Question>
  void Ask(Question question, Done<AnswerTo<Question>> done) {
    const bool is_posted = Post([this, question = std::move(question), done] {
      done(node_.OnAsk(Clock::now(), question));
    });
    if (!is_posted) done(Stopped());
  }
  static Error Stopped() { return {ErrorCode::kUnavailable, "the daemon stops"}; }

  // --- The node's thread ---

  cluster::ClusterNode& node() noexcept { return node_; }
  const cluster::ClusterNode& node() const noexcept { return node_; }
  const cluster::View& view() const { return node_.view(); }
  Enrolment& enrolment() noexcept { return *enrolment_; }
  const Enrolment& enrolment() const noexcept { return *enrolment_; }

  // Begins to enrol: into that cluster, or into any if the data belongs to none.
  void Enrol(const std::optional<net::ClusterId>& known);
  bool is_enrolled() const { return enrolment_->is_done(); }
  // The machines of ClusterNode run, also while the node enrols anew.
  bool are_running() const noexcept { return are_running_; }
  void StepEnrolment(TimePoint now);
  // Requires that they run.
  void StepNode(TimePoint now);
  void Take(const cluster::Answer& answer);
  // When to step next.
  TimePoint wake() const;

  // Calls `done` once, after the request has finished.
  void OnFinished(RequestId request, Done<std::uint64_t> done);
  void AnswerFinished();
  // Ends all requests.
  void GiveUpRequests();
  Waiters& waiters() noexcept { return waiters_; }

  // Why this node takes no part in its cluster; empty: it does.
  std::string Trouble() const;
  Error NotTakingPart() const;

 private:
  const ClusterOptions& options_;
  const std::shared_ptr<ServiceInbox> inbox_;
  const ShownState& shown_;
  StateKeeper& keeper_;
  const Carry carry_;
  cluster::ClusterNode node_;
  std::unique_ptr<Enrolment> enrolment_;
  cluster::Outbox enrolment_out_{cluster::CallId{1} << 63};
  bool are_running_ = false;
  std::map<RequestId, Done<std::uint64_t>> requests_;
  Waiters waiters_;
};

}  // namespace ffrecord::server
