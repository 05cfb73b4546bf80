#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/replicas/replica_reads.h"
#include "libffrecord/net/replicas/replicated_files.h"
#include "libffrecord/net/rpc/extent_parts.h"
#include "libffrecord/net/rpc/queue_events.h"
#include "libffrecord/net/rpc/remote_queue.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

// Groups of ranges of files that several daemons hold: does what ReplicaReads decides, over one
// RemoteQueue for each daemon that it has turned to.
//
// Without a thread, but while those connect.
class ReplicatedQueue final : public RangeQueue {
 public:
  // Borrows `files`. Fails with kIo if there are no descriptors for it.
  static Result<std::unique_ptr<ReplicatedQueue>> Make(const ReplicatedFiles& files);
  ~ReplicatedQueue() override;

  void Submit(RangeGroup& group) override;
  void GiveUp(RangeGroup& group) override;
  void Poll(std::chrono::milliseconds timeout) override;
  Result<int> EventDescriptor() override;

 private:
  using BatchId = ReplicaReads::BatchId;
  using LegId = ReplicaReads::LegId;

  struct Call {
    Call(const RemoteFiles& files, RangeGroup& group) : parts(files, group) {}
    ExtentParts parts;
    bool is_given_up = false;
  };
  class Leg;
  struct Node {
    std::unique_ptr<RemoteQueue> queue;  // Once it is asked for something.
    bool is_due = false;                 // Wants to be polled.
    bool is_dropped = false;             // Its connection is to be dropped.
    bool is_placed = false;              // It is known how far it is.
  };

  ReplicatedQueue(const ReplicatedFiles& files, UniqueFd ready);

  void NotePolled();
  void TakeView();
  void AddNodes(std::size_t count);
  void Step(const ReplicaReads::Event& event);
  Deadline NextTime();
  void RunActions();
  void RunSend(ReplicaReads::Send send);
  Result<void> Send(LegId id, ReplicaReads::Send& send);
  Result<RemoteQueue*> QueueOf(NodeIndex node);
  void Cancel(LegId leg);

  bool TakeReady(std::chrono::milliseconds timeout);
  void PollNodes();
  void NoteHeard();
  void TellAll();
  void TellEmpty(Call& call);
  void Tell(const ReplicaReads::EndPart& end);
  void Tell(const ReplicaReads::EndBatch& end);
  std::string WhyNot(ErrorCode status) const;
  void PlaceNode(NodeIndex node);

  const ReplicatedFiles& files_;
  ReplicatedFiles::Health& health_;
  const HomeProcess home_;
  const UniqueFd ready_;                     // The set of the nodes' descriptors, by their index.
  std::shared_ptr<const ReplicaView> view_;  // By whose map all groups are read.
  ReplicaReads reads_;
  std::vector<Node> nodes_;
  std::map<BatchId, Call> calls_;
  std::map<RangeGroup*, BatchId> batches_;
  std::unordered_map<LegId, std::unique_ptr<Leg>> legs_;  // Until their Release.
  ReplicaReads::Actions actions_;                         // The current step's.
  std::deque<ReplicaReads::Action> news_;                 // Poll() calls groups for these.
  std::vector<std::pair<LegId, Error>> unsent_;           // Legs that could not begin.
  BatchId last_batch_ = 0;
  std::string why_;  // Why a node has failed last.
  std::uint64_t told_count_ = 0;
  bool is_polling_ = false;
  Deadline polled_at_{};
  Deadline called_at_{};                 // When the descriptor calls the owner at the latest.
  std::unique_ptr<QueueEvents> events_;  // Once somebody has asked for it.
};

}  // namespace ffrecord::net
