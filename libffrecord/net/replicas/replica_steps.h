#pragma once

// The inside of ReplicaReads, for its own files: replica_reads.cpp, and newer_maps.cpp.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "libffrecord/net/replicas/replica_reads.h"

namespace ffrecord::net {

// One step of the machine: what it needs beside the state. Borrows all of it.
class ReplicaReads::Stepping {
 public:
  Stepping(ReplicaReads& reads, Time now, Actions& actions)
      : reads_(reads), health_(reads.health_), now_(now), actions_(actions) {}

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
  // --- Choosing ---
  // Among whom a part's next node is chosen.
  enum class Among : std::uint8_t {
    kOwners,  // Owners that are well, and whose copy is not known to be damaged.
    kWell,    // The same, and nodes that are no owners.
    kWhole,   // Those that are in trouble too.
    kAll,     // And those whose copy is damaged.
  };
  Part MakePart(const PartSize& size) const;
  static Candidates Bit(std::size_t candidate) {
    return candidate == kFormer ? 0 : Candidates{1} << candidate;
  }
  static Candidates All(std::size_t count) {
    return count == 0 ? 0 : ~Candidates{0} >> (64 - count);
  }
  std::optional<std::size_t> Pick(const Part& part, Among among);
  std::optional<std::size_t> Best(const Part& part, Candidates excluded, Among among) const;
  void Ask(BatchId id, std::uint32_t number, std::size_t candidate, LegKind kind);
  static LegKind KindFor(const Part& part) {
    return part.has_direct ? LegKind::kApart : LegKind::kDirect;
  }
  void AskFirst(BatchId id, Batch& batch);
  void AskNext(BatchId id, Batch& batch, std::uint32_t number);
  Time RoundAt(BatchId id, Batch& batch, bool keeps_order);
  std::optional<std::size_t> Choose(const Part& part);
  std::optional<std::size_t> FirstWell(const Part& part) const;
  bool NeedsMap(const Part& part) const;
  void Seek(Batch& batch);
  void Probe(BatchId id, Batch& batch, std::uint32_t number);

  // --- Newer maps ---
  bool Replan(Part& part) const;
  void FindCandidates(Batch& batch);
  static std::uint8_t PlaceOf(NodeIndex node, std::span<const NodeIndex> nodes);
  static void NoteUnderWay(Part& part, const Entry& entry);
  static void NoteSilent(Part& part, const Entry& entry);
  static void NoteHeard(Part& part, const Entry& entry);
  static void NoteEnded(Part& part, const Entry& entry, bool is_silent);

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
  std::map<std::tuple<std::uint32_t, Candidates, Among>, std::optional<std::size_t>> picked_;
};

}  // namespace ffrecord::net
