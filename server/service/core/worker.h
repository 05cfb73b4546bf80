#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/endpoint.h"
#include "server/service/connection/connection.h"
#include "server/service/core/connection_count.h"
#include "server/service/core/fault_lines.h"
#include "server/service/jobs/job_pool.h"
#include "server/service/read/disk_reader.h"
#include "server/service/read/idle_reads.h"

namespace ffrecord::server {

// One thread with its event loop, its engine, and the connections that were given to it, which
// stay with it. No lock is taken on the way of a read.
class Worker {
 public:
  struct Context {  // Outlive the worker.
    Names& names;
    ClusterService* cluster;  // Null: the daemon is in no cluster.
    const ConnectionContext::IdentitySource& identity;
    ExtentStore& extents;
    DoubtedExtents* doubts;  // Null in a cluster.
    OriginCache* origins;    // Null without one.
    ReadAhead& read_ahead;
    PlannedDatasets& planned;
    JobPool& jobs;
    std::uint64_t epoch;
    WorkerMetrics& metrics;       // This worker's.
    LocalTickets* local_tickets;  // Null: there is no local socket.
    net::RdmaRails* rdma;         // Null: not offered.
    const TokenKeys* token_keys;  // Null: no authentication.
    std::chrono::milliseconds greeting_timeout;
    std::chrono::milliseconds stall_timeout;
    std::chrono::milliseconds upload_grace;
    std::chrono::milliseconds answer_time_max;
    std::chrono::milliseconds deleted_hold;
    ConnectionCount& connection_count;  // The daemon's count; counted down here.
    DiskReader::Bounds disk_bounds;
    std::function<void()> on_failure;  // Called once, on the worker's thread, when it has failed.
  };

  static Result<std::unique_ptr<Worker>> Start(const Context& context,
                                               std::unique_ptr<IoEngine> engine);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // These may be called from any thread.

  // Takes the connection. False, and `endpoint` stays, once the worker has failed: its engine is
  // dead, its connections are closed, and it serves nobody any more.
  bool Adopt(std::unique_ptr<net::Endpoint>& endpoint);
  void Drain();  // Connections close once they have answered what they have taken.
  // Closes what is open and joins the thread. Jobs that still run may report until the worker is
  // destroyed, which must not be before they have ended.
  void Stop();

 private:
  using Message = std::function<void()>;
  struct Job {
    std::uint64_t connection;
    std::string tenant;
    Reply::Work work;
  };

  Worker(const Context& context, std::unique_ptr<IoEngine> engine, UniqueFd epoll, EventFd wake);
  void Post(Message message);
  void Open(std::vector<ExtentPtr> extents, bool is_mapped);
  void RunJob(Job job, JobPool::Strand& strand);
  void TakeOutcome(Job job, Result<Reply> outcome);
  void Loop();
  void Fail(const Error& error);
  bool ReadMailbox();
  void WatchDisk();
  // How long the thread may wait for events, and how long then for the disk alone.
  std::chrono::milliseconds EventWait(Clock::time_point now) const;
  std::chrono::milliseconds DiskWait() const;
  void WaitForEvents(std::chrono::milliseconds timeout);
  void PollAll();
  void TakeCompleted();
  void WakeThrottled();
  void Tick();
  void ReleaseDeleted(Clock::time_point now);
  void TellOfFaults(Clock::time_point now);
  void Add(std::unique_ptr<net::Endpoint> endpoint);
  void Wake();
  void Watch(const Connection& connection);
  void Close(std::uint64_t id);
  void Touch(std::uint64_t id) { ready_.push_back(id); }

  const Context context_;
  UniqueFd epoll_;
  EventFd wake_;
  DiskReader disk_;
  ReadAheadPort read_ahead_;
  IdleReads idle_reads_;
  bool is_disk_watched_ = false;  // By epoll: nobody else waits for the disk then.
  bool has_disk_news_ = false;
  ConnectionContext connection_context_;

  struct Member {
    std::unique_ptr<Connection> connection;
    int fd = -1;  // As epoll knows them.
    std::uint32_t events = 0;
  };
  std::unordered_map<std::uint64_t, Member> connections_;
  std::uint64_t next_id_ = 1;
  std::vector<std::uint64_t> ready_;  // To be polled.
  std::set<std::uint64_t> throttled_;
  std::uint64_t woken_at_room_ = 0;  // DiskReader::room_count() when they were woken last.
  std::vector<DiskReader::Completed> completed_;
  Clock::time_point next_tick_;
  // When connections are to close deleted extents at the earliest; how many there were when they
  // did last; and whether they still hold some.
  Clock::time_point next_release_{};
  std::uint64_t released_count_ = 0;
  bool holds_deleted_ = false;
  FaultLines fault_lines_;
  bool is_draining_ = false;
  bool is_stopping_ = false;

  std::mutex mutex_;
  std::vector<Message> mailbox_;
  std::vector<std::unique_ptr<net::Endpoint>> adopted_;
  struct Opened {
    ExtentPtr extent;
    Result<OpenExtent> file;
  };
  std::vector<Opened> opened_;  // By other threads, for disk_.
  bool has_failed_ = false;

  std::thread thread_;  // Last: it uses all the others.
};

}  // namespace ffrecord::server
