#include "server/service/core/connection.h"

#include <sys/epoll.h>

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {
namespace {

// Events handled before the other connections of the worker are polled.
constexpr int kEventsPerPoll = 64;
constexpr std::uint32_t kRetryAfterMs = 20;
constexpr std::size_t kDiscardedBytes = std::size_t{64} << 10;

}  // namespace

Connection::Connection(const Context& context, std::uint64_t id,
                       std::unique_ptr<net::Endpoint> endpoint)
    : context_(context),
      id_(id),
      endpoint_(std::move(endpoint)),
      reads_(context.disk, context.read_ahead_port, id, context.metrics,
             context.cluster == nullptr ? nullptr : &context.cluster->map_version()) {}

Connection::~Connection() {
  if (issued_ticket_) context_.local_tickets->Withdraw(*issued_ticket_);
}

// --- Polls ---------------------------------------------------------------------------------------

Connection::After Connection::Poll() {
  auto after = DoPoll();
  if (after) return after.value();
  const Error& error = after.error();
  // A client that goes away is nothing to tell.
  if (error.code != ErrorCode::kUnavailable) fault_ = error.message;
  return After::kClosed;
}

Result<Connection::After> Connection::DoPoll() {
  for (int i = 0; i < kEventsPerPoll; ++i) {
    FFR_TRY(reads_.Send(*endpoint_, payload_));
    if (is_held_) {
      if (MustHold()) return After::kWait;
      is_held_ = false;
      FFR_TRY(TakeFrame());
      continue;
    }
    const auto event = FFR_TRY(endpoint_->Poll());
    payload_.Release(*endpoint_);
    if (event == net::Endpoint::Event::kNone) {
      is_throttled_ = reads_.Start();
      if (reads_.has_completed()) continue;
      const bool is_idle = reads_.count() == 0 && jobs_.empty() && endpoint_->bytes_queued() == 0;
      if (is_idle && (is_closing_ || is_draining_)) return After::kClosed;
      return After::kWait;
    }
    if (event == net::Endpoint::Event::kClosed) return After::kClosed;
    received_ = {endpoint_->bytes_received(), Clock::now()};
    if (event == net::Endpoint::Event::kPayload) {
      FFR_ASSERT(incoming_);
      Incoming incoming = *std::exchange(incoming_, std::nullopt);
      FFR_TRY(incoming.then(incoming.header, std::move(incoming.buffer)));
    } else if (MustHold()) {
      is_held_ = true;
    } else {
      FFR_TRY(TakeFrame());
    }
  }
  is_throttled_ = reads_.Start();
  return After::kAgain;
}

std::uint32_t Connection::events() const noexcept {
  if (is_held_) return 0;
  return endpoint_->wants_room() ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

// Only pieces of uploads wait: for jobs, which come to an end.
bool Connection::MustHold() const noexcept {
  const FrameType type = endpoint_->header().type;
  const bool is_piece = type == FrameType::kPutData || type == FrameType::kPutPull;
  return is_piece && put_data_count_ >= kPutDataCountMax;
}

bool Connection::CheckTimeouts(Clock::time_point now) {
  if (!has_greeted_) {
    if (now - opened_ <= context_.greeting_timeout) return true;
    fault_ = "no HELLO in time";
    return false;
  }
  GiveUpJobs(now);
  const bool is_put_idle = put_ && !endpoint_->is_receiving() && jobs_.empty();
  if (!is_put_idle) put_heard_ = now;
  // The started upload is dropped; a piece that comes after all is out of place.
  if (now - put_heard_ > context_.upload_grace) put_ = nullptr;
  // While a frame is held it is our own jobs that are slow.
  const bool is_stalled = IsStalled(sent_, !is_held_ && endpoint_->bytes_queued() > 0,
                                    endpoint_->bytes_sent(), 1, now) ||
                          IsStalled(received_, !is_held_ && endpoint_->is_receiving(),
                                    endpoint_->bytes_received(), kProgressBytesMin, now);
  if (is_stalled)
    fault_ =
        "nothing has moved for " +
        std::to_string(std::chrono::ceil<std::chrono::seconds>(context_.stall_timeout).count()) +
        " s";
  return !is_stalled;
}

bool Connection::IsStalled(Progress& progress, bool is_due, std::uint64_t bytes,
                           std::uint64_t bytes_min, Clock::time_point now) const noexcept {
  if (!is_due || bytes >= progress.bytes + bytes_min) progress = {bytes, now};
  return now - progress.time > context_.stall_timeout;
}

void Connection::Drain(const std::string& why) {
  if (std::exchange(is_draining_, true)) return;
  why_drained_ = why;
  (void)SendBody(FrameType::kGoAway, 0, net::GoAway{why}.Encode());
}

bool Connection::HasOwnNames(const ClusterService& cluster) {
  return cluster.adoption() != nullptr && cluster.adoption()->left_count() > 0;
}

bool Connection::DrainIfGreetedOtherwise() {
  if (was_alone_ && !context_.cluster->is_alone())
    Drain("the daemon is a node of a cluster now");
  else if (had_own_names_ && !HasOwnNames(*context_.cluster))
    Drain("the cluster has all names of the daemon now");
  else
    return false;
  was_alone_ = had_own_names_ = false;
  return true;
}

// --- Frames --------------------------------------------------------------------------------------

Result<void> Connection::TakeFrame() {
  const FrameHeader& header = endpoint_->header();
  const bool is_of_a_batch = header.type == FrameType::kGrant || header.type == FrameType::kCancel;
  if (given_up_ && !is_of_a_batch) return Discard(header, *given_up_);
  if (is_closing_ && !given_up_) return OutOfPlace("a frame after the end");
  if (endpoint_->bytes_queued() - endpoint_->payload_bytes_queued() > kUnsentBytesMax)
    return OutOfPlace("the client sends requests without reading the answers");
  if (!has_greeted_ && header.type != FirstFrame())
    return OutOfPlace("the first frame is not HELLO");
  const bool may_have_payload =
      header.type == FrameType::kPutData || header.type == FrameType::kPublish;
  if (header.payload_size_bytes > 0 && !may_have_payload)
    return OutOfPlace("a payload where none belongs");
  if (is_draining_) {
    if (header.payload_size_bytes > 0) return Error{ErrorCode::kUnavailable, why_drained_};
    return SendError(header.request_id,
                     {ErrorCode::kUnavailable, why_drained_ + "; connect again later"});
  }
  // A client with a newer token can connect again with it.
  if (token_ && WallClock::now() >= token_->expires) {
    const Error expired{ErrorCode::kUnavailable, "the token has expired; connect with a new one"};
    if (header.payload_size_bytes > 0) return expired;
    is_closing_ = true;
    return SendError(header.request_id, expired);
  }
  context_.metrics.requests[header.type].Add();
  switch (header.type) {
    case FrameType::kHello:
      return TakeHello(header);
    case FrameType::kLocalOpen:
      return TakeLocalOpen(header);
    case FrameType::kPing:
      if (!endpoint_->body().empty()) return OutOfPlace("PING has a body");
      return SendBody(net::ReplyTo(FrameType::kPing), header.request_id, {});
    case FrameType::kExtentBind:
      return TakeExtentBind(header);
    case FrameType::kRdmaConnect:
      return TakeRdmaConnect(header);
    case FrameType::kSlabRegister:
      return TakeSlabRegister(header);
    case FrameType::kBatchRead:
      return TakeBatchRead(header);
    case FrameType::kGrant:
      return TakeGrant();
    case FrameType::kCancel:
      return TakeCancel();
    case FrameType::kPlanSet:
      return TakePlanSet(header);
    case FrameType::kPlanCancel:
      return TakePlanCancel();
    case FrameType::kPutBegin:
      return TakePutBegin(header);
    case FrameType::kPutData:
      return TakePutData(header);
    case FrameType::kPutPull:
      return TakePutPull(header);
    case FrameType::kPutSeal:
      return TakePutSeal(header);
    case FrameType::kPublish:
      return TakePublish(header);
    case FrameType::kCheckRoom:
      return TakeCheckRoom(header);
    case FrameType::kResolve:
      return TakeResolve(header);
    case FrameType::kList:
      return TakeList(header);
    case FrameType::kDelete:
      return TakeDelete(header);
    case FrameType::kClusterMap:
      return TakeClusterMap(header);
    case FrameType::kSetMember:
      return TakeSetMember(header);
    case FrameType::kSetLevel:
      return TakeSetLevel(header);
    case FrameType::kMetadataHistory:
    case FrameType::kMetadataList:
    case FrameType::kMetadataPut:
      return TakeMetadata(header);
    case FrameType::kAskHoldings:
    case FrameType::kAskHeard:
    case FrameType::kAskBuried:
    case FrameType::kAskFilled:
    case FrameType::kAskKnown:
      return TakePeerQuestion(header);
    default:
      return SendError(header.request_id, {ErrorCode::kInvalidArgument,
                                           "this daemon does not know requests of type " +
                                               std::to_string(static_cast<unsigned>(header.type))});
  }
}

Result<void> Connection::Receive(const FrameHeader& header, decltype(Incoming::then) then) {
  // A frame may have no payload at all; an upload of nothing is refused by `then`.
  if (header.payload_size_bytes == 0) return then(header, nullptr);
  incoming_ = Incoming{header, FFR_TRY(BufferPool::Process().Take(header.payload_size_bytes)),
                       std::move(then)};
  const std::span<std::byte> place = *incoming_->buffer;
  return endpoint_->ReceivePayload({&place, 1});
}

// All of it into the same few bytes: who is refused is given no memory.
Result<void> Connection::Discard(const FrameHeader& header, Error why) {
  if (header.payload_size_bytes == 0) return SendError(header.request_id, why);
  incoming_ = Incoming{header, FFR_TRY(BufferPool::Process().Take(kDiscardedBytes)),
                       [this, why = std::move(why)](const FrameHeader& sent, const PooledBuffer&) {
                         return SendError(sent.request_id, why);
                       }};
  const std::span<std::byte> bytes = *incoming_->buffer;
  std::vector<std::span<std::byte>> places(header.payload_size_bytes / bytes.size(), bytes);
  places.push_back(bytes.first(header.payload_size_bytes % bytes.size()));
  return endpoint_->ReceivePayload(places);
}

Result<void> Connection::Refuse(const FrameHeader& header, const Error& error) {
  if (error.code == ErrorCode::kCorruption) return error;
  return SendError(header.request_id, error);
}

// --- Jobs and replies ----------------------------------------------------------------------------

// Those whose tokens name the same client and prefix are one tenant; without tokens all are.
std::string Connection::Tenant() const {
  return token_ ? token_->prefix + '\n' + token_->client : std::string();
}

JobPool::Strand& Connection::StrandFor(const Job& job) const {
  if (job.put && job.put->strand != nullptr) return *job.put->strand;
  return context_.jobs.StrandOf(Tenant(), job.kind, id_);
}

bool Connection::has_room_for_job() const noexcept {
  return jobs_.size() - put_data_count_ < kJobCountMax;
}

Result<void> Connection::RefuseJob(const FrameHeader& header) {
  context_.metrics.busy_jobs.Add();
  return SendBusy(header.request_id);
}

Result<void> Connection::AddJob(const FrameHeader& header, JobPool::Kind kind, Work work) {
  if (kind == JobPool::Kind::kMetadata)
    if (const auto answers = context_.names.CheckAnswers(); !answers)
      return SendError(header.request_id, answers.error());
  if (!has_room_for_job()) return RefuseJob(header);
  QueueJob({header.request_id, false, kind, nullptr, std::move(work)});
  return {};
}

void Connection::QueueJob(Job job) {
  jobs_.push_back(std::move(job));
  if (jobs_.size() == 1) StartJob();
}

void Connection::StartJob() {
  Job& job = jobs_.front();
  JobPool::Strand& strand = StrandFor(job);
  job.put = nullptr;  // The work has it.
  job.started = Clock::now();
  context_.start_job(id_, strand, Tenant(), std::move(job.work));
}

void Connection::GiveUpJobs(Clock::time_point now) {
  if (jobs_.empty() || jobs_.front().kind != JobPool::Kind::kMetadata) return;
  const auto answers = context_.names.CheckAnswers();
  if (answers || now - jobs_.front().started < context_.answer_time_max) return;
  given_up_ = answers.error();
  is_closing_ = true;
  for (const Job& job : std::exchange(jobs_, {})) (void)SendError(job.request_id, *given_up_);
  put_data_count_ = 0;
  put_ = nullptr;
}

void Connection::FinishJob(Result<Reply> outcome) {
  if (given_up_) return;
  FFR_ASSERT(!jobs_.empty());
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (job.is_put_data) --put_data_count_;
  // A failure to queue closes the endpoint, which the next poll notices.
  if (!outcome)
    (void)SendError(job.request_id, outcome.error());
  else if (!outcome.value().is_silent)
    (void)SendReply(job.request_id, std::move(outcome).value());
  if (!jobs_.empty()) StartJob();
}

Result<void> Connection::SendReply(std::uint64_t request_id, Reply reply) {
  const auto payload = std::make_shared<const std::vector<std::byte>>(std::move(reply.payload));
  const std::span<const std::byte> piece(*payload);
  FFR_TRY(
      endpoint_->Send(MakeHeader(reply.type, request_id, map_version()), reply.body, {&piece, 1}));
  if (!piece.empty()) payload_.Add(payload, piece.size());
  return {};
}

Result<void> Connection::SendBody(FrameType type, std::uint64_t request_id,
                                  std::span<const std::byte> body) {
  return endpoint_->Send(MakeHeader(type, request_id, map_version()), body, {});
}

Result<void> Connection::SendError(std::uint64_t request_id, const Error& error) {
  context_.metrics.errors[error.code].Add();
  return SendBody(FrameType::kError, request_id, net::FromError(error).Encode());
}

Result<void> Connection::SendBusy(std::uint64_t request_id) {
  return SendBody(FrameType::kBusy, request_id, net::Busy{kRetryAfterMs}.Encode());
}

}  // namespace ffrecord::server
