#include "server/service/connection.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "server/service/frames.h"
#include "server/service/replies.h"

namespace ffrecord::server {
namespace {

using net::FrameHeader;
using net::FrameType;
using Kind = JobPool::Kind;

// Events handled before the other connections of the worker get their turn.
constexpr int kEventsPerTurn = 64;
constexpr std::uint32_t kRetryAfterMs = 20;
constexpr std::size_t kDiscardedBytes = std::size_t{64} << 10;

// What a client is called, by whoever has made its token: one line of a log stays one line.
std::string Printable(std::string text) {
  for (char& byte : text)
    if (byte < ' ' || byte > '~' || byte == '"') byte = '?';
  return text;
}

Error NotMet() {
  return {ErrorCode::kDenied,
          "access denied: the local socket is for clients that this daemon has sent there"};
}

}  // namespace

Connection::Connection(const Host& host, std::uint64_t id, std::unique_ptr<net::Endpoint> endpoint)
    : host_(host),
      id_(id),
      endpoint_(std::move(endpoint)),
      reads_(host.disk, host.read_ahead, id, host.metrics) {}

Connection::~Connection() {
  if (issued_ticket_) host_.local_tickets->Withdraw(*issued_ticket_);
}

// --- Turns ---------------------------------------------------------------------------------------

Connection::After Connection::Turn() {
  auto after = DoTurn();
  if (after) return after.value();
  const Error& error = after.error();
  // A client that goes away is nothing to tell.
  if (error.code != ErrorCode::kUnavailable) fault_ = error.message;
  return After::kClosed;
}

Result<Connection::After> Connection::DoTurn() {
  for (int i = 0; i < kEventsPerTurn; ++i) {
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
      is_starved_ = reads_.Start();
      if (reads_.has_landed()) continue;
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
  is_starved_ = reads_.Start();
  return After::kAgain;
}

std::uint32_t Connection::events() const noexcept {
  if (is_held_) return 0;
  return endpoint_->wants_room() ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

// Only pieces of uploads wait: for jobs, which end by themselves.
bool Connection::MustHold() const noexcept {
  const FrameType type = endpoint_->header().type;
  const bool is_piece = type == FrameType::kPutData || type == FrameType::kPutPull;
  return is_piece && put_data_count_ >= kPutDataCountMax;
}

bool Connection::CheckTimeouts(Clock::time_point now) {
  if (!has_greeted_) {
    if (now - opened_ <= host_.greeting_timeout) return true;
    fault_ = "no HELLO in time";
    return false;
  }
  const bool is_put_idle = put_ && !endpoint_->is_receiving() && jobs_.empty();
  if (!is_put_idle) put_heard_ = now;
  // What has come of it goes; a piece that comes after all is out of place.
  if (now - put_heard_ > host_.upload_grace) put_ = nullptr;
  // While a frame is held it is our own jobs that are slow.
  const bool is_stalled = IsStalled(sent_, !is_held_ && endpoint_->bytes_queued() > 0,
                                    endpoint_->bytes_sent(), 1, now) ||
                          IsStalled(received_, !is_held_ && endpoint_->is_receiving(),
                                    endpoint_->bytes_received(), kProgressBytesMin, now);
  if (is_stalled)
    fault_ = "nothing has moved for " +
             std::to_string(std::chrono::ceil<std::chrono::seconds>(host_.stall_timeout).count()) +
             " s";
  return !is_stalled;
}

bool Connection::IsStalled(Progress& progress, bool is_due, std::uint64_t bytes,
                           std::uint64_t bytes_min, Clock::time_point now) const noexcept {
  if (!is_due || bytes >= progress.bytes + bytes_min) progress = {bytes, now};
  return now - progress.time > host_.stall_timeout;
}

void Connection::Drain() {
  if (std::exchange(is_draining_, true)) return;
  (void)SendBody(FrameType::kGoAway, 0, net::GoAway{"the daemon stops"}.Encode());
}

// --- Frames --------------------------------------------------------------------------------------

Result<void> Connection::TakeFrame() {
  const FrameHeader& header = endpoint_->header();
  if (is_closing_) return OutOfPlace("a frame after the end");
  if (endpoint_->bytes_queued() - endpoint_->payload_bytes_queued() > kUnsentBytesMax)
    return OutOfPlace("the client asks on and takes no answers");
  if (!has_greeted_ && header.type != FirstFrame())
    return OutOfPlace("the first frame is not HELLO");
  const bool may_have_payload =
      header.type == FrameType::kPutData || header.type == FrameType::kPublish;
  if (header.payload_size_bytes > 0 && !may_have_payload)
    return OutOfPlace("a payload where none belongs");
  if (is_draining_) {
    if (header.payload_size_bytes > 0) return Error{ErrorCode::kUnavailable, "the daemon stops"};
    return SendError(header.request_id,
                     {ErrorCode::kUnavailable, "the daemon stops; connect again later"});
  }
  // Whoever has a newer token is let in again with it.
  if (token_ && std::chrono::system_clock::now() >= token_->expires) {
    const Error expired{ErrorCode::kUnavailable, "the token has expired; connect with a new one"};
    if (header.payload_size_bytes > 0) return expired;
    is_closing_ = true;
    return SendError(header.request_id, expired);
  }
  if (const auto type = static_cast<std::size_t>(header.type); type < host_.metrics.requests.size())
    host_.metrics.requests[type].Add();
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
    default:
      return SendError(header.request_id, {ErrorCode::kInvalidArgument,
                                           "this daemon does not know requests of type " +
                                               std::to_string(static_cast<unsigned>(header.type))});
  }
}

Result<void> Connection::TakeHello(const FrameHeader& header) {
  if (has_greeted_) return OutOfPlace("a second HELLO");
  const auto hello = FFR_TRY(net::Hello::Decode(endpoint_->body()));
  net::FrameLimits limits;
  if (transport() == "shm") limits.descriptor_count_max = net::kSlabCountMax;
  auto version = net::CommonVersion(hello);
  if (version && (hello.body_size_bytes_max < limits.body_size_bytes_max ||
                  hello.payload_size_bytes_max < limits.payload_size_bytes_max))
    version = Error{ErrorCode::kInvalidArgument,
                    "a client of version 1 takes bodies of 2 MiB and payloads of 8 MiB"};
  if (!version) {
    is_closing_ = true;
    return SendError(header.request_id, version.error());
  }
  if (auto admitted = Admit(hello); !admitted) return TurnAway(header, admitted.error());
  has_greeted_ = true;
  const std::string cipher = endpoint_->cipher();
  if (cipher.ends_with("kernel")) host_.metrics.kernel_tls.Add();
  spdlog::debug("event=greeted transport={} {} cipher=\"{}\"", transport(), Who(), cipher);
  endpoint_->SetLimits(limits);
  net::HelloReply reply;
  reply.version = version.value();
  reply.body_size_bytes_max = limits.body_size_bytes_max;
  reply.payload_size_bytes_max = limits.payload_size_bytes_max;
  const std::uint64_t own =
      net::kCapabilityCancel | net::kCapabilityPulls |
      (host_.read_ahead.takes_plans() ? net::kCapabilityPlans : net::kCapabilityNone) |
      (OffersLocal() ? net::kCapabilityLocal : net::kCapabilityNone) |
      (host_.rdma != nullptr ? net::kCapabilityRdma : net::kCapabilityNone);
  reply.capabilities = hello.capabilities & own;
  reply.epoch = host_.epoch;
  if ((reply.capabilities & net::kCapabilityLocal) != 0) {
    reply.local = host_.local_tickets->Issue(token_);
    issued_ticket_ = reply.local->ticket;
  }
  reply.batch_entry_count_max = net::kBatchEntryCountMax;
  reply.bound_extent_count_max = net::kBoundExtentCountMax;
  return SendBody(net::ReplyTo(FrameType::kHello), header.request_id, reply.Encode());
}

Result<void> Connection::Admit(const net::Hello& hello) {
  if (transport() == "shm") {
    if (!admission_->IsProvedBy(hello.credential)) return NotMet();
    token_ = std::exchange(admission_, std::nullopt)->token;
    return {};
  }
  if (host_.token_keys == nullptr) return {};
  token_ = FFR_TRY(host_.token_keys->Check(hello.credential, std::chrono::system_clock::now(),
                                           endpoint_->channel_binding()));
  return {};
}

// The client has been told what to prove, and to expect, when it was admitted over TCP or TLS.
Result<void> Connection::TakeLocalOpen(const FrameHeader& header) {
  if (FirstFrame() != FrameType::kLocalOpen) return OutOfPlace("LOCAL_OPEN where none belongs");
  const auto open = FFR_TRY(net::LocalOpen::Decode(endpoint_->body()));
  admission_ = host_.local_tickets->Take(open.ticket);
  if (!admission_) return TurnAway(header, NotMet());
  return SendBody(net::ReplyTo(FrameType::kLocalOpen), header.request_id,
                  net::LocalOpenReply{admission_->daemon_secret}.Encode());
}

Result<void> Connection::TurnAway(const FrameHeader& header, const Error& error) {
  is_closing_ = true;
  fault_ = "no valid token";
  host_.metrics.tokens_refused.Add();
  return SendError(header.request_id, error);
}

FrameType Connection::FirstFrame() const noexcept {
  const bool must_open = transport() == "shm" && !has_greeted_ && !admission_;
  return must_open ? FrameType::kLocalOpen : FrameType::kHello;
}

bool Connection::OffersLocal() const noexcept {
  return host_.local_tickets != nullptr && transport() != "shm" && endpoint_->has_local_peer();
}

Result<void> Connection::Allow(Right right, std::string_view name) {
  if (!token_) return {};
  if (token_->Allows(right, name)) return {};
  // Once: how often is in the metrics.
  if (!std::exchange(has_been_denied_, true)) spdlog::warn("event=denied {}", Who());
  return Error{ErrorCode::kDenied, "access denied: the token does not allow this"};
}

std::string Connection::Who() const {
  return "peer=" + peer() + " client=\"" + Printable(token_ ? token_->client : "") + "\"";
}

Result<void> Connection::TakeExtentBind(const FrameHeader& header) {
  const auto bind = FFR_TRY(net::ExtentBind::Decode(endpoint_->body()));
  // The names that hold the extents are looked at below.
  if (auto allowed = Allow(Right::kRead, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  std::vector<bool> is_held;
  if (token_ && !token_->prefix.empty())
    is_held = host_.catalog.holders().Holds(token_->prefix, bind.ids);
  table_.resize(std::max(table_.size(), bind.first_index + bind.ids.size()));
  net::ExtentBindReply reply;
  reply.statuses.resize(bind.ids.size());
  for (std::size_t i = 0; i < bind.ids.size(); ++i) {
    ExtentPtr& place = table_[bind.first_index + i];
    const bool is_empty = bind.ids[i] == ExtentId{};
    const bool is_foreign = !is_held.empty() && !is_held[i];
    place = is_empty || is_foreign ? nullptr : host_.extents.Find(bind.ids[i]);
    if (is_empty || place) {
      ++reply.bound_count;
    } else {
      ++reply.missing_count;
      reply.statuses[i] = net::EntryStatus::kNotHere;
    }
  }
  if (reply.missing_count == 0) reply.statuses.clear();
  return SendBody(net::ReplyTo(FrameType::kExtentBind), header.request_id, reply.Encode());
}

Result<void> Connection::TakeBatchRead(const FrameHeader& header) {
  const auto batch = FFR_TRY(net::BatchRead::Decode(endpoint_->body()));
  if (auto allowed = Allow(Right::kRead, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  std::uint64_t size_bytes = 0;
  for (const auto& entry : batch.entries) size_bytes += entry.size_bytes;
  if (size_bytes > net::kBatchSizeBytesMax)
    return SendError(header.request_id,
                     {ErrorCode::kInvalidArgument, "a batch of " + std::to_string(size_bytes) +
                                                       " bytes: a batch has at most 4 GiB"});
  if (reads_.count() >= kBatchCountMax ||
      reads_.entry_count() + batch.entries.size() > kEntryCountMax) {
    host_.metrics.busy_batches.Add();
    return SendBusy(header.request_id);
  }
  std::shared_ptr<const ClientSlab> slab;
  if (batch.slab_id != 0) {
    auto found = FindSlab(batch.slab_id, net::SlabRegister::Use::kIsWritten);
    if (!found) return SendError(header.request_id, found.error());
    slab = std::move(found).value();
  }
  reads_.Begin(header.request_id, batch, table_, std::move(slab));
  return {};
}

Result<void> Connection::TakeGrant() {
  const auto grant = FFR_TRY(net::Grant::Decode(endpoint_->body()));
  reads_.Grant(grant.request_id, grant.total_bytes);
  return {};
}

Result<void> Connection::TakeCancel() {
  reads_.Cancel(FFR_TRY(net::Cancel::Decode(endpoint_->body())).request_id);
  return {};
}

Result<void> Connection::TakePlanSet(const FrameHeader& header) {
  auto plan = net::PlanSet::Decode(endpoint_->body());
  if (!plan) return Refuse(header, std::move(plan).error());
  if (auto allowed = Allow(Right::kRead, plan.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(
      header, Kind::kPlan,
      [plans = plans_, &host = host_, announced = plan.value(), tenant = Tenant()]() -> Reply {
        auto records = host.planned.Get(announced.name, announced.revision);
        if (!records) return ErrorReplyOf(records.error());
        auto begun = host.read_ahead.Begin(std::move(records).value(), announced, tenant);
        if (!begun) return ErrorReplyOf(begun.error());
        auto kept = plans->Keep(announced.plan_id, std::move(begun).value());
        return kept ? EmptyReply(FrameType::kPlanSet) : ErrorReplyOf(kept.error());
      });
}

Result<void> Connection::TakePlanCancel() {
  plans_->Drop(FFR_TRY(net::PlanCancel::Decode(endpoint_->body())).plan_id);
  return {};
}

// Frames go on over the queue pair; the connection they came by stays below it.
Result<void> Connection::TakeRdmaConnect(const FrameHeader& header) {
  if (host_.rdma == nullptr || transport() != "tcp")
    return SendError(header.request_id,
                     {ErrorCode::kUnavailable, "this daemon does not offer RDMA here"});
  if (reads_.count() > 0 || !jobs_.empty() || put_)
    return OutOfPlace("RDMA_CONNECT while requests are under way");
  const std::size_t before = WorkerMetrics::TransportIndex(transport());
  auto accepted = host_.rdma->Accept(endpoint_);
  if (!accepted && accepted.error().code == ErrorCode::kCorruption)
    return std::move(accepted).error();
  if (!accepted) return SendError(header.request_id, accepted.error());
  endpoint_ = std::move(accepted).value();
  endpoint_->SetLimits(net::FrameLimits{});
  const std::size_t now = WorkerMetrics::TransportIndex(transport());
  host_.metrics.connections[before].Remove();
  host_.metrics.connections[now].Add();
  host_.metrics.connections_opened[now].Add();
  return {};
}

Result<ClientSlab> Connection::TakeSlab(const net::SlabRegister& request) {
  ClientSlab slab{.size_bytes = request.size_bytes, .use = request.use};
  const bool is_read = request.use == net::SlabRegister::Use::kIsRead;
  if (transport() == "rdma") {
    if (!request.remote) return OutOfPlace("SLAB_REG over RDMA without an address");
    slab.remote = *request.remote;
    if (is_read && !landing_)
      landing_ = FFR_TRY(
          endpoint_->MakeLanding(kPutDataCountMax * std::size_t{net::PutPull::kSizeBytesMax}));
    return slab;
  }
  if (transport() != "shm")
    return Error{ErrorCode::kInvalidArgument,
                 "slabs are for clients of the same machine, on the local socket, or for RDMA"};
  ForeignFd descriptor = endpoint_->TakeDescriptor();
  if (!descriptor || request.remote) return OutOfPlace("SLAB_REG without a descriptor");
  if (is_read)
    slab.source = FFR_TRY(net::UploadSlab::Take(std::move(descriptor), request.size_bytes));
  else
    slab.mapped = FFR_TRY(net::RemoteSlab::Map(std::move(descriptor), request.size_bytes));
  return slab;
}

Result<std::shared_ptr<const ClientSlab>> Connection::FindSlab(std::uint32_t slab_id,
                                                               net::SlabRegister::Use use) const {
  const auto slab = slab_id <= slabs_.size() ? slabs_[slab_id - 1] : nullptr;
  if (slab && slab->use == use) return slab;
  return Error{ErrorCode::kInvalidArgument,
               "no slab " + std::to_string(slab_id) +
                   (use == net::SlabRegister::Use::kIsRead ? " to upload from" : " to read into") +
                   " was registered on this connection"};
}

Result<void> Connection::TakeSlabRegister(const FrameHeader& header) {
  const auto request = FFR_TRY(net::SlabRegister::Decode(endpoint_->body()));
  auto& place = slabs_[request.slab_id - 1];
  place = nullptr;
  std::uint64_t sum_bytes = request.size_bytes;
  for (const auto& slab : slabs_) sum_bytes += slab ? slab->size_bytes : 0;
  auto slab = TakeSlab(request);
  if (!slab && slab.error().code == ErrorCode::kCorruption) return std::move(slab).error();
  if (!slab) return SendError(header.request_id, slab.error());
  if (sum_bytes > net::kSlabBytesMax)
    return SendError(header.request_id, {ErrorCode::kInvalidArgument,
                                         "the slabs of a connection have at most 4 GiB together"});
  place = std::make_shared<const ClientSlab>(std::move(slab).value());
  return SendBody(net::ReplyTo(FrameType::kSlabRegister), header.request_id, {});
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

// --- Names ---------------------------------------------------------------------------------------

Result<void> Connection::TakePublish(const FrameHeader& header) {
  auto publish = net::Publish::Decode(endpoint_->body());
  if (publish)
    if (auto allowed = Allow(Right::kWrite, publish.value().name); !allowed)
      publish = std::move(allowed).error();
  // A bad name is the caller's mistake, but the payload behind it must be taken off all the same.
  if (!publish && publish.error().code == ErrorCode::kCorruption) return std::move(publish).error();
  if (!publish) return Discard(header, std::move(publish).error());
  return Receive(header, [this, publish = std::move(publish)](const FrameHeader& sent,
                                                              PooledBuffer buffer) {
    return AddJob(sent, Kind::kWrite,
                  [&catalog = host_.catalog, request = publish.value(), buffer, who = Who(),
                   own_prefix = token_ ? token_->prefix : std::string()]() -> Reply {
                    const auto bytes =
                        buffer ? std::span<const std::byte>(*buffer) : std::span<const std::byte>();
                    const auto reply = catalog.Publish(request, bytes, own_prefix);
                    if (!reply) return ErrorReplyOf(reply.error());
                    spdlog::info("event=published name={} revision={} {}", request.name,
                                 reply.value().revision, who);
                    return {net::ReplyTo(FrameType::kPublish), reply.value().Encode(), {}, false};
                  });
  });
}

Result<void> Connection::TakeCheckRoom(const FrameHeader& header) {
  auto request = net::CheckRoom::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kWrite, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(
      header, Kind::kLookUp, [&catalog = host_.catalog, wanted = request.value()]() -> Reply {
        const auto checked = catalog.CheckRoom(wanted.name, wanted.size_bytes);
        return checked ? EmptyReply(FrameType::kCheckRoom) : ErrorReplyOf(checked.error());
      });
}

Result<void> Connection::TakeResolve(const FrameHeader& header) {
  auto request = net::Resolve::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kRead, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kLookUp,
                [&catalog = host_.catalog, name = request.value().name]() -> Reply {
                  auto resolved = catalog.Resolve(name);
                  if (!resolved) return ErrorReplyOf(resolved.error());
                  return {net::ReplyTo(FrameType::kResolve),
                          net::RevisionReply{resolved.value().revision}.Encode(),
                          std::move(resolved.value().manifest), false};
                });
}

Result<void> Connection::TakeList(const FrameHeader& header) {
  auto request = net::List::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  // The prefix that is asked for: names outside one's own are not listed, not even by their number.
  if (auto allowed = Allow(Right::kRead, request.value().prefix); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kLookUp,
                [&catalog = host_.catalog, list = request.value()]() -> Reply {
                  const auto reply = catalog.List(list);
                  if (!reply) return ErrorReplyOf(reply.error());
                  return {net::ReplyTo(FrameType::kList), reply.value().Encode(), {}, false};
                });
}

Result<void> Connection::TakeDelete(const FrameHeader& header) {
  auto request = net::Delete::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kDelete, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kWrite,
                [&catalog = host_.catalog, removal = request.value(), who = Who()]() -> Reply {
                  const auto removed = catalog.Remove(removal);
                  if (!removed) return ErrorReplyOf(removed.error());
                  spdlog::info("event=removed name={} {}", removal.name, who);
                  return EmptyReply(FrameType::kDelete);
                });
}

// A malformed body ends the connection; a bad name is only the caller's mistake.
Result<void> Connection::Refuse(const FrameHeader& header, Error error) {
  if (error.code == ErrorCode::kCorruption) return error;
  return SendError(header.request_id, error);
}

// --- Jobs and replies ----------------------------------------------------------------------------

// Those whose tokens name the same client and prefix are one tenant; without tokens all are.
std::string Connection::Tenant() const {
  return token_ ? token_->prefix + '\n' + token_->client : std::string();
}

JobPool::Lane& Connection::LaneFor(JobPool::Kind kind) const {
  return host_.jobs.LaneOf(Tenant(), kind, id_);
}

bool Connection::has_room_for_job() const noexcept {
  return jobs_.size() - put_data_count_ < kJobCountMax;
}

Result<void> Connection::RefuseJob(const FrameHeader& header) {
  host_.metrics.busy_jobs.Add();
  return SendBusy(header.request_id);
}

Result<void> Connection::AddJob(const FrameHeader& header, JobPool::Kind kind, Work work) {
  if (!has_room_for_job()) return RefuseJob(header);
  jobs_.push_back({header.request_id, false, kind, std::move(work)});
  if (jobs_.size() == 1) StartJob();
  return {};
}

void Connection::StartJob() {
  Job& job = jobs_.front();
  host_.start_job(id_, LaneFor(job.kind), std::move(job.work));
}

void Connection::FinishJob(Reply reply) {
  FFR_ASSERT(!jobs_.empty());
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (job.is_put_data) --put_data_count_;
  // A failure to queue closes the endpoint, which the next turn notices.
  if (!reply.is_silent) (void)SendReply(job.request_id, std::move(reply));
  if (!jobs_.empty()) StartJob();
}

Result<void> Connection::SendReply(std::uint64_t request_id, Reply reply) {
  if (reply.type == FrameType::kError && !reply.body.empty()) CountError(reply.body[0]);
  const auto payload = std::make_shared<const std::vector<std::byte>>(std::move(reply.payload));
  const std::span<const std::byte> piece(*payload);
  FFR_TRY(endpoint_->Send(MakeHeader(reply.type, request_id), reply.body, {&piece, 1}));
  if (!piece.empty()) payload_.Add(payload, piece.size());
  return {};
}

void Connection::CountError(std::byte code) {
  const auto index = std::to_integer<std::size_t>(code);
  if (index < host_.metrics.errors.size()) host_.metrics.errors[index].Add();
}

Result<void> Connection::SendBody(FrameType type, std::uint64_t request_id,
                                  std::span<const std::byte> body) {
  return endpoint_->Send(MakeHeader(type, request_id), body, {});
}

Result<void> Connection::SendError(std::uint64_t request_id, const Error& error) {
  CountError(static_cast<std::byte>(error.code));
  return SendBody(FrameType::kError, request_id, net::FromError(error).Encode());
}

Result<void> Connection::SendBusy(std::uint64_t request_id) {
  return SendBody(FrameType::kBusy, request_id, net::Busy{kRetryAfterMs}.Encode());
}

}  // namespace ffrecord::server
