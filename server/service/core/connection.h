#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "server/service/access/local_tickets.h"
#include "server/service/access/tokens.h"
#include "server/service/catalog/names.h"
#include "server/service/core/job_pool.h"
#include "server/service/read/batch_reads.h"
#include "server/service/read/outgoing_payload.h"
#include "server/service/read_ahead/plans.h"
#include "server/service/worker_metrics.h"

namespace ffrecord::server {

class ClusterService;
class DoubtedExtents;
class OriginCache;

// The answer to a request that succeeded, made on any thread; or how the request goes on.
struct Reply {
  using Work = std::function<Result<Reply>()>;

  net::FrameType type = net::FrameType::kPing;
  std::vector<std::byte> body;
  std::vector<std::byte> payload;
  bool is_silent = false;  // Nothing is sent.
  // There is no answer yet: `next` makes it, in that strand.
  Work next = {};
  JobPool::Strand* next_strand = nullptr;
  // There is no answer yet: this is called, and gives it to its argument once, on any thread.
  std::function<void(std::function<void(Result<Reply>)>)> later = {};
};

// One client: takes its frames, answers them, and keeps what it may use within bounds.
//
// Thread-bound to its worker. Never waits: what blocks is run as a job, one at a time and in order
// for each connection. A frame that is malformed or out of place closes this connection and no
// other.
class Connection {
 public:
  using Work = Reply::Work;

  static constexpr std::size_t kBatchCountMax = 8;  // At one time; BUSY beyond.
  // Maximum entries over all batches of a connection; an entry takes some 150 bytes.
  static constexpr std::size_t kEntryCountMax = 2 * net::kBatchEntryCountMax;
  static constexpr std::size_t kJobCountMax = 8;  // At one time; BUSY beyond.
  // Pieces of an upload received and not yet written: the next one waits in the socket.
  static constexpr std::size_t kPutDataCountMax = 2;
  // Answers of which a client takes nothing off: beyond this it is cut off.
  static constexpr std::uint64_t kUnsentBytesMax = std::uint64_t{4} << 20;
  // A frame on its way in must bring so much within the stall timeout, or be complete: bytes that
  // come one by one keep no connection.
  static constexpr std::uint64_t kProgressBytesMin = 4096;

  // Which node this daemon is at the moment; none: it is of no cluster. Any thread may call it; it
  // does not wait.
  using IdentitySource = std::function<std::optional<net::NodeIdentity>()>;

  // The objects that a connection uses; all of them outlive the connection.
  struct Context {
    Names& names;
    ClusterService* cluster;  // Null: the daemon is in no cluster.
    const IdentitySource& identity;
    ExtentStore& extents;
    DoubtedExtents* doubts;  // Null in a cluster, whose StripeReads has its own.
    OriginCache* origins;    // Null without a cluster.
    DiskReader& disk;
    ReadAhead& read_ahead;
    ReadAheadPort& read_ahead_port;  // The worker's.
    PlannedDatasets& planned;
    JobPool& jobs;
    std::uint64_t epoch;
    WorkerMetrics& metrics;
    LocalTickets* local_tickets;  // Null: there is no local socket.
    net::RdmaRails* rdma;         // Null: not offered.
    const TokenKeys* token_keys;  // Null: everybody may do everything.
    // How long a client may take until it has said HELLO, TLS included.
    std::chrono::milliseconds greeting_timeout;
    // How long a frame that has begun may stand still, in either direction.
    std::chrono::milliseconds stall_timeout;
    std::chrono::milliseconds upload_grace;  // After which an extent nobody sends is dropped.
    // How long a job may wait for the disk of the metadata.
    std::chrono::milliseconds answer_time_max;
    // How long a connection of a node of a cluster holds what was bound and is deleted since.
    std::chrono::milliseconds deleted_hold;
    // Runs `work` in `strand`, and what follows from it, for `tenant`; then gives the reply to
    // FinishJob of the connection.
    std::function<void(std::uint64_t connection, JobPool::Strand& strand, std::string tenant,
                       Work work)>
        start_job;
  };

  Connection(const Context& context, std::uint64_t id, std::unique_ptr<net::Endpoint> endpoint);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  int fd() const noexcept { return endpoint_->fd(); }
  const std::string& peer() const noexcept { return endpoint_->peer(); }
  std::string_view transport() const noexcept { return endpoint_->transport(); }
  // Why it ended; for the log. Empty if there is nothing to tell.
  const std::string& fault() const noexcept { return fault_; }

  // Does what can be done now. kAgain: more can be done at once.
  enum class After : std::uint8_t { kWait, kAgain, kClosed };
  After Poll();
  // The events that Poll() waits for at fd(): EPOLLIN and EPOLLOUT, or nothing.
  std::uint32_t events() const noexcept;
  // Stopped by the disk's bound: to be polled when others have released.
  bool is_throttled() const noexcept { return is_throttled_; }

  // To be polled now and then though nothing happens.
  bool wants_turns() const noexcept {
    // A transport may wait for much before it wakes anybody; what has come meanwhile is progress.
    return reads_.is_stalled() || endpoint_->is_receiving() || given_up_;
  }

  void TakeCompleted(DiskReader::Completed completed) { reads_.Take(std::move(completed)); }
  void FinishJob(Result<Reply> outcome);

  // Closes what has fallen silent in the middle of something. False: it is to be closed.
  bool CheckTimeouts(Clock::time_point now);
  // Releases bound extents that were deleted since: for a copy on another disk at once. At a node
  // of a cluster, which deletes what others have or nobody wants after its grace, the others after
  // a while: so an idle client keeps no disk full. True: there are such to be looked at again.
  bool ReleaseDeleted(Clock::time_point now);
  // The daemon stops: says so, takes nothing more, and closes once all is answered.
  void Drain() { Drain("the daemon stops"); }
  // Drains also if the daemon has joined a cluster since this client's HELLO, or if it had names of
  // its own then that the cluster has by now. True: to be polled.
  bool DrainIfGreetedOtherwise();

 private:
  // One direction: how far it was when it last moved, or nothing was due.
  struct Progress {
    std::uint64_t bytes = 0;
    Clock::time_point time = Clock::now();
  };
  // An extent on its way; jobs and the loop share it. Made by MakePut: it ends in the strand of its
  // disk, where its writer lives.
  struct OpenPut {
    net::PutBegin begin;
    std::uint64_t next_offset_bytes = 0;  // The loop's.
    // The jobs', and the loop's while none of them runs. Null: no disk has to do with it.
    JobPool::Strand* strand = nullptr;
    std::optional<NewExtent> place;      // The jobs'. Before there is a writer.
    std::optional<ExtentWriter> writer;  // The jobs'. None: sealed already, or failed.
    std::optional<Error> error;          // The jobs'. The first failure, which stays.
    // The jobs'. When it began, how long it waited for a thread, and how long it was written.
    Clock::time_point begun = Clock::now();
    Clock::duration queue_time{};
    Clock::duration write_time{};
    Clock::time_point heard = Clock::now();  // The jobs'. When the catalog was last told of it.

    // The reply to BeginPut.
    static Result<Reply> Placed(const std::shared_ptr<OpenPut>& put, JobPool& jobs,
                                Result<std::optional<NewExtent>> place);
    // The jobs'. Has the file made where `put` has its place, by a strand of that disk.
    static Reply OpenIn(const std::shared_ptr<OpenPut>& put, JobPool& jobs);
    static Result<Reply> Open(const std::shared_ptr<OpenPut>& put, JobPool& jobs);
    // The jobs'. The next bytes. Fails with what has failed first.
    Result<void> Append(std::span<const std::byte> bytes, const Context& context);
  };
  // Gives a job the piece of an upload that it is to write.
  using PieceSource = std::function<Result<PooledBuffer>()>;
  struct Job {
    std::uint64_t request_id;
    bool is_put_data;
    JobPool::Kind kind;
    std::shared_ptr<OpenPut> put;  // That it goes on with: it runs in the strand of that.
    Work work;
    Clock::time_point started = {};
  };
  // A payload that is being received or fetched: what to do with it then.
  struct Incoming {
    net::FrameHeader header;
    PooledBuffer buffer;
    std::function<Result<void>(const net::FrameHeader&, PooledBuffer)> then;
  };

  void Drain(const std::string& why);
  Result<After> DoPoll();
  bool MustHold() const noexcept;
  // Whether what is due has not moved by `bytes_min` for the stall timeout.
  bool IsStalled(Progress& progress, bool is_due, std::uint64_t bytes, std::uint64_t bytes_min,
                 Clock::time_point now) const noexcept;
  std::shared_ptr<OpenPut> MakePut(const net::PutBegin& begin) const;

  Result<void> TakeFrame();
  // Whether this client may do that to `name`. kDenied, whether there is such a name or not.
  Result<void> Allow(Right right, std::string_view name);
  // The cluster's service, if this client has that right there. Null: the client has the refusal.
  Result<ClusterService*> ClusterFor(const net::FrameHeader& header, Right right);
  // The request that has come, if this client may do that to what it names in `field`.
  template <class Request>
  Result<Request> Permitted(Right right, std::string Request::*field) {
    auto request = FFR_TRY(Request::Decode(endpoint_->body()));
    FFR_TRY(Allow(right, request.*field));
    return request;
  }
  std::string Who() const;  // For the log.
  // Takes the credential of HELLO.
  Result<void> Admit(const net::Hello& hello);
  Result<void> TakeLocalOpen(const net::FrameHeader& header);
  net::FrameType FirstFrame() const noexcept;
  bool OffersLocal() const noexcept;
  // Refuses a client for good.
  Result<void> TurnAway(const net::FrameHeader& header, const Error& error);
  Result<void> TakeHello(const net::FrameHeader& header);
  Result<void> TakeRdmaConnect(const net::FrameHeader& header);
  Result<ClientSlab> TakeSlab(const net::SlabRegister& request);
  Result<std::shared_ptr<const ClientSlab>> FindSlab(std::uint32_t slab_id,
                                                     net::SlabRegister::Use use) const;
  Result<void> TakeSlabRegister(const net::FrameHeader& header);
  Result<void> TakeBatchRead(const net::FrameHeader& header);
  Result<void> TakeGrant();
  Result<void> TakeCancel();
  Result<void> TakePlanSet(const net::FrameHeader& header);
  Result<void> TakePlanCancel();
  Result<void> TakeExtentBind(const net::FrameHeader& header);
  void DropDamaged(ExtentPtr& place) const;
  ExtentPtr FindExtent(const ExtentId& id) const;
  ExtentPtr Renewed(const ExtentPtr& extent, std::uint8_t options) const;
  Result<void> TakePutBegin(const net::FrameHeader& header);
  Result<void> ContinuePut(const ExtentId& id, std::uint64_t offset_bytes,
                           std::uint64_t size_bytes);
  Result<void> TakePutData(const net::FrameHeader& header);
  Result<void> TakePutPull(const net::FrameHeader& header);
  Result<std::shared_ptr<const ClientSlab>> SlabOf(const net::PutPull& pull) const;
  Result<void> FetchPull(const net::FrameHeader& header, const net::RemoteRegion& source,
                         std::size_t size_bytes);
  Result<void> AddPull(const net::FrameHeader& header, PieceSource source);
  Result<void> TakePutSeal(const net::FrameHeader& header);
  Result<void> TakePublish(const net::FrameHeader& header);
  Result<void> TakeCheckRoom(const net::FrameHeader& header);
  Result<void> TakeResolve(const net::FrameHeader& header);
  Result<void> TakeList(const net::FrameHeader& header);
  Result<void> TakeDelete(const net::FrameHeader& header);
  Result<void> TakeClusterMap(const net::FrameHeader& header);
  Result<void> TakeSetMember(const net::FrameHeader& header);
  Result<void> TakeSetLevel(const net::FrameHeader& header);
  Result<void> TakeMetadata(const net::FrameHeader& header);
  Result<void> TakePeerQuestion(const net::FrameHeader& header);
  // Damage and malformed bodies end the connection; other errors are the request's alone.
  Result<void> Refuse(const net::FrameHeader& header, const Error& error);
  Result<void> Receive(const net::FrameHeader& header, decltype(Incoming::then) then);
  // Takes a payload off that nobody wants, and then says why.
  Result<void> Discard(const net::FrameHeader& header, Error why);

  // AddJob says BUSY if there is no room. A handler that changes something before it calls AddJob
  // has to ask, for a request that is BUSY was not taken.
  bool has_room_for_job() const noexcept;
  std::uint32_t map_version() const noexcept;  // For headers of frames.
  Result<void> RefuseJob(const net::FrameHeader& header);
  Result<void> AddJob(const net::FrameHeader& header, JobPool::Kind kind, Work work);
  std::string Tenant() const;
  JobPool::Strand& StrandFor(const Job& job) const;
  void QueueJob(Job job);
  void StartJob();
  // Answers what waits for the disk of the metadata, if that hangs, and ends the connection: nobody
  // could say in which order its jobs, which go on, and later ones have their effect.
  void GiveUpJobs(Clock::time_point now);
  Result<void> SendReply(std::uint64_t request_id, Reply reply);
  Result<void> SendBody(net::FrameType type, std::uint64_t request_id,
                        std::span<const std::byte> body);
  Result<void> SendError(std::uint64_t request_id, const Error& error);
  Result<void> SendBusy(std::uint64_t request_id);

  const Context& context_;
  const std::uint64_t id_;
  OutgoingPayload payload_;  // Outlives the endpoint, which borrows from it.
  std::unique_ptr<net::Endpoint> endpoint_;
  BatchReads reads_;
  std::vector<ExtentPtr> table_;
  struct DeletedPlace {
    std::uint32_t index;
    const Extent* extent;
    Clock::time_point seen;
  };
  std::vector<DeletedPlace> deleted_places_;  // By index, as found last.
  // By number - 1. A read into a slab keeps it mapped beyond its place here.
  std::array<std::shared_ptr<const ClientSlab>, net::kSlabCountMax> slabs_;
  std::shared_ptr<Plans> plans_ = std::make_shared<Plans>();  // Jobs add to them.
  std::shared_ptr<OpenPut> put_;
  Clock::time_point put_heard_;  // When it last went on.
  // Over RDMA, once there is a slab to upload from: a place for each piece that may be written at
  // one time, and which one is next.
  PooledBuffer staging_;
  std::size_t staging_next_ = 0;
  std::optional<Incoming> incoming_;
  std::deque<Job> jobs_;  // The first one runs.
  std::size_t put_data_count_ = 0;

  std::optional<Token> token_;  // The token of a client that has been admitted; none without keys.
  std::optional<net::LocalTicket> issued_ticket_;      // To this client, for the local socket.
  std::optional<LocalTickets::Admission> admission_;   // On the local socket, before HELLO.
  std::uint64_t capabilities_ = net::kCapabilityNone;  // That client and daemon have.
  bool has_greeted_ = false;
  bool has_been_denied_ = false;
  bool is_held_ = false;  // A frame has arrived that waits until jobs are done.
  bool is_throttled_ = false;
  bool is_draining_ = false;
  std::string why_drained_;
  bool was_alone_ = false;  // The daemon greeted as one of no cluster, and is to be a node.
  // Names that this daemon published outside of the cluster are not in it yet.
  static bool HasOwnNames(const ClusterService& cluster);
  bool had_own_names_ = false;     // It greeted as one whose cluster does not have all its names.
  bool is_closing_ = false;        // Closes when all is sent.
  std::optional<Error> given_up_;  // Why all that comes is refused. With is_closing_.
  std::string fault_;
  const Clock::time_point opened_ = Clock::now();
  Progress sent_;
  Progress received_;
};

}  // namespace ffrecord::server
