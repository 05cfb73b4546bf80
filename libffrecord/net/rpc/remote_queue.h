#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "libffrecord/base/home_process.h"
#include "libffrecord/net/rpc/connecting.h"
#include "libffrecord/net/rpc/owner_absence.h"
#include "libffrecord/net/rpc/paced_reads.h"
#include "libffrecord/net/rpc/profiled_places.h"
#include "libffrecord/net/rpc/queue_events.h"
#include "libffrecord/net/rpc/remote_call.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

class RemoteFiles;

// Groups of ranges of one daemon's files: many BATCH_READs under way on one connection, which is
// taken while there are groups. Parts that a lost connection has left are asked for again over
// another, as RemoteFiles says.
//
// Without a thread, but while it connects.
class RemoteQueue final : public RangeQueue {
 public:
  // kInPoll: Submit() and Poll() may wait for a connection, for a call that waits anyhow.
  enum class Connects : std::uint8_t { kApart, kInPoll };
  // kNever: for a caller that has other daemons to turn to. Groups end with kUnavailable as soon as
  // the connection is lost or cannot be made, or the daemon is busy; entries that it was too busy
  // for have that status.
  enum class Retries : std::uint8_t { kUntilTimeout, kNever };

  // kDoubted: what the daemon has was found to be damaged, and it verifies it before it answers.
  enum class Trust : std::uint8_t { kTrusted, kDoubted };

  RemoteQueue(const RemoteFiles& files, Connects connects, Retries retries = Retries::kUntilTimeout,
              Trust trust = Trust::kTrusted);
  ~RemoteQueue() override;

  // When bytes have last come from the daemon. A connection that is being made is given some time,
  // in which this is now.
  Deadline heard_at() const;
  // Until when the daemon wanted to be left alone when it last said that it was busy.
  Deadline busy_until() const noexcept { return busy_until_; }
  // Version of the daemon's map of its cluster, in the latest answer; 0: none has come.
  std::uint32_t map_version() const noexcept { return map_version_; }
  // The daemon is not trusted to answer: its connection is closed, and what is under way on it
  // ends. Outside of Poll() only.
  void DropConnection();

  void Submit(RangeGroup& group) override;
  void GiveUp(RangeGroup& group) override;
  void Poll(std::chrono::milliseconds timeout) override;
  Result<int> EventDescriptor() override;

 private:
  // The payload that is being received.
  struct Payload {
    std::uint64_t request = 0;
    std::vector<BatchPiece> pieces;
  };
  using Asks = std::map<std::uint64_t, RemoteAsk>;

  bool is_connecting() const noexcept {
    return connecting_ != nullptr && connecting_->is_under_way();
  }
  // Null while connecting: until then it is the thread's.
  Connection* connection() noexcept { return is_connecting() ? nullptr : tries_->connection(); }
  void Advance();
  void NotePolled();
  void Wait(Deadline end);
  Deadline NextTime(Deadline advanced_at) const;

  void Connect();
  void TakeConnecting();
  void TakeConnected(Result<void> result, Deadline deadline, bool is_given_up);
  void Lost(Error why, const Error* outcome = nullptr);
  void ClearAsks();
  void ReturnConnection();
  void CloseConnection();
  bool Unpark();
  void NoteHeard();

  void Begin();
  bool BeginCall(RemoteCall& call);
  Result<void> Ask(RemoteCall& call);
  bool HasAsks(const RemoteCall& call) const;
  void Cancel(const RemoteCall& call);
  void Grant();
  void LookAtHeld();
  void Expire();

  void Pump();
  Result<void> TakeFrame();
  Result<void> TakeData(std::uint64_t request, RemoteAsk& ask);
  void TakePayload();
  Result<void> TakeDone(Asks::iterator ask);
  void TakeRefusal(Asks::iterator ask, Error refusal);

  bool MayBeWritten(const RemoteCall& call) const;
  void Detach(const RemoteCall& call);
  void EndCalls();
  void EndCall(std::size_t index);

  const RemoteFiles& files_;
  const Connects connects_;
  const Retries retries_;
  const Trust trust_;
  const HomeProcess home_;
  std::unique_ptr<Session::Tries> tries_;  // With the connection.
  std::unique_ptr<Connecting> connecting_;
  std::uint64_t connection_count_ = 0;
  std::uint64_t heard_bytes_ = 0;  // Bytes of the connection,
  Deadline heard_at_{};            // and when the last of them came.
  std::uint32_t map_version_ = 0;
  Deadline connecting_since_{};
  Deadline busy_until_{};
  std::vector<std::unique_ptr<RemoteCall>> calls_;  // In the order of Submit().
  Asks asks_;                                       // By request.
  std::size_t entry_count_ = 0;                     // Sum over all of them.
  std::set<std::uint64_t> replies_;                 // Requests that are to be answered beside them.
  std::optional<Payload> payload_;
  std::vector<std::byte> nowhere_;
  std::uint64_t told_count_ = 0;  // How often groups were called.
  std::uint64_t owed_bytes_ = 0;  // Bytes of payload that the daemon may send and has not sent.
  GrantPace pace_;
  bool is_polling_ = false;
  OwnerAbsence absence_;
  bool has_more_ = false;                // Poll() has left something to be received.
  std::unique_ptr<QueueEvents> events_;  // Once somebody has asked for it.
  ProfiledPlaces profiled_places_;
};

}  // namespace ffrecord::net
