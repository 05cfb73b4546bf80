#include "server/service/cluster/node_machines.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "server/service/cluster/pull_patience.h"

namespace ffrecord::server {
namespace {

using cluster::TimePoint;

cluster::ClusterNode::Options NodeOptions(const ClusterOptions& options,
                                          cluster::ClusterNode::Options node) {
  node.lease.node = options.node;
  node.lease.record.epoch = RandomNumber();
  node.lease.record.address = options.advertise;
  node.lease.record.level = options.feature_level;
  node.lease.record.origins_hash = options.origins_hash;
  node.lease.ttl = options.lease;
  node.replication.pull_patience = PullPatienceAt(options.pull_bytes_per_s, node.replication);
  node.leader.row_size = std::max<std::uint32_t>(node.leader.row_size, options.replicas);
  node.leader.replicas = options.replicas;
  node.leader.down_grace = options.down_grace;
  node.leader.upload_grace = options.upload_grace;
  node.leader.approves_members = options.approves_members;
  return node;
}

}  // namespace

NodeMachines::NodeMachines(const ClusterOptions& options, cluster::ClusterNode::Options known,
                           const cluster::LocalExtents& extents,
                           std::shared_ptr<ServiceInbox> inbox, const ShownState& shown,
                           StateKeeper& keeper, Carry carry)
    : options_(options),
      inbox_(std::move(inbox)),
      shown_(shown),
      keeper_(keeper),
      carry_(std::move(carry)),
      node_(NodeOptions(options, std::move(known)), extents) {}

// --- The machines -------------------------------------------------------------------------------

void NodeMachines::Enrol(const std::optional<net::ClusterId>& known) {
  enrolment_ = std::make_unique<Enrolment>(Enrolment::Options{
      options_.node, options_.domain, options_.weight, known, options_.feature_level,
      WaitsFromNowOn(options_.advertise, options_.daemon)});
}

void NodeMachines::StepEnrolment(TimePoint now) {
  if (is_enrolled()) return;
  enrolment_->Step(now, enrolment_out_);
  carry_(enrolment_out_.Take());
}

void NodeMachines::StepNode(TimePoint now) {
  carry_(node_.Step(now));
  // The store was emptied: it may be founded again, with what this node knows.
  if (view().continuity.finds_nothing() && is_enrolled()) Enrol(shown_.state()->cluster);
}

void NodeMachines::Take(const cluster::Answer& answer) {
  const TimePoint now = Clock::now();
  if (!enrolment_->Take(now, answer)) {
    const bool was_checked = view().continuity.is_checked();
    carry_(node_.Step(now, answer));
    if (!was_checked && view().continuity.is_checked()) enrolment_->LookNow();
    return;
  }
  if (!is_enrolled()) return;
  if (are_running_) node_.Doubt();  // It was founded again, or put back.
  are_running_ = true;
  spdlog::info("event=enrolled node={} cluster={}", options_.node, Hex(*enrolment_->cluster()));
  keeper_.SaveId(*enrolment_->cluster());
}

TimePoint NodeMachines::wake() const {
  TimePoint wake = std::min(enrolment_->wake(), waiters_.wake());
  if (are_running_) wake = std::min(wake, node_.wake());
  return wake;
}

// --- Requests -----------------------------------------------------------------------------------

void NodeMachines::OnFinished(RequestId request, Done<std::uint64_t> done) {
  requests_[request] = std::move(done);
}

void NodeMachines::AnswerFinished() {
  for (auto& finished : node_.TakeFinished()) {
    const auto found = requests_.find(finished.request);
    const auto done = std::move(found->second);
    requests_.erase(found);
    done(std::move(finished.result));
  }
}

void NodeMachines::GiveUpRequests() {
  node_.GiveUp(Stopped());
  AnswerFinished();
}

// --- Trouble ------------------------------------------------------------------------------------

std::string NodeMachines::Trouble() const {
  if (!is_enrolled()) return enrolment_->trouble();
  // The record of its own start before this one ends with its lease.
  const std::string& rival = view().lease.rival();
  if (!rival.empty() && rival != options_.advertise)
    return "the daemon at " + rival + " runs as node " + options_.node +
           " too: give each daemon a `node` of its own";
  const cluster::Continuity& continuity = view().continuity;
  if (continuity.is_frozen() && !continuity.is_checked())
    return "the coordinator does not have the metadata that this daemon has seen, and reads go on "
           "by that. Bring the coordinator's data back; or empty the coordinator, and run "
           "`ffrecord "
           "cluster restore` or `ffrecord cluster rebuild`";
  if (node_.is_outdated()) return cluster::ExplainLevel(node_.level(), options_.feature_level);
  return "";
}

Error NodeMachines::NotTakingPart() const {
  return {ErrorCode::kUnavailable, "this daemon does not take part in its cluster: " + Trouble()};
}

}  // namespace ffrecord::server
