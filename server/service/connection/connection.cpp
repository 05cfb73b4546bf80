#include "server/service/connection/connection.h"

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "libffrecord/net/protocol/messages.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/connection/replies.h"

namespace ffrecord::server {
namespace {

// Events handled before the other connections of the worker are polled.
constexpr int kEventsPerPoll = 64;

// The map version of frames. Null: that of a single daemon.
const std::atomic<std::uint32_t>* MapVersionIn(const ConnectionContext& context) {
  return context.cluster == nullptr ? nullptr : &context.cluster->map_version();
}

}  // namespace

Connection::Connection(const ConnectionContext& context, std::uint64_t id,
                       std::unique_ptr<net::Endpoint> endpoint)
    : context_(context),
      id_(id),
      conversation_(std::move(endpoint), context.metrics, MapVersionIn(context)),
      caller_(conversation_),
      jobs_(context, id, conversation_, caller_),
      greeting_(context, conversation_, caller_),
      batches_(context.disk, context.read_ahead_port, id, context.metrics, MapVersionIn(context)),
      slabs_(conversation_),
      reads_(context, batches_, slabs_, conversation_, caller_, jobs_),
      uploads_(context, slabs_, conversation_, caller_, jobs_),
      names_(context.names, conversation_, caller_, jobs_),
      cluster_(context.cluster, conversation_, caller_, jobs_) {}

// --- Polls ---------------------------------------------------------------------------------------

Connection::After Connection::Poll() {
  auto after = DoPoll();
  if (after) return after.value();
  const Error& error = after.error();
  // A client that goes away is nothing to tell.
  if (error.code != ErrorCode::kUnavailable) conversation_.SetFault(error.message);
  return After::kClosed;
}

Result<Connection::After> Connection::DoPoll() {
  for (int i = 0; i < kEventsPerPoll; ++i) {
    FFR_TRY(batches_.Send(conversation_.endpoint(), conversation_.payload()));
    if (is_held_) {
      if (MustHold()) return After::kWait;
      is_held_ = false;
      FFR_TRY(TakeFrame());
      continue;
    }
    const auto event = FFR_TRY(conversation_.Poll());
    if (event == net::Endpoint::Event::kNone) {
      is_throttled_ = batches_.Start();
      if (batches_.has_completed()) continue;
      const bool is_idle =
          batches_.count() == 0 && jobs_.is_empty() && conversation_.endpoint().bytes_queued() == 0;
      if (is_idle && (conversation_.is_ending() || drained_at_)) return After::kClosed;
      return After::kWait;
    }
    if (event == net::Endpoint::Event::kClosed) return After::kClosed;
    received_ = {conversation_.endpoint().bytes_received(), Clock::now()};
    if (event == net::Endpoint::Event::kPayload) {
      FFR_TRY(conversation_.TakePayload());
    } else if (MustHold()) {
      is_held_ = true;
    } else {
      FFR_TRY(TakeFrame());
    }
  }
  is_throttled_ = batches_.Start();
  return After::kAgain;
}

std::uint32_t Connection::events() const noexcept {
  if (is_held_) return 0;
  return conversation_.endpoint().wants_room() ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

// Only pieces of uploads wait: for jobs, which come to an end.
bool Connection::MustHold() const noexcept {
  const bool is_piece = HandlerOf(conversation_.endpoint().header().type).is_piece;
  return is_piece && !jobs_.has_room_for_piece();
}

bool Connection::CheckTimeouts(Clock::time_point now) {
  if (!greeting_.has_greeted()) {
    if (now - opened_ <= context_.greeting_timeout) return true;
    conversation_.SetFault("no HELLO in time");
    return false;
  }
  if (jobs_.GiveUp(now)) {
    conversation_.EndWhenSent();
    uploads_.Drop();
  }
  uploads_.DropSilent(now);
  if (drained_at_ && now - *drained_at_ > context_.stall_timeout) {
    conversation_.SetFault(why_drained_ + ", and the client takes too long with what it has begun");
    return false;
  }
  // While a frame is held it is our own jobs that are slow.
  const bool is_stalled =
      IsStalled(sent_, !is_held_ && conversation_.endpoint().bytes_queued() > 0,
                conversation_.endpoint().bytes_sent(), 1, now) ||
      IsStalled(received_, !is_held_ && conversation_.endpoint().is_receiving(),
                conversation_.endpoint().bytes_received(), kProgressBytesMin, now);
  if (is_stalled)
    conversation_.SetFault(
        "nothing has moved for " +
        std::to_string(std::chrono::ceil<std::chrono::seconds>(context_.stall_timeout).count()) +
        " s");
  return !is_stalled;
}

bool Connection::IsStalled(Progress& progress, bool is_due, std::uint64_t bytes,
                           std::uint64_t bytes_min, Clock::time_point now) const noexcept {
  if (!is_due || bytes >= progress.bytes + bytes_min) progress = {bytes, now};
  return now - progress.time > context_.stall_timeout;
}

void Connection::Drain(const std::string& why) {
  if (drained_at_) return;
  drained_at_ = Clock::now();
  why_drained_ = why;
  (void)conversation_.SendBody(FrameType::kGoAway, 0, net::GoAway{why}.Encode());
}

bool Connection::DrainIfGreetedOtherwise() {
  const char* const why = greeting_.TakeReasonToReturn();
  if (why == nullptr) return false;
  Drain(why);
  return true;
}

// --- Frames --------------------------------------------------------------------------------------

const Connection::Handler& Connection::HandlerOf(FrameType type) {
  using Type = FrameType;
  struct Row {
    Type type;
    Handler handler;
  };
  static constexpr Row kRows[] = {
      {Type::kHello, {&At<&Connection::greeting_, &Greeting::TakeHello>}},
      {Type::kLocalOpen, {&At<&Connection::greeting_, &Greeting::TakeLocalOpen>}},
      {Type::kPing, {&Here<&Connection::TakePing>}},
      {Type::kRdmaConnect, {&Here<&Connection::TakeRdmaConnect>}},
      {Type::kSlabRegister, {&At<&Connection::slabs_, &SlabDesk::TakeSlabRegister>}},

      {Type::kExtentBind, {&At<&Connection::reads_, &ReadDesk::TakeExtentBind>, Right::kRead}},
      {Type::kBatchRead, {&At<&Connection::reads_, &ReadDesk::TakeBatchRead>, Right::kRead}},
      {Type::kGrant,
       {.take = &At<&Connection::reads_, &ReadDesk::TakeGrant>, .has_no_reply = true}},
      {Type::kCancel,
       {.take = &At<&Connection::reads_, &ReadDesk::TakeCancel>, .has_no_reply = true}},
      {Type::kPlanSet, {&At<&Connection::reads_, &ReadDesk::TakePlanSet>, Right::kRead}},
      {Type::kPlanCancel,
       {.take = &At<&Connection::reads_, &ReadDesk::TakePlanCancel>, .has_no_reply = true}},

      // An upload needs no further right than its begin.
      {Type::kPutBegin, {&At<&Connection::uploads_, &UploadDesk::TakePutBegin>, Right::kWrite}},
      {Type::kPutData,
       {.take = &At<&Connection::uploads_, &UploadDesk::TakePutData>,
        .may_have_payload = true,
        .is_piece = true}},
      {Type::kPutPull,
       {.take = &At<&Connection::uploads_, &UploadDesk::TakePutPull>, .is_piece = true}},
      {Type::kPutSeal, {&At<&Connection::uploads_, &UploadDesk::TakePutSeal>}},

      {Type::kPublish,
       {.take = &At<&Connection::names_, &NameDesk::TakePublish>,
        .right = Right::kWrite,
        .may_have_payload = true}},
      {Type::kCheckRoom, {&At<&Connection::names_, &NameDesk::TakeCheckRoom>, Right::kWrite}},
      {Type::kResolve, {&At<&Connection::names_, &NameDesk::TakeResolve>, Right::kRead}},
      {Type::kList, {&At<&Connection::names_, &NameDesk::TakeList>, Right::kRead}},
      {Type::kDelete, {&At<&Connection::names_, &NameDesk::TakeDelete>, Right::kDelete}},

      {Type::kClusterMap, {&At<&Connection::cluster_, &ClusterDesk::TakeClusterMap>}},
      {Type::kSetMember, {&At<&Connection::cluster_, &ClusterDesk::TakeSetMember>, Right::kAdmin}},
      {Type::kSetLevel, {&At<&Connection::cluster_, &ClusterDesk::TakeSetLevel>, Right::kAdmin}},
      {Type::kMetadataHistory,
       {&At<&Connection::cluster_, &ClusterDesk::TakeMetadata>, Right::kAdmin}},
      {Type::kMetadataList,
       {&At<&Connection::cluster_, &ClusterDesk::TakeMetadata>, Right::kAdmin}},
      {Type::kMetadataPut, {&At<&Connection::cluster_, &ClusterDesk::TakeMetadata>, Right::kAdmin}},
      {Type::kAskHoldings,
       {&At<&Connection::cluster_, &ClusterDesk::TakePeerQuestion>, Right::kPeer}},
      {Type::kAskHeard, {&At<&Connection::cluster_, &ClusterDesk::TakePeerQuestion>, Right::kPeer}},
      {Type::kAskBuried,
       {&At<&Connection::cluster_, &ClusterDesk::TakePeerQuestion>, Right::kPeer}},
      {Type::kAskFilled,
       {&At<&Connection::cluster_, &ClusterDesk::TakePeerQuestion>, Right::kPeer}},
      {Type::kAskKnown, {&At<&Connection::cluster_, &ClusterDesk::TakePeerQuestion>, Right::kPeer}},
  };
  static constexpr auto kHandlers = [] {
    std::array<Handler, 256> handlers{};
    for (const Row& row : kRows) handlers[static_cast<std::uint8_t>(row.type)] = row.handler;
    return handlers;
  }();
  return kHandlers[static_cast<std::uint8_t>(type)];
}

Result<void> Connection::TakeFrame() {
  const net::Endpoint& endpoint = conversation_.endpoint();
  const FrameHeader& header = endpoint.header();
  const Handler& handler = HandlerOf(header.type);
  if (jobs_.given_up() && !handler.has_no_reply)
    return conversation_.Discard(header, *jobs_.given_up());
  if (conversation_.is_ending() && !jobs_.given_up()) return OutOfPlace("a frame after the end");
  if (endpoint.bytes_queued() - endpoint.payload_bytes_queued() > kUnsentBytesMax)
    return OutOfPlace("the client sends requests without reading the answers");
  if (!greeting_.has_greeted() && header.type != greeting_.FirstFrame())
    return OutOfPlace("the first frame is not HELLO");
  if (header.payload_size_bytes > 0 && !handler.may_have_payload)
    return OutOfPlace("a payload where none belongs");
  // A batch that was taken is finished.
  if (drained_at_ && !handler.has_no_reply) {
    if (header.payload_size_bytes > 0) return Error{ErrorCode::kUnavailable, why_drained_};
    return conversation_.SendError(
        header.request_id, {ErrorCode::kUnavailable, why_drained_ + "; connect again later"});
  }
  // A client with a newer token can connect again with it.
  if (caller_.has_expired()) {
    const Error expired{ErrorCode::kUnavailable, "the token has expired; connect with a new one"};
    if (header.payload_size_bytes > 0) return expired;
    conversation_.EndWhenSent();
    return conversation_.SendError(header.request_id, expired);
  }
  context_.metrics.requests[header.type].Add();
  if (handler.take != nullptr) return handler.take(*this, {header, endpoint.body(), handler.right});
  return conversation_.SendError(
      header.request_id,
      {ErrorCode::kInvalidArgument, "this daemon does not know requests of type " +
                                        std::to_string(static_cast<unsigned>(header.type))});
}

Result<void> Connection::TakePing(const Frame& frame) {
  if (!frame.body.empty()) return OutOfPlace("PING has a body");
  return conversation_.SendBody(net::ReplyTo(FrameType::kPing), frame.header.request_id, {});
}

// Frames go on over the queue pair; the connection they came by stays below it.
Result<void> Connection::TakeRdmaConnect(const Frame& frame) {
  if (context_.rdma == nullptr || transport() != "tcp")
    return conversation_.SendError(
        frame.header.request_id, {ErrorCode::kUnavailable, "this daemon does not offer RDMA here"});
  if (batches_.count() > 0 || !jobs_.is_empty() || uploads_.is_open())
    return OutOfPlace("RDMA_CONNECT while requests are under way");
  const Transport before = TransportOf(transport());
  const auto moved = conversation_.MoveToRdma(*context_.rdma);
  if (!moved) return conversation_.Refuse(frame.header, moved.error());
  const Transport now = TransportOf(transport());
  context_.metrics.connections[before].Remove();
  context_.metrics.connections[now].Add();
  context_.metrics.connections_opened[now].Add();
  return {};
}

}  // namespace ffrecord::server
