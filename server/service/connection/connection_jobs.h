#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/replies.h"
#include "server/service/jobs/job_pool.h"

namespace ffrecord::server {

// The jobs of one connection: what its requests wait for. They run one at a time and in their
// order, and are answered in it.
//
// Thread-bound to the worker of the connection, but for the work of the jobs: that runs on threads
// of the pool, perhaps after the connection has ended.
class ConnectionJobs {
 public:
  static constexpr std::size_t kCountMax = 8;  // At one time; BUSY beyond.
  // Pieces of an upload received and not yet written: the next one waits in the socket.
  static constexpr std::size_t kPieceCountMax = 2;

  // The strand that a job runs in, looked at when it starts; the job shares its owner until then.
  // Null, or to null: a strand of the tenant and the kind.
  using StrandPlace = std::shared_ptr<JobPool::Strand* const>;

  // All of them outlive this.
  ConnectionJobs(const ConnectionContext& context, std::uint64_t connection,
                 Conversation& conversation, const Caller& caller)
      : context_(context), connection_(connection), conversation_(conversation), caller_(caller) {}
  ConnectionJobs(const ConnectionJobs&) = delete;
  ConnectionJobs& operator=(const ConnectionJobs&) = delete;

  bool is_empty() const noexcept { return jobs_.empty(); }
  bool has_room_for_piece() const noexcept { return piece_count_ < kPieceCountMax; }
  // Add() says BUSY if there is no room. A handler that changes something before it adds a job has
  // to ask, for a request that is BUSY was not taken.
  bool has_room() const noexcept { return jobs_.size() - piece_count_ < kCountMax; }
  // Sends BUSY: there is no room.
  Result<void> RefuseBusy(const FrameHeader& header);

  // One more job, or BUSY; an error instead, if it would wait for metadata that do not answer.
  Result<void> Add(const FrameHeader& header, Kind kind, Reply::Work work);
  // One more job, whether there is room or not.
  void Queue(const FrameHeader& header, Kind kind, Reply::Work work, StrandPlace strand = nullptr);
  // A piece of an upload is on its way; QueuePiece() follows when it has arrived.
  void ExpectPiece() noexcept { ++piece_count_; }
  void QueuePiece(const FrameHeader& header, Reply::Work work, StrandPlace strand);

  // The first job has ended so: sends the answer, and starts the next one.
  void Finish(Result<Reply> outcome);
  // Answers what waits for the disk of the metadata, if that hangs; the first, which may still take
  // effect, with net::kBegunErrno. True: they were given up just now, and the connection is to end:
  // nobody could say in which order its jobs, which go on, and later ones have their effect.
  bool GiveUp(Clock::time_point now);
  // Why all that comes is refused since.
  const std::optional<Error>& given_up() const noexcept { return given_up_; }

 private:
  struct Job {
    std::uint64_t request_id;
    bool is_piece;
    Kind kind;
    StrandPlace strand;
    Reply::Work work;
    Clock::time_point started = {};
  };

  void Push(Job job);
  void StartFirst();
  JobPool::Strand& StrandFor(const Job& job) const;

  const ConnectionContext& context_;
  const std::uint64_t connection_;
  Conversation& conversation_;
  const Caller& caller_;
  std::deque<Job> jobs_;  // The first one runs.
  std::size_t piece_count_ = 0;
  std::optional<Error> given_up_;
};

}  // namespace ffrecord::server
