#include "server/service/cluster/node_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUpkeepInterval = 1'000ms;
constexpr auto kRefusedInterval = 5'000ms;

}  // namespace

void NodeLoop::Start() {
  logged_reason_ = rooms_.machines.enrolment().trouble();  // Nothing to tell before an answer.
  thread_ = std::thread([this] { Run(); });
}

bool NodeLoop::Stop() {
  if (!thread_.joinable()) return false;
  rooms_.machines.inbox()->Close();
  thread_.join();
  return true;
}

void NodeLoop::Run() {
  ServiceInbox& inbox = *rooms_.machines.inbox();
  std::vector<ServiceInbox::Message> messages;
  Step(Clock::now());
  while (inbox.Take(Wake(), messages)) {
    for (const auto& message : messages) message();
    Step(Clock::now());
  }
  rooms_.extents.SetTrust(NodeExtents::Trust::kNot);  // Nobody tells it any more.
  AnswerAll();
}

TimePoint NodeLoop::Wake() const {
  TimePoint wake = std::min(upkeep_next_, rooms_.machines.wake());
  if (rooms_.adoption != nullptr) wake = std::min(wake, rooms_.adoption->wake());
  return wake;
}

void NodeLoop::Step(TimePoint now) {
  rooms_.metadata.Step(now);
  rooms_.machines.StepEnrolment(now);
  if (rooms_.machines.are_running()) StepNode(now);
  NoteTrouble();
  rooms_.machines.waiters().Answer(now);
  if (now >= upkeep_next_) Upkeep(now);
}

void NodeLoop::StepNode(TimePoint now) {
  NodeMachines& machines = rooms_.machines;
  machines.StepNode(now);
  const cluster::Continuity& continuity = machines.view().continuity;
  using Trust = NodeExtents::Trust;
  rooms_.extents.SetTrust(continuity.is_frozen()    ? Trust::kFrozen
                          : continuity.is_trusted() ? Trust::kIs
                                                    : Trust::kNot);
  const auto shown = rooms_.shown.Refresh(now, machines.node(), machines.enrolment().cluster());
  // While nobody has confirmed the metadata, the disk has what was trusted last.
  if (shown && !continuity.is_frozen()) rooms_.keeper.Save(shown, continuity.mark());
  rooms_.extents.NoteElsewhere(machines.node().replication().elsewhere());
  machines.AnswerFinished();
  if (rooms_.adoption != nullptr) rooms_.adoption->Step(now);
  rooms_.metadata.AnswerRebuilt();
}

void NodeLoop::Upkeep(TimePoint now) {
  upkeep_next_ = now + kUpkeepInterval;
  rooms_.extents.ForgetSilent(now, upload_grace_);
  if (now >= refused_next_) {
    refused_next_ = now + kRefusedInterval;
    rooms_.peers.AskRefusedAgain();
  }
  rooms_.keeper.Retry();
}

void NodeLoop::NoteTrouble() {
  std::string trouble = rooms_.machines.Trouble();
  if (trouble == logged_reason_) return;
  logged_reason_ = std::move(trouble);
  if (!logged_reason_.empty()) spdlog::warn("event=takes_no_part why=\"{}\"", logged_reason_);
}

void NodeLoop::AnswerAll() {
  rooms_.machines.GiveUpRequests();
  rooms_.machines.waiters().AnswerAll(NodeMachines::Stopped());
  rooms_.metadata.GiveUp();  // Last: callers that waited may have begun rebuilds just now.
}

}  // namespace ffrecord::server
