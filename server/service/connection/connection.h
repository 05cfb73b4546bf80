#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/transport/endpoint.h"
#include "server/service/access/tokens.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/cluster_desk.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"
#include "server/service/connection/greeting.h"
#include "server/service/connection/name_desk.h"
#include "server/service/connection/read_desk.h"
#include "server/service/connection/replies.h"
#include "server/service/connection/slab_desk.h"
#include "server/service/connection/upload_desk.h"
#include "server/service/read/batch_reads.h"

namespace ffrecord::server {

// One client: takes its frames, and has its desks answer them; keeps what it may use within bounds.
//
// Thread-bound to its worker. Never waits: what blocks is run as a job, one at a time and in order
// for each connection. Owns the endpoint, the jobs' queue and the desks; each desk sees the frames
// that are its own, and the conversation, the caller and the jobs. A frame that is malformed or out
// of place closes this connection and no other.
class Connection {
 public:
  // Answers of which a client takes nothing off: beyond this it is cut off.
  static constexpr std::uint64_t kUnsentBytesMax = std::uint64_t{4} << 20;
  // A frame on its way in must bring so much within the stall timeout, or be complete: bytes that
  // come one by one keep no connection.
  static constexpr std::uint64_t kProgressBytesMin = 4096;

  // `context` outlives this and its jobs.
  Connection(const ConnectionContext& context, std::uint64_t id,
             std::unique_ptr<net::Endpoint> endpoint);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  int fd() const noexcept { return conversation_.endpoint().fd(); }
  const std::string& peer() const noexcept { return conversation_.peer(); }
  std::string_view transport() const noexcept { return conversation_.transport(); }
  // Why it ended; for the log. Empty if there is nothing to tell.
  const std::string& fault() const noexcept { return conversation_.fault(); }

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
    return batches_.is_stalled() || conversation_.endpoint().is_receiving() || jobs_.given_up();
  }

  void TakeCompleted(DiskReader::Completed completed) { batches_.Take(std::move(completed)); }
  void FinishJob(Result<Reply> outcome) { jobs_.Finish(std::move(outcome)); }

  // Closes what has fallen silent in the middle of something. False: it is to be closed.
  bool CheckTimeouts(Clock::time_point now);
  // As ReadDesk::ReleaseDeleted.
  bool ReleaseDeleted(Clock::time_point now) { return reads_.ReleaseDeleted(now); }
  // The daemon stops: says so, takes nothing more, and closes once all is answered, or after the
  // stall timeout.
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

  void Drain(const std::string& why);
  Result<After> DoPoll();
  bool MustHold() const noexcept;
  // Whether what is due has not moved by `bytes_min` for the stall timeout.
  bool IsStalled(Progress& progress, bool is_due, std::uint64_t bytes, std::uint64_t bytes_min,
                 Clock::time_point now) const noexcept;

  // How frames of a type are taken.
  struct Handler {
    using Take = Result<void> (*)(Connection&, const Frame&);

    Take take = nullptr;  // Null: this daemon does not know requests of that type.
    // The right that such a request needs, for what it names; which name that is knows `take`.
    std::optional<Right> right = {};
    bool may_have_payload = false;
    bool is_piece = false;  // A piece of an upload: waits in the socket while there is no room.
    // Is about what was taken before, such as a batch: goes on with it while requests are refused.
    bool has_no_reply = false;
  };
  static const Handler& HandlerOf(FrameType type);
  // A handler of this class, and of one of its desks.
  template <auto kTake>
  static Result<void> Here(Connection& connection, const Frame& frame) {
    return (connection.*kTake)(frame);
  }
  template <auto kDesk, auto kTake>
  static Result<void> At(Connection& connection, const Frame& frame) {
    return ((connection.*kDesk).*kTake)(frame);
  }

  Result<void> TakeFrame();
  Result<void> TakePing(const Frame& frame);
  Result<void> TakeRdmaConnect(const Frame& frame);

  const ConnectionContext& context_;
  const std::uint64_t id_;
  Conversation conversation_;
  Caller caller_;
  ConnectionJobs jobs_;
  Greeting greeting_;
  BatchReads batches_;
  SlabDesk slabs_;
  ReadDesk reads_;
  UploadDesk uploads_;
  NameDesk names_;
  ClusterDesk cluster_;

  bool is_held_ = false;  // A frame has arrived that waits until jobs are done.
  bool is_throttled_ = false;
  std::optional<Clock::time_point> drained_at_;  // None: it is not drained.
  std::string why_drained_;
  const Clock::time_point opened_ = Clock::now();
  Progress sent_;
  Progress received_;
};

}  // namespace ffrecord::server
