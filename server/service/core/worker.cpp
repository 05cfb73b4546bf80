#include "server/service/core/worker.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kWakeId = 0;  // Id of the eventfd; connections count from 1.
constexpr std::uint64_t kDiskId = UINT64_MAX;
constexpr auto kTickInterval = std::chrono::milliseconds(200);
// Between two looks at everything that connections have bound: a look takes some nanoseconds each.
constexpr std::chrono::milliseconds kReleaseInterval = std::chrono::seconds(10);
// How long the thread waits for the disk before it looks at the network again, if the engine has no
// descriptor that epoll could watch.
constexpr auto kDiskWait = std::chrono::milliseconds(1);

Error SystemError(const char* tried) {
  return Error{ErrorCode::kIo, std::string("cannot ") + tried + ": " + std::strerror(errno), errno};
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::Start(const Context& context,
                                              std::unique_ptr<IoEngine> engine) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return SystemError("make an epoll descriptor");
  EventFd wake = FFR_TRY(EventFd::Make());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.fd(), &event) != 0)
    return SystemError("watch an eventfd");
  return std::unique_ptr<Worker>(
      new Worker(context, std::move(engine), std::move(epoll), std::move(wake)));
}

Worker::Worker(const Context& context, std::unique_ptr<IoEngine> engine, UniqueFd epoll,
               EventFd wake)
    : context_(context),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      disk_(std::move(engine), context.disk_bounds,
            [this](std::vector<ExtentPtr> extents, bool is_mapped) {
              Open(std::move(extents), is_mapped);
            }),
      read_ahead_(context.read_ahead),
      idle_reads_(read_ahead_, disk_),
      connection_context_{
          context.names,
          context.cluster,
          context.identity,
          context.extents,
          context.doubts,
          context.origins,
          disk_,
          context.read_ahead,
          read_ahead_,
          context.planned,
          context.jobs,
          context.epoch,
          context.metrics,
          context.local_tickets,
          context.rdma,
          context.token_keys,
          context.greeting_timeout,
          context.stall_timeout,
          context.upload_grace,
          context.answer_time_max,
          context.deleted_hold,
          [this](std::uint64_t id, JobPool::Strand& strand, std::string tenant, Reply::Work work) {
            context_.metrics.jobs.Add();
            RunJob({id, std::move(tenant), std::move(work)}, strand);
          }},
      next_tick_(Clock::now() + kTickInterval),
      thread_([this] {
        // Sending out of files may raise SIGPIPE, which is then pending until the thread ends.
        const QuietSignals quiet;
        return std::thread([this] { Loop(); });
      }()) {}

Worker::~Worker() { Stop(); }

void Worker::Stop() {
  if (!thread_.joinable()) return;
  Post([this] { is_stopping_ = true; });
  thread_.join();
}

bool Worker::Adopt(std::unique_ptr<net::Endpoint>& endpoint) {
  {
    const std::lock_guard lock(mutex_);
    if (has_failed_) return false;
    adopted_.push_back(std::move(endpoint));
  }
  Wake();
  return true;
}

void Worker::Drain() {
  Post([this] {
    is_draining_ = true;
    for (auto& [id, member] : connections_) {
      member.connection->Drain();
      Touch(id);
    }
  });
}

void Worker::Post(Message message) {
  {
    const std::lock_guard lock(mutex_);
    mailbox_.push_back(std::move(message));
  }
  Wake();
}

void Worker::Wake() { wake_.Ring(); }

// A file that hangs holds up others of its disk, and not this thread.
void Worker::Open(std::vector<ExtentPtr> extents, bool is_mapped) {
  JobPool::Strand& strand = context_.jobs.OpeningStrandOf(*extents.front()->disk);
  context_.jobs.Post(strand, [this, extents = std::move(extents), is_mapped] {
    for (const ExtentPtr& extent : extents) {
      auto file = OpenExtents::Open(extent, is_mapped);
      {
        const std::lock_guard lock(mutex_);
        opened_.push_back({extent, std::move(file)});
      }
      Wake();
    }
  });
}

// A job posts its results before it is over, so that the pool runs those too when it ends.
void Worker::RunJob(Job job, JobPool::Strand& strand) {
  const std::string tenant = job.tenant;
  context_.jobs.Post(strand, tenant, [this, job = std::move(job)] {
    auto outcome = job.work();
    TakeOutcome({job.connection, job.tenant, {}}, std::move(outcome));
  });
}

void Worker::TakeOutcome(Job job, Result<Reply> outcome) {
  if (outcome && outcome.value().later) {
    const auto later = std::move(outcome.value().later);
    later([this, job = std::move(job)](Result<Reply> made) { TakeOutcome(job, std::move(made)); });
    return;
  }
  if (outcome && outcome.value().next) {
    JobPool::Strand& strand = *outcome.value().next_strand;
    job.work = std::move(outcome.value().next);
    RunJob(std::move(job), strand);
    return;
  }
  context_.metrics.jobs.Remove();
  auto reply = std::make_shared<Result<Reply>>(std::move(outcome));
  Post([this, id = job.connection, reply] {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    found->second.connection->FinishJob(std::move(*reply));
    Touch(id);
  });
}

// --- The loop ------------------------------------------------------------------------------------

void Worker::Loop() {
  WatchDisk();
  while (!is_stopping_) {
    const auto now = Clock::now();
    if (now >= next_tick_) {
      Tick();
      next_tick_ = now + kTickInterval;
    }
    WakeThrottled();
    if (ready_.empty() && !disk_.must_poll()) idle_reads_.Start(now);
    context_.metrics.disk_reads.Set(disk_.reading_count() + disk_.waiting_count());
    context_.metrics.held_bytes.Set(disk_.held_bytes());
    WaitForEvents(EventWait(now));
    PollAll();
    const bool has_news = std::exchange(has_disk_news_, false);
    if (!has_news && !disk_.must_poll() && (is_disk_watched_ || disk_.reading_count() == 0))
      continue;
    const auto polled = disk_.Poll(DiskWait(), completed_);
    if (!polled) {
      Fail(polled.error());
      break;
    }
    TakeCompleted();
    PollAll();
  }
  std::vector<std::uint64_t> ids;
  for (const auto& [id, member] : connections_) ids.push_back(id);
  for (const std::uint64_t id : ids) Close(id);
}

void Worker::WatchDisk() {
  const int fd = disk_.EventFd();
  epoll_event event{};
  // It may stay readable when nothing is in flight any more.
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kDiskId;
  is_disk_watched_ = fd >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

std::chrono::milliseconds Worker::EventWait(Clock::time_point now) const {
  using std::chrono::milliseconds;
  const bool waits_for_disk = !is_disk_watched_ && disk_.reading_count() > 0;
  if (!ready_.empty() || disk_.must_poll() || waits_for_disk) return milliseconds(0);
  const auto to_tick = std::chrono::ceil<milliseconds>(next_tick_ - now);
  return idle_reads_.WaitMax(std::max(to_tick, milliseconds(0)), now);
}

std::chrono::milliseconds Worker::DiskWait() const {
  return is_disk_watched_ || !ready_.empty() ? std::chrono::milliseconds(0) : kDiskWait;
}

// Without its engine this thread can serve nobody; the others go on.
void Worker::Fail(const Error& error) {
  spdlog::critical("event=engine_failed error=\"{}\"", error.message);
  std::vector<std::unique_ptr<net::Endpoint>> adopted;
  {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    adopted.swap(adopted_);
  }
  for (std::size_t i = 0; i < adopted.size(); ++i) context_.connection_count.Remove();
  context_.on_failure();
}

void Worker::WaitForEvents(std::chrono::milliseconds timeout) {
  std::array<epoll_event, 128> events;
  const int count = EpollFor(epoll_.get(), events, timeout);
  bool is_busy = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    if (id == kWakeId) {
      is_busy = ReadMailbox() || is_busy;
    } else if (id == kDiskId) {
      has_disk_news_ = true;
    } else {
      Touch(id);
      is_busy = true;
    }
  }
  if (is_busy) idle_reads_.NoteBusy(Clock::now());
}

// False if there was nothing but news of the disk.
bool Worker::ReadMailbox() {
  wake_.Clear();
  std::vector<Opened> opened;
  std::vector<Message> messages;
  std::vector<std::unique_ptr<net::Endpoint>> adopted;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(mailbox_);
    adopted.swap(adopted_);
    opened.swap(opened_);
  }
  for (Opened& one : opened) disk_.TakeOpened(one.extent, std::move(one.file));
  for (auto& endpoint : adopted) Add(std::move(endpoint));
  for (Message& message : messages) message();
  return !adopted.empty() || !messages.empty();
}

void Worker::PollAll() {
  auto ready = std::exchange(ready_, {});
  std::ranges::sort(ready);
  ready.erase(std::unique(ready.begin(), ready.end()), ready.end());
  for (const std::uint64_t id : ready) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second.connection;
    switch (connection.Poll()) {
      case Connection::After::kClosed:
        Close(id);
        continue;
      case Connection::After::kAgain:
        Touch(id);
        break;
      case Connection::After::kWait:
        break;
    }
    if (connection.is_throttled()) throttled_.insert(id);
    Watch(connection);
  }
}

void Worker::TakeCompleted() {
  for (DiskReader::Completed& completed : completed_) {
    const std::uint64_t id = completed.ticket.connection;
    if (id == IdleReads::kConnection) {
      idle_reads_.Take(completed);
      continue;
    }
    const auto found = connections_.find(id);
    if (found == connections_.end()) {
      disk_.Release(completed.size_bytes);  // The one who asked is gone.
      continue;
    }
    found->second.connection->TakeCompleted(std::move(completed));
    Touch(id);
  }
  completed_.clear();
  idle_reads_.NotePolled();
}

// Those that a bound has stopped, once others have given something back. While nothing is, as where
// a disk hangs, they sleep: the loop may have room that is not for this disk.
void Worker::WakeThrottled() {
  if (throttled_.empty() || !disk_.has_room() || disk_.room_count() == woken_at_room_) return;
  woken_at_room_ = disk_.room_count();
  ready_.insert(ready_.end(), throttled_.begin(), throttled_.end());
  throttled_.clear();
}

void Worker::Tick() {
  const auto now = Clock::now();
  std::vector<std::uint64_t> silent;
  for (const auto& [id, member] : connections_) {
    if (!member.connection->CheckTimeouts(now)) silent.push_back(id);
    // Also one that waits for its client, which may wait for ever.
    const bool is_draining = member.connection->DrainIfGreetedOtherwise();
    if (is_draining || member.connection->wants_turns()) Touch(id);
  }
  for (const std::uint64_t id : silent) Close(id);
  // Reads that the kernel had no memory to take go out with the next look, and have no event.
  has_disk_news_ = has_disk_news_ || disk_.reading_count() > 0;
  ReleaseDeleted(now);
  disk_.DropDeleted();
  disk_.GiveUpLate(now);
  read_ahead_.Say();
  TellOfFaults(now);
}

void Worker::TellOfFaults(Clock::time_point now) {
  const std::uint64_t count = fault_lines_.TakeUnsaid(now);
  if (count > 0)
    spdlog::warn("event=connections_closed count={} reason=\"as in the lines before\"", count);
}

void Worker::ReleaseDeleted(Clock::time_point now) {
  const std::uint64_t deleted_count = context_.extents.deleted_count();
  if (now < next_release_ || (deleted_count == released_count_ && !holds_deleted_)) return;
  next_release_ = now + std::min(kReleaseInterval, context_.deleted_hold / 2);
  released_count_ = deleted_count;
  holds_deleted_ = false;
  for (const auto& [id, member] : connections_)
    holds_deleted_ = member.connection->ReleaseDeleted(now) || holds_deleted_;
}

// --- Connections ---------------------------------------------------------------------------------

void Worker::Add(std::unique_ptr<net::Endpoint> endpoint) {
  const std::uint64_t id = next_id_++;
  auto connection = std::make_unique<Connection>(connection_context_, id, std::move(endpoint));
  Connection& added = *connection;
  const Transport transport = TransportOf(added.transport());
  context_.metrics.connections[transport].Add();
  context_.metrics.connections_opened[transport].Add();
  connections_.emplace(id, Member{std::move(connection), -1, 0});
  Watch(added);
  if (is_draining_) added.Drain();
  Touch(id);
}

// A connection may go on by another descriptor, and keep the old one open.
void Worker::Watch(const Connection& connection) {
  Member& member = connections_.at(connection.id());
  epoll_event event{};
  event.events = connection.events();
  event.data.u64 = connection.id();
  const bool is_new = connection.fd() != member.fd;
  if (connection.fd() < 0) return;  // Closed: the next poll says so.
  if (!is_new && event.events == member.events) return;
  if (is_new && member.fd >= 0) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, member.fd, nullptr);
  const int operation = is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), operation, connection.fd(), &event) != 0)
    spdlog::error("event=epoll_failed peer={} error=\"{}\"", connection.peer(),
                  std::strerror(errno));
  member.fd = connection.fd();
  member.events = event.events;
}

void Worker::Close(std::uint64_t id) {
  const auto found = connections_.find(id);
  const Connection& connection = *found->second.connection;
  if (!connection.fault().empty()) {
    if (fault_lines_.Take(Clock::now()))
      spdlog::warn("event=connection_closed peer={} reason=\"{}\"", connection.peer(),
                   connection.fault());
    context_.metrics.connection_faults.Add();
  }
  context_.metrics.connections[TransportOf(connection.transport())].Remove();
  connections_.erase(found);
  context_.connection_count.Remove();
}

}  // namespace ffrecord::server
