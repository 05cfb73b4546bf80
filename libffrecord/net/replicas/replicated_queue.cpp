#include "libffrecord/net/replicas/replicated_queue.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/rpc/paced_reads.h"

namespace ffrecord::net {
namespace {

using std::chrono::milliseconds;

// A batch is given up by so much before its deadline, that nodes have the time to end it.
constexpr milliseconds kEndingTime{100};
// As RemoteQueue's: an owner that does not poll for longer is away.
constexpr milliseconds kAwayMin{100};
constexpr milliseconds kCalledMax{1'000};

Deadline EndOf(milliseconds timeout) {
  constexpr std::chrono::hours kYear{24 * 365};
  return timeout >= kYear ? Deadline::max() : Clock::now() + timeout;
}

milliseconds Until(Deadline end) {
  const auto now = Clock::now();
  if (end <= now) return milliseconds(0);
  return std::chrono::ceil<milliseconds>(
      std::min<Deadline::duration>(end - now, milliseconds(10'000)));
}

}  // namespace

// The request to one node at a time. Keeps its memory until it is released.
class ReplicatedQueue::Leg final : public RangeGroup {
 public:
  Leg(ReplicatedQueue& queue, LegId id, NodeIndex node) : queue_(queue), id_(id), node_(node) {}

  // The parts go where they are wanted, or, if not `is_direct`, to memory of the leg's own.
  Result<void> Prepare(const ReplicaReads::Send& send, const Call& call, const RemoteFiles& files) {
    std::span<std::byte> rest;
    if (!send.is_direct) {
      std::uint64_t bytes = 0;
      for (const std::uint32_t part : send.parts)
        bytes += call.parts.all()[part].destination.size();
      memory_ = FFR_TRY(files.TakeMemory(bytes));
      rest = *memory_;
    }
    ranges_.reserve(send.parts.size());
    for (const std::uint32_t number : send.parts) {
      const ExtentPart& part = call.parts.all()[number];
      std::span<std::byte> place = part.destination;
      if (!send.is_direct) {
        place = rest.first(place.size());
        rest = rest.subspan(place.size());
      }
      ranges_.push_back(call.parts.RangeOf(part, place));
    }
    return {};
  }

  NodeIndex node() const noexcept { return node_; }
  bool has_ended() const noexcept { return has_ended_; }
  std::span<const std::byte> entry(std::uint32_t index) const { return ranges_[index].destination; }

  std::span<RangeRead> ranges() noexcept override { return ranges_; }
  void Arrived(RangeRead& range) override {
    const auto index = static_cast<std::uint32_t>(&range - ranges_.data());
    if (range.status == ErrorCode::kOk) queue_.PlaceNode(node_);
    queue_.Step(ReplicaReads::Arrived{id_, index, range.status});
  }
  void Ended(Result<void> result) override {
    has_ended_ = true;
    if (!result) queue_.why_ = result.error().message;
    if (!result) queue_.files_.places().NoteFailure();
    const RemoteQueue& node = *queue_.nodes_[node_].queue;
    if (!result) queue_.Step(ReplicaReads::Heard{node_, node.heard_at()});
    queue_.Step(ReplicaReads::LegEnded{id_, result ? ErrorCode::kOk : result.error().code,
                                       node.busy_until()});
  }

 private:
  ReplicatedQueue& queue_;
  const LegId id_;
  const NodeIndex node_;
  std::vector<RangeRead> ranges_;
  PooledBuffer memory_;
  bool has_ended_ = false;
};

Result<std::unique_ptr<ReplicatedQueue>> ReplicatedQueue::Make(const ReplicatedFiles& files) {
  UniqueFd ready(::epoll_create1(EPOLL_CLOEXEC));
  if (!ready)
    return Error{ErrorCode::kIo,
                 std::string("cannot make a set of descriptors: ") + std::strerror(errno), errno};
  return std::unique_ptr<ReplicatedQueue>(new ReplicatedQueue(files, std::move(ready)));
}

ReplicatedQueue::ReplicatedQueue(const ReplicatedFiles& files, UniqueFd ready)
    : files_(files),
      health_(files.health()),
      ready_(std::move(ready)),
      view_(files.places().Now()),
      reads_(*view_->map, *health_.state, view_->replicas.size(), RandomNumber()) {
  AddNodes(view_->replicas.size());
}

ReplicatedQueue::~ReplicatedQueue() {
  if (!home_.is_here()) return;  // The queues of the nodes know that too.
  for (auto& [id, call] : calls_)
    if (!std::exchange(call.is_given_up, true)) Step(ReplicaReads::GiveUp{id});
  // They wait until nothing is written any more, and call nobody.
  for (Node& node : nodes_) node.queue.reset();
  // Other queues see in the shared state what is under way. That it ends here is no node's fault.
  for (const auto& [id, leg] : legs_)
    if (!leg->has_ended()) Step(ReplicaReads::LegEnded{id, ErrorCode::kOk});
}

void ReplicatedQueue::Submit(RangeGroup& group) {
  FFR_ASSERT(home_.is_here());
  AwaitTurn(group);
  if (!is_polling_) NotePolled();
  TakeView();
  const BatchId id = ++last_batch_;
  const RemoteFiles& files = *view_->replicas.front();  // The others have the same extents.
  const Call& call = calls_.try_emplace(id, files, group).first->second;
  batches_[&group] = id;
  std::vector<ReplicaReads::PartSize> sizes;
  sizes.reserve(call.parts.all().size());
  for (const ExtentPart& part : call.parts.all())
    sizes.push_back({part.extent, part.destination.size()});
  const auto ending = std::min<milliseconds>(kEndingTime, files_.timeout() / 4);
  Step(ReplicaReads::Begin{id, std::move(sizes), Clock::now() + files_.timeout() - ending});
}

// The newest view is for all groups, also for those that are under way; nodes keep their places.
void ReplicatedQueue::TakeView() {
  auto newest = files_.places().Now();
  const std::size_t count = newest->replicas.size();
  if (newest == view_ || count < nodes_.size()) return;  // It was overtaken by another one.
  const auto before = std::exchange(view_, std::move(newest));
  if (count > nodes_.size()) AddNodes(count);
  Step(ReplicaReads::NewMap{view_->map.get()});
}

void ReplicatedQueue::AddNodes(std::size_t count) {
  nodes_.resize(count);
  const std::lock_guard lock(health_.mutex);
  health_.state->Grow(count);
  reads_.Grow(count);
}

void ReplicatedQueue::GiveUp(RangeGroup& group) {
  const auto batch = batches_.find(&group);
  FFR_ASSERT(batch != batches_.end());
  if (std::exchange(calls_.at(batch->second).is_given_up, true)) return;
  Step(ReplicaReads::GiveUp{batch->second});
}

void ReplicatedQueue::Poll(milliseconds timeout) {
  FFR_ASSERT(home_.is_here());
  const Deadline end = EndOf(timeout);
  const std::uint64_t told_before = told_count_;
  NotePolled();
  is_polling_ = true;
  TakeReady(milliseconds(0));
  for (;;) {
    PollNodes();
    NoteHeard();
    if (!calls_.empty()) TakeView();
    if (Clock::now() >= NextTime()) Step(ReplicaReads::Tick{});
    TellAll();
    if (calls_.empty() || told_count_ != told_before || Clock::now() >= end) break;
    const bool is_due = std::ranges::any_of(nodes_, &Node::is_due) || !unsent_.empty();
    TakeReady(is_due ? milliseconds(0) : Until(std::min(end, NextTime())));
  }
  is_polling_ = false;
  polled_at_ = Clock::now();
  if (events_ == nullptr) return;
  called_at_ = calls_.empty() ? Deadline::max() : NextTime();
  // Answers of losers and probes are taken with the next group's.
  if (calls_.empty()) return events_->Wait(nullptr, 0, -1, called_at_, false);
  const bool is_due = std::ranges::any_of(nodes_, &Node::is_due);
  events_->Wait(nullptr, 0, ready_.get(), called_at_, is_due);
}

Result<int> ReplicatedQueue::EventDescriptor() {
  if (events_ == nullptr) events_ = FFR_TRY(QueueEvents::Make());
  return events_->fd();
}

// As RemoteQueue::NotePolled().
void ReplicatedQueue::NotePolled() {
  const auto now = Clock::now();
  const auto away = now - std::exchange(polled_at_, now);
  if (calls_.empty() || away < kAwayMin) return;
  if (events_ != nullptr && now - kCalledMax < called_at_) return;
  Step(ReplicaReads::Away{away});
}

// --- Doing what was decided ----------------------------------------------------------------------

void ReplicatedQueue::Step(const ReplicaReads::Event& event) {
  {
    const std::lock_guard lock(health_.mutex);
    reads_.Step(Clock::now(), event, actions_);
  }
  RunActions();
}

Deadline ReplicatedQueue::NextTime() {
  const std::lock_guard lock(health_.mutex);
  return reads_.NextTime();
}

// Requests go out at once; Poll() calls the groups.
void ReplicatedQueue::RunActions() {
  for (ReplicaReads::Action& action : std::exchange(actions_, {})) {
    if (auto* send = std::get_if<ReplicaReads::Send>(&action))
      RunSend(std::move(*send));
    else if (const auto* cancel = std::get_if<ReplicaReads::Cancel>(&action))
      Cancel(cancel->leg);
    else if (const auto* drop = std::get_if<ReplicaReads::Drop>(&action))
      nodes_[drop->node].is_dropped = nodes_[drop->node].is_due = true;
    else if (std::holds_alternative<ReplicaReads::SeekMap>(action))
      files_.places().NoteFailure();
    else
      news_.push_back(std::move(action));
  }
}

void ReplicatedQueue::RunSend(ReplicaReads::Send send) {
  const LegId id = send.leg;
  if (auto sent = Send(id, send); !sent) unsent_.emplace_back(id, std::move(sent).error());
}

Result<void> ReplicatedQueue::Send(LegId id, ReplicaReads::Send& send) {
  Leg& leg = *legs_.emplace(id, std::make_unique<Leg>(*this, id, send.node)).first->second;
  FFR_TRY(leg.Prepare(send, calls_.at(send.batch), *view_->replicas[send.node]));
  RemoteQueue* const queue = FFR_TRY(QueueOf(send.node));
  queue->Submit(leg);
  nodes_[send.node].is_due = true;
  return {};
}

Result<RemoteQueue*> ReplicatedQueue::QueueOf(NodeIndex index) {
  Node& node = nodes_[index];
  if (node.queue != nullptr) return node.queue.get();
  auto queue = std::make_unique<RemoteQueue>(*view_->replicas[index], RemoteQueue::Connects::kApart,
                                             RemoteQueue::Retries::kNever);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u32 = index;
  if (::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, FFR_TRY(queue->EventDescriptor()), &wanted) != 0)
    return Error{ErrorCode::kIo, std::string("cannot wait for a queue: ") + std::strerror(errno),
                 errno};
  node.queue = std::move(queue);
  return node.queue.get();
}

void ReplicatedQueue::Cancel(LegId id) {
  Leg& leg = *legs_.at(id);
  const auto is_this = [&](const auto& unsent) { return unsent.first == id; };
  if (leg.has_ended() || std::ranges::any_of(unsent_, is_this)) return;
  Node& node = nodes_[leg.node()];
  node.queue->GiveUp(leg);
  node.is_due = true;
}

// --- Polling -------------------------------------------------------------------------------------

// Notes which nodes have something, after at most `timeout`.
bool ReplicatedQueue::TakeReady(milliseconds timeout) {
  std::array<epoll_event, 16> ready;
  const int count = EpollFor(ready_.get(), ready, timeout);
  for (int i = 0; i < count; ++i) nodes_[ready[static_cast<std::size_t>(i)].data.u32].is_due = true;
  return count > 0;
}

void ReplicatedQueue::PollNodes() {
  for (auto& [id, error] : std::exchange(unsent_, {})) {
    why_ = error.message;
    Step(ReplicaReads::LegEnded{id, ErrorCode::kUnavailable});
  }
  for (Node& node : nodes_) {
    if (!std::exchange(node.is_due, false)) continue;
    if (node.queue == nullptr) continue;
    if (std::exchange(node.is_dropped, false)) node.queue->DropConnection();
    node.queue->Poll(milliseconds(0));
  }
}

void ReplicatedQueue::NoteHeard() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto index = static_cast<NodeIndex>(i);
    if (nodes_[i].queue == nullptr) continue;
    files_.places().NoteVersion(nodes_[i].queue->map_version());
    if (reads_.IsAsked(index)) Step(ReplicaReads::Heard{index, nodes_[i].queue->heard_at()});
  }
}

// Whether the daemon is on this machine shows once it was connected to.
void ReplicatedQueue::PlaceNode(NodeIndex index) {
  if (std::exchange(nodes_[index].is_placed, true)) return;
  const bool is_near = view_->replicas[index]->session().link().transport == "shm";
  const std::lock_guard lock(health_.mutex);
  health_.state->SetDistance(index, is_near ? 0 : ReplicaHealth::kFar);
}

// --- Telling groups ------------------------------------------------------------------------------

void ReplicatedQueue::TellAll() {
  for (auto& [id, call] : calls_) TellEmpty(call);
  while (!news_.empty()) {
    const ReplicaReads::Action action = std::move(news_.front());
    news_.pop_front();
    if (const auto* end = std::get_if<ReplicaReads::EndPart>(&action))
      Tell(*end);
    else if (const auto* release = std::get_if<ReplicaReads::Release>(&action))
      legs_.erase(release->leg);
    else if (const auto* batch = std::get_if<ReplicaReads::EndBatch>(&action))
      Tell(*batch);
  }
}

void ReplicatedQueue::TellEmpty(Call& call) {
  for (RangeRead* const range : call.parts.TakeEmpty()) {
    if (call.is_given_up) continue;
    ++told_count_;
    call.parts.group().Arrived(*range);
  }
}

void ReplicatedQueue::Tell(const ReplicaReads::EndPart& end) {
  Call& call = calls_.at(end.batch);
  if (call.is_given_up) return;
  const ExtentPart& part = call.parts.all()[end.part];
  if (end.leg != 0) {
    const auto bytes = legs_.at(end.leg)->entry(end.entry);
    std::memcpy(part.destination.data(), bytes.data(), bytes.size());
  }
  if (end.status != ErrorCode::kOk) {
    files_.NoteFailure(end.status, WhyNot(end.status));
    files_.places().NoteFailure();
  }
  RangeRead* const range = call.parts.End(part, end.status);
  if (range == nullptr) return;
  ++told_count_;
  call.parts.group().Arrived(*range);
}

void ReplicatedQueue::Tell(const ReplicaReads::EndBatch& end) {
  const auto call = calls_.find(end.batch);
  TellEmpty(call->second);
  RangeGroup& group = call->second.parts.group();
  // Perhaps only after the last word on it, when it was not told of all that had come.
  const bool is_given_up = call->second.is_given_up;
  calls_.erase(call);
  batches_.erase(&group);
  ++told_count_;
  group.Ended(is_given_up ? Result<void>(GivenUp()) : Result<void>());
}

std::string ReplicatedQueue::WhyNot(ErrorCode status) const {
  std::string peers;
  for (const auto& replica : view_->replicas)
    peers += (peers.empty() ? "" : ", ") + replica->session().peer();
  if (status == ErrorCode::kDeadlineExceeded) return "timed out waiting for records from " + peers;
  const bool may_come_back = status == ErrorCode::kUnavailable;
  if (may_come_back)
    return (why_.empty() ? std::string("no daemon answers") : why_) + " (" + peers +
           " were tried until the timeout)";
  return "every replica has failed: " + peers;
}

}  // namespace ffrecord::net
