#include "libffrecord/net/rpc/remote_queue.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/io_times.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/net/rpc/remote_files.h"

namespace ffrecord::net {
namespace {

using std::chrono::milliseconds;

// The daemon's bounds on what is under way on a connection: protocol.md, "Frame".
constexpr std::size_t kAsksMax = 8;
constexpr std::size_t kEntriesMax = 2 * std::size_t{kBatchEntryCountMax};
// How long a daemon is awaited that may still write where a call was given up.
constexpr milliseconds kGiveUpMax{100};
// A connection over which nothing has come for so long, or half a call's time, when a call is late
// is not trusted any more.
constexpr milliseconds kSilenceMax{5'000};
// A daemon that does not answer counts as silent for callers that do not wait for it; so does,
// after this time, one that greets late, or whose connections are all in use.
constexpr milliseconds kConnectingMax{400};

std::uint32_t MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, UINT32_MAX));
}

Deadline EndOf(milliseconds timeout) {
  constexpr std::chrono::hours kYear{24 * 365};
  return timeout >= kYear ? Deadline::max() : Clock::now() + timeout;
}

}  // namespace

RemoteQueue::RemoteQueue(const RemoteFiles& files, Connects connects, Retries retries, Trust trust)
    : files_(files),
      connects_(connects),
      retries_(retries),
      trust_(trust),
      tries_(std::make_unique<Session::Tries>(
          files.session(), retries == Retries::kNever ? Session::Tries::Until::kFirstFailure
                                                      : Session::Tries::Until::kDeadline)),
      connecting_(connects == Connects::kApart ? std::make_unique<Connecting>(*tries_) : nullptr),
      pace_(retries == Retries::kUntilTimeout) {}

RemoteQueue::~RemoteQueue() {
  if (!home_.is_here()) {
    // The connection and the thread are the parent's.
    static_cast<void>(connecting_.release());
    static_cast<void>(tries_.release());
    return;
  }
  connecting_.reset();
  const Deadline end = Clock::now() + kGiveUpMax;
  for (const auto& call : calls_) {
    if (!call->given_up_at) call->given_up_at = Clock::now();
    Cancel(*call);
  }
  const auto may_be_written = [](const auto& asked) { return asked.second.may_be_written(); };
  while (std::ranges::any_of(asks_, may_be_written) && Clock::now() < end) {
    Pump();
    if (!has_more_ && std::ranges::any_of(asks_, may_be_written)) Wait(end);
  }
  for (const auto& call : calls_) Detach(*call);
  if (connection() == nullptr) return;
  if (asks_.empty() && replies_.empty()) {
    (void)tries_->End({});
  } else {
    (void)tries_->End(connection()->Break({ErrorCode::kDeadlineExceeded, "the queue has ended"}));
  }
}

void RemoteQueue::Submit(RangeGroup& group) {
  FFR_ASSERT(home_.is_here());
  // Another queue has waited if there are other daemons.
  if (retries_ == Retries::kUntilTimeout) AwaitTurn(group, GrantPace::kPacedCreditBytes);
  if (!is_polling_) NotePolled();
  calls_.push_back(std::make_unique<RemoteCall>(files_, group, Clock::now() + files_.timeout()));
  calls_.back()->traffic = pace::TrafficScope::OfReads();
  if (is_polling_) return;  // Poll() begins it.
  Begin();
  // The next Poll() reports what fails now.
  if (connection() != nullptr) (void)connection()->Push();
}

void RemoteQueue::GiveUp(RangeGroup& group) {
  const auto call = std::ranges::find_if(
      calls_, [&](const auto& candidate) { return &candidate->group() == &group; });
  FFR_ASSERT(call != calls_.end());
  if ((*call)->given_up_at) return;
  (*call)->given_up_at = Clock::now();
  if (std::ranges::all_of(calls_,
                          [](const auto& other) { return other->given_up_at.has_value(); }) &&
      connecting_ != nullptr)
    connecting_->GiveUp();
  Cancel(**call);
  if (connection() != nullptr && !is_polling_) (void)connection()->Push();
}

void RemoteQueue::Poll(milliseconds timeout) {
  FFR_ASSERT(home_.is_here());
  const Deadline end = EndOf(timeout);
  const std::uint64_t told_before = told_count_;
  NotePolled();
  is_polling_ = true;
  Deadline advanced_at;
  for (;;) {
    advanced_at = Clock::now();
    Advance();
    if (calls_.empty() || told_count_ != told_before || Clock::now() >= end) break;
    if (!has_more_) Wait(std::min(end, NextTime(advanced_at)));
  }
  is_polling_ = false;
  absence_.Begin();
  if (events_ == nullptr) return;
  const Deadline next = NextTime(advanced_at);
  absence_.set_called_at(next);
  // An answer that nobody waits for any more is taken with the next group's.
  if (calls_.empty()) return events_->Wait(nullptr, connection_count_, -1, next, false);
  events_->Wait(connection() == nullptr ? nullptr : connection()->endpoint(), connection_count_,
                is_connecting() ? connecting_->fd() : -1, next, has_more_);
}

Result<int> RemoteQueue::EventDescriptor() {
  if (events_ == nullptr) events_ = FFR_TRY(QueueEvents::Make());
  return events_->fd();
}

// Outcomes of calls while the owner is away show when it is back.
void RemoteQueue::NotePolled() {
  const auto away = absence_.End();
  if (calls_.empty()) return;
  heard_at_ += away;
  for (const auto& call : calls_) call->Extend(away);
}

// All that can be done without waiting.
void RemoteQueue::Advance() {
  for (std::size_t i = 0; i < calls_.size(); ++i)
    if (calls_[i]->TellEmpty()) ++told_count_;
  TakeConnecting();
  Expire();
  Begin();
  Pump();
  if (pace_.is_held() && connection() != nullptr && Clock::now() >= pace_.held_until()) Grant();
  NoteHeard();
  EndCalls();
  Begin();
  if (connection() != nullptr && connection()->endpoint()->bytes_queued() > 0) {
    const auto pushed = connection()->Push();
    has_more_ |= pushed && pushed.value();
  }
  ReturnConnection();
}

void RemoteQueue::Wait(Deadline end) {
  Endpoint* const endpoint = connection() == nullptr ? nullptr : connection()->endpoint();
  // A failure is one of poll(2) for want of memory: then this is a loop without rest.
  (void)WaitReady({&endpoint, 1}, end, is_connecting() ? connecting_->fd() : -1);
}

// When the queue must act even if nothing arrives. All that was due when Advance() began is done.
Deadline RemoteQueue::NextTime(Deadline advanced_at) const {
  Deadline next = Deadline::max();
  const auto consider = [&](Deadline time) {
    if (time > advanced_at) next = std::min(next, time);
  };
  if (pace_.is_held()) consider(pace_.held_until());
  for (const auto& call : calls_) {
    if (call->given_up_at) {
      consider(*call->given_up_at + kGiveUpMax);
      continue;
    }
    consider(call->deadline());
    if (call->has_next()) consider(call->not_before);
  }
  return next;
}

// --- The connection ------------------------------------------------------------------------------

// For the first call whose time is over: the others try on.
void RemoteQueue::Connect() {
  Deadline deadline = Deadline::max();
  for (const auto& call : calls_)
    if (!call->given_up_at && !call->failure) deadline = std::min(deadline, call->deadline());
  if (tries_->BeginAtOnce()) return TakeConnected({}, deadline, false);
  if (connects_ == Connects::kInPoll) {
    auto result = tries_->Begin(deadline);
    return TakeConnected(std::move(result), deadline, Patience::OfThread().was_over());
  }
  connecting_since_ = Clock::now();
  connecting_->Start(deadline);
  TakeConnecting();  // There may have been no thread for it.
}

void RemoteQueue::TakeConnecting() {
  if (!is_connecting()) return;
  const Deadline deadline = connecting_->deadline();
  if (auto result = connecting_->Take())
    TakeConnected(*std::move(result), deadline, connecting_->is_given_up());
}

void RemoteQueue::TakeConnected(Result<void> result, Deadline deadline, bool is_given_up) {
  if (result) {
    tries_->NoteConnected();
    ++connection_count_;
    has_more_ = false;
    heard_bytes_ = 0;
    return NoteHeard();
  }
  if (is_given_up) return;
  const ErrorCode code = result.error().code;
  const bool is_late = code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded;
  for (const auto& call : calls_)
    if (!is_late || retries_ == Retries::kNever || call->deadline() <= deadline)
      call->failure = result.error();
}

Deadline RemoteQueue::heard_at() const {
  if (!is_connecting()) return heard_at_;
  return std::max(heard_at_, std::min(Clock::now(), connecting_since_ + kConnectingMax));
}

void RemoteQueue::DropConnection() {
  FFR_ASSERT(!is_polling_);
  if (connection() != nullptr)
    Lost({ErrorCode::kUnavailable, connection()->peer() + " does not answer"});
  else if (is_connecting())
    connecting_->GiveUp();
}

// Asks for everything under way again over another connection. `outcome`, if given, is what counts
// for that one.
void RemoteQueue::Lost(Error why, const Error* outcome) {
  const bool is_final = retries_ == Retries::kNever || why.code != ErrorCode::kUnavailable;
  (void)connection()->Break(why);
  for (auto& [request, ask] : asks_) {
    RemoteCall* const call = ask.call();
    if (call == nullptr) continue;
    const auto quarantined = ask.Quarantine();
    if (!call->failure && (is_final || !quarantined))
      call->failure = quarantined ? why : quarantined.error();
    call->last = why;
    ask.PutBack();
  }
  ClearAsks();
  (void)tries_->End(outcome == nullptr ? why : *outcome);
}

void RemoteQueue::ClearAsks() {
  asks_.clear();
  entry_count_ = owed_bytes_ = 0;
  replies_.clear();
  payload_.reset();
  has_more_ = false;
  LookAtHeld();
}

// Others may have the connection while nothing is under way here, and its place while nobody waits
// for what is: until there are groups again, perhaps nobody takes the answers off.
void RemoteQueue::ReturnConnection() {
  if (connection() == nullptr) return;
  if (!asks_.empty() || !replies_.empty()) {
    if (calls_.empty() && !tries_->is_parked() && !tries_->Park()) CloseConnection();
    return;
  }
  if (calls_.empty() || !connection()->reusable()) (void)tries_->End({});
}

// Gives up a connection on which nobody waits for anything. Nobody is to blame.
void RemoteQueue::CloseConnection() {
  ClearAsks();
  (void)tries_->End(connection()->Break({ErrorCode::kDeadlineExceeded, "it is in nobody's use"}));
}

// False: the connection is gone.
bool RemoteQueue::Unpark() {
  if (!tries_->is_parked() || tries_->Unpark()) return true;
  CloseConnection();
  return false;
}

void RemoteQueue::NoteHeard() {
  if (connection() == nullptr) return;
  const std::uint64_t bytes = connection()->endpoint()->bytes_received();
  if (bytes != std::exchange(heard_bytes_, bytes)) heard_at_ = Clock::now();
}

// --- Asking --------------------------------------------------------------------------------------

// Asks for what may be asked for now, the oldest call first.
void RemoteQueue::Begin() {
  for (std::size_t i = 0; i < calls_.size(); ++i)
    if (!BeginCall(*calls_[i])) return;
}

// False: those behind it have to wait too.
bool RemoteQueue::BeginCall(RemoteCall& call) {
  if (call.given_up_at || call.failure || !call.has_next()) return true;
  if (call.not_before != Deadline{} && Clock::now() < call.not_before) return true;
  while (call.has_next() && !call.failure) {
    if (is_connecting()) return false;
    if (connection() == nullptr || !Unpark()) Connect();
    if (connection() == nullptr || !connection()->reusable()) return false;
    if (asks_.size() >= kAsksMax || entry_count_ >= kEntriesMax) {
      const auto is_wanted = [](const auto& asked) { return asked.second.call() != nullptr; };
      if (std::ranges::any_of(asks_, is_wanted)) return false;
      Lost({ErrorCode::kUnavailable, connection()->peer() + " does not end cancelled batches"});
      continue;
    }
    if (auto asked = Ask(call); !asked) {
      // Broken, or the memory cannot be reached: that is this call's own.
      call.last = asked.error();
      if (connection()->reusable())
        call.failure = std::move(asked).error();
      else
        Lost(std::move(asked).error());
    }
  }
  return true;
}

Result<void> RemoteQueue::Ask(RemoteCall& call) {
  Connection& line = *connection();
  const std::size_t room = std::min<std::size_t>(kEntriesMax - entry_count_, kBatchEntryCountMax);
  RemoteAsk ask(call, call.TakeNext(line.writes_slabs(), room));
  std::vector<std::uint64_t> replies;
  const auto request = [&]() -> Result<std::uint64_t> {
    BatchRead batch;
    const std::uint32_t base = FFR_TRY(line.Bind(files_.number(), files_.extents(), replies));
    if (ask.slab() != nullptr) batch.slab_id = FFR_TRY(line.SlabIdOf(*ask.slab(), replies));
    // A queue's owner may be away longer than that, and ends what it wants no more.
    if (connects_ == Connects::kInPoll) batch.deadline_ms = MillisecondsUntil(call.deadline());
    if (trust_ == Trust::kDoubted) batch.options |= BatchRead::kDoubted;
    if (files_.has_stripes()) batch.options |= BatchRead::kBring;
    line.MarkAs(ask.State(batch, line.hello().capabilities));
    batch.entries = ask.Entries(base);
    const std::uint64_t granted = ask.Grant(pace_.RoomOf(&call, owed_bytes_));
    if (granted < ask.payload_bytes())
      batch.initial_grant_bytes = static_cast<std::uint32_t>(granted);
    return line.Send(FrameType::kBatchRead, batch.Encode());
  };
  const auto sent = request();
  replies_.insert(replies.begin(), replies.end());
  if (!sent) {
    ask.PutBack();
    return sent.error();
  }
  entry_count_ += ask.entry_count();
  owed_bytes_ += ask.owed_bytes();
  ask.NoteAsked(profiled_places_.Of(line.peer()));
  asks_.emplace(sent.value(), std::move(ask));
  return {};
}

bool RemoteQueue::HasAsks(const RemoteCall& call) const {
  return std::ranges::any_of(asks_,
                             [&](const auto& asked) { return asked.second.call() == &call; });
}

// Has the daemon end what is under way of `call`.
void RemoteQueue::Cancel(const RemoteCall& call) {
  Connection* const line = connection();
  if (line == nullptr || (line->hello().capabilities & kCapabilityCancel) == 0) return;
  for (auto& [request, ask] : asks_) {
    if (ask.call() != &call || std::exchange(ask.is_cancelled, true)) continue;
    if (!line->Send(FrameType::kCancel, net::Cancel{request}.Encode())) return;
  }
}

// The credit that has come back goes to the oldest batches.
void RemoteQueue::Grant() {
  owed_bytes_ = 0;
  pace_.Begin();
  for (const auto& [request, ask] : asks_) owed_bytes_ += ask.owed_bytes();
  for (auto& [request, ask] : asks_) {
    const std::uint64_t wanted = ask.payload_bytes() - ask.granted_bytes();
    if (wanted == 0 || ask.is_cancelled) continue;
    const std::uint64_t more = pace_.Next(ask.call(), wanted, owed_bytes_);
    if (pace_.is_held()) return;
    if (more == 0) continue;
    const std::uint64_t owed_before = ask.owed_bytes();
    const net::Grant grant{request, ask.Grant(more)};
    owed_bytes_ += ask.owed_bytes() - owed_before;
    if (!connection()->Send(FrameType::kGrant, grant.Encode())) return;
  }
  pace_.End();
}

// Checks whether a batch that was held still is.
void RemoteQueue::LookAtHeld() {
  if (pace_.is_held()) Grant();
}

// Ends calls whose time is over.
void RemoteQueue::Expire() {
  const auto now = Clock::now();
  const std::string& peer = files_.session().peer();
  bool is_silent = false;
  for (const auto& call : calls_) {
    if (now < call->deadline() || call->given_up_at || call->failure) continue;
    // It ends by then, and knows more.
    if (is_connecting() && connecting_->deadline() <= call->deadline()) continue;
    if (!HasAsks(*call) && call->last) {
      call->failure = TriedUntilTimeout(*call->last, peer);
      continue;
    }
    call->failure =
        Error{ErrorCode::kDeadlineExceeded, "timed out waiting for records from " + peer};
    is_silent |= HasAsks(*call) &&
                 now - heard_at_ > std::min<Deadline::duration>(kSilenceMax, files_.timeout() / 2);
    Cancel(*call);
  }
  if (!is_silent) return;
  const Error timed_out{ErrorCode::kDeadlineExceeded, peer + " does not answer"};
  Lost({ErrorCode::kUnavailable, timed_out.message}, &timed_out);
}

// --- Answers -------------------------------------------------------------------------------------

// Takes what has come, until a call has ended: the next one may be asked for first.
void RemoteQueue::Pump() {
  has_more_ = false;
  while (connection() != nullptr && !has_more_) {
    const auto event = [&] {  // Copies what has arrived from the socket.
      const TimedIo timed(&IoTimes::device);
      return connection()->Poll();
    }();
    if (!event) return Lost(event.error());
    if (event.value() == Endpoint::Event::kNone) return;
    if (event.value() == Endpoint::Event::kPayload) {
      TakePayload();
    } else if (auto taken = TakeFrame(); !taken) {
      return Lost(std::move(taken).error());
    }
    Grant();
  }
}

Result<void> RemoteQueue::TakeFrame() {
  Connection& line = *connection();
  const FrameHeader header = line.header();
  map_version_ = header.map_version;
  const auto bad = [&](const char* what) {
    return line.Break({ErrorCode::kUnavailable, line.peer() + what});
  };
  const bool has_payload = header.payload_size_bytes > 0;
  if (has_payload && header.type != FrameType::kBatchData)
    return bad(" sent bytes that were not asked for");
  const auto ask = asks_.find(header.request_id);
  if (ask == asks_.end()) {
    const bool is_reply = replies_.erase(header.request_id) > 0;
    // Extents that are missing show in the entries that want them.
    if (auto refusal = line.Refusal("the binding of extents and slabs"))
      return line.Break(*std::move(refusal));
    return is_reply ? Result<void>() : bad(" sent a frame for a request that is not under way");
  }
  if (auto refusal = line.Refusal("records")) {
    TakeRefusal(ask, *std::move(refusal));
    return {};
  }
  if (header.type == ReplyTo(FrameType::kBatchRead)) return TakeDone(ask);
  if (header.type != FrameType::kBatchData) return bad(" sent something else than records");
  return TakeData(ask->first, ask->second);
}

// Each piece is compared with what was asked before a byte of it is received in its place; in a
// slab it lies there already.
Result<void> RemoteQueue::TakeData(std::uint64_t request, RemoteAsk& ask) {
  Connection& line = *connection();
  auto data = BatchData::Decode(line.body());
  if (!data) return line.Break(std::move(data).error());
  auto& pieces = data.value().pieces;
  const auto places = ask.Expect(pieces, line.header().payload_size_bytes, nowhere_);
  if (!places)
    return line.Break(
        {ErrorCode::kUnavailable, line.peer() + " sent bytes that were not asked for"});
  if (ask.slab() != nullptr) {
    if (ask.Arrived(pieces)) ++told_count_;
    return {};
  }
  payload_ = Payload{request, std::move(pieces)};
  return line.BeginPayload(*places);
}

void RemoteQueue::TakePayload() {
  const Payload payload = *std::exchange(payload_, std::nullopt);
  if (asks_.at(payload.request).Arrived(payload.pieces)) ++told_count_;
}

Result<void> RemoteQueue::TakeDone(Asks::iterator asked) {
  Connection& line = *connection();
  RemoteAsk& ask = asked->second;
  auto done = BatchDone::Decode(line.body(), ask.names_disk);
  if (!done) return line.Break(std::move(done).error());
  // An extent may come later to where it is missing now.
  if (std::ranges::find(done.value().statuses, EntryStatus::kNotHere) !=
      done.value().statuses.end())
    line.NoteMissing(files_.number());
  bool has_told = false;
  if (!ask.Finish(done.value(), has_told))
    return line.Break({ErrorCode::kUnavailable, line.peer() + " lost some bytes of a batch"});
  if (has_told) ++told_count_;
  tries_->NoteServed();
  ask.NoteDone(profiled_places_.Of(line.peer(), done.value().disk), done.value());
  RemoteCall* const call = ask.call();
  if (call != nullptr && ask.has_left() && retries_ == Retries::kNever) {
    if (ask.EndLeft(ErrorCode::kUnavailable)) ++told_count_;
  } else if (call != nullptr && ask.has_left()) {
    ask.PutBack();
    call->Retry({ErrorCode::kUnavailable, line.peer() + " was busy with some records"},
                milliseconds(0), line.peer());
  }
  has_more_ = call != nullptr && (call->is_complete() || call->given_up_at);
  entry_count_ -= ask.entry_count();
  asks_.erase(asked);
  return {};
}

void RemoteQueue::TakeRefusal(Asks::iterator asked, Error refusal) {
  RemoteAsk& ask = asked->second;
  if (RemoteCall* const call = ask.call()) {
    const auto busy = connection()->retry_after();
    if (busy) busy_until_ = Clock::now() + *busy;
    // One that is busy has not taken it.
    auto quarantined = busy ? Result<void>() : ask.Quarantine();
    ask.PutBack();
    if (!quarantined)
      call->failure = std::move(quarantined).error();
    else if (refusal.code == ErrorCode::kUnavailable && retries_ == Retries::kUntilTimeout)
      call->Retry(std::move(refusal), busy.value_or(milliseconds(0)), connection()->peer());
    else
      call->failure = std::move(refusal);
  }
  entry_count_ -= ask.entry_count();
  asks_.erase(asked);
}

// --- Ends ----------------------------------------------------------------------------------------

bool RemoteQueue::MayBeWritten(const RemoteCall& call) const {
  return std::ranges::any_of(asks_, [&](const auto& asked) {
    const auto& [request, ask] = asked;
    const bool is_received = payload_ && payload_->request == request;
    return ask.call() == &call && (ask.may_be_written() || is_received);
  });
}

// From here on nothing is written for `call`; what comes of it is dropped.
void RemoteQueue::Detach(const RemoteCall& call) {
  if (payload_ && asks_.at(payload_->request).call() == &call)
    return Lost({ErrorCode::kUnavailable,
                 connection()->peer() + " did not send the rest of a payload in time"});
  for (auto& [request, ask] : asks_) {
    if (ask.call() != &call) continue;
    // Without memory for that it stays as it is: the slab is given to nobody any more.
    (void)ask.Quarantine();
    ask.Abandon();
  }
}

void RemoteQueue::EndCalls() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < calls_.size();) {
    const RemoteCall& call = *calls_[i];
    const bool is_over = call.given_up_at
                             ? !MayBeWritten(call) || now >= *call.given_up_at + kGiveUpMax
                             : call.failure || (call.is_complete() && !HasAsks(call));
    if (is_over)
      EndCall(i);
    else
      ++i;
  }
}

void RemoteQueue::EndCall(std::size_t index) {
  // A call that was submitted while groups were called has not reported its empty ranges yet.
  if (calls_[index]->TellEmpty()) ++told_count_;
  Detach(*calls_[index]);
  const std::unique_ptr<RemoteCall> call = std::move(calls_[index]);
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(index));
  ++told_count_;
  LookAtHeld();
  if (call->given_up_at) return call->group().Ended(GivenUp());
  if (call->failure) {
    files_.NoteFailure(*call->failure);
    if (retries_ == Retries::kNever) return call->group().Ended(*call->failure);
    call->EndMissing(call->failure->code);
  }
  call->group().Ended({});
}

}  // namespace ffrecord::net
