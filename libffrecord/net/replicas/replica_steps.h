#pragma once

// The inside of ReplicaReads, for replica_reads.cpp.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libffrecord/net/replicas/replica_reads.h"

namespace ffrecord::net {

// One step of the machine: what it needs beside the state. Borrows all of it.
class ReplicaReads::Stepping {
 public:
  Stepping(ReplicaReads& reads, Time now, Actions& actions)
      : reads_(reads),
        health_(reads.health_),
        now_(now),
        actions_(actions),
        choice_(health_, now) {}

  void On(const Begin& begin);
  void On(const NewMap& newer);
  void On(const Arrived& arrived);
  void On(const LegEnded& ended);
  void On(const Heard& heard) { Hear(heard.node, heard.at); }
  void On(const GiveUp& given_up);
  void On(const Away& away);
  void On(const Tick& tick);
  void SendAll();

 private:
  // --- Asking ---
  void Ask(BatchId id, std::uint32_t number, std::size_t candidate, LegKind kind);
  static LegKind KindFor(const Part& part) {
    return part.has_direct ? LegKind::kApart : LegKind::kDirect;
  }
  void AskFirst(BatchId id, Batch& batch);
  void AskNext(BatchId id, Batch& batch, std::uint32_t number);
  Time RoundAt(BatchId id, Batch& batch, bool keeps_order);
  void Seek(Batch& batch);
  void Probe(BatchId id, Batch& batch, std::uint32_t number);

  // Finds the places of the nodes of the batch's legs among the candidates of the new map.
  void FindCandidates(Batch& batch);

  // --- Answers ---
  bool IsToBlame(const Leg& leg) const;
  void Hear(NodeIndex node, Time at);
  void EndEntry(LegId id, Leg& leg, std::uint32_t index, ErrorCode status);
  void Came(BatchId id, Batch& batch, std::uint32_t number, LegId leg_id, Leg& leg,
            std::uint32_t entry);
  void Failed(BatchId id, Batch& batch, std::uint32_t number, std::size_t candidate,
              ErrorCode status);

  // --- Ends ---
  void End(Batch& batch, const EndPart& end);
  void EndWon(BatchId id, Batch& batch, std::uint32_t number);
  LegId TakeWon(Batch& batch, Part& part);
  void CancelUnwanted(Batch& batch);
  void CancelLeg(LegId id, Leg& leg);
  void ReleaseIfDone(LegId id);
  void EndBatchIfDone(BatchId id);

  // --- Time ---
  void Expire(BatchId id, Batch& batch);
  void Retry(BatchId id, Batch& batch);
  void SeekAgain(Batch& batch);
  void Suspect(NodeIndex node);
  void Hedge(Leg& leg);

  ReplicaReads& reads_;
  ReplicaHealth& health_;
  const Time now_;
  Actions& actions_;
  std::vector<Outgoing> outgoing_;
  ReplicaChoice choice_;
};

}  // namespace ffrecord::net
