#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include <ffrecord/result.h>

#include "libffrecord/net/replicas/replica_health.h"
#include "libffrecord/net/replicas/replica_map.h"

namespace ffrecord::net {

// A part of a batch: which nodes may have it, and what those that were asked have said.
struct ReplicaPart {
  using Time = ReplicaHealth::Time;
  using Candidates = std::uint64_t;  // A bit for each candidate of an extent, in their order.
  static constexpr std::uint8_t kFormer = ReplicaMap::kCandidatesMax;  // No candidate of the map.

  std::uint32_t extent;
  std::uint64_t bytes;
  std::span<const NodeIndex> nodes;  // Nodes of the extent, the owners first.
  std::size_t owner_count;
  bool moves;                     // From node to node.
  bool keeps_order;               // One candidate is asked at a time, the first that answers.
  Time retry_at = Time::max();    // Its next round, for which it waits.
  Time sought_at = Time::max();   // When its next round begins, if no node had it in this one.
  Time final_from = Time::max();  // A round from then on is the last in which no node has it.
  bool is_last_round = false;
  Candidates asked = 0;       // In this round.
  Candidates refused = 0;     // They will not have it later either.
  Candidates absent = 0;      // They do not have it, in this round.
  Candidates under_way = 0;   // Legs that have not ended for it,
  Candidates silent = 0;      // and those of them that are suspected.
  std::uint32_t former = 0;   // Legs at nodes that are no candidates, not suspected.
  bool has_direct = false;    // One of them is direct.
  bool is_done = false;       // Its end was reported, or nobody wants it.
  std::uint64_t won_leg = 0;  // Has the bytes, and the part's end waits for the direct leg's.
  std::uint32_t won_entry = 0;
  ErrorCode refusal = ErrorCode::kOk;  // That which says most.
  ErrorCode trouble = ErrorCode::kOk;  // Status of the nodes that may come back.

  bool is_wanted() const noexcept { return !is_done && won_leg == 0; }
  bool is_brought() const noexcept { return (under_way & ~silent) != 0 || former > 0; }

  static ReplicaPart Make(const ReplicaMap& map, std::uint32_t extent, std::uint64_t bytes);
  static Candidates Bit(std::size_t candidate) {
    return candidate == kFormer ? 0 : Candidates{1} << candidate;
  }
  static Candidates All(std::size_t count) {
    return count == 0 ? 0 : ~Candidates{0} >> (64 - count);
  }
  // kFormer if the node is no candidate.
  std::uint8_t PlaceOf(NodeIndex node) const;
  // Whether the new map has other candidates. Answers that they have given are kept; the legs'
  // places among them are the caller's to find again.
  bool GoBy(const ReplicaMap& newer);

  // A leg at this candidate has begun, is suspected, was heard again, or has ended.
  void NoteUnderWay(std::uint8_t candidate);
  void NoteSilent(std::uint8_t candidate);
  void NoteHeard(std::uint8_t candidate);
  void NoteEnded(std::uint8_t candidate, bool is_silent);
};

// Chooses the candidate that is asked next for a part. Lives for one step, in which all parts of an
// extent get the same candidate, so that its node can merge neighbours.
class ReplicaChoice {
 public:
  using Part = ReplicaPart;
  using Time = ReplicaHealth::Time;

  // Among whom a part's next node is chosen.
  enum class Among : std::uint8_t {
    kOwners,  // Owners that are well, and whose copy is not known to be damaged.
    kWell,    // The same, and nodes that are no owners.
    kWhole,   // Those that are in trouble too.
    kAll,     // And those whose copy is damaged.
  };

  ReplicaChoice(const ReplicaHealth& health, Time now) : health_(health), now_(now) {}

  // The next candidate. None: nobody is to be asked now.
  std::optional<std::size_t> Choose(const Part& part);
  // The best owner that was not asked yet, else the first other node.
  std::optional<std::size_t> Pick(const Part& part, Among among);
  // Whether no candidate answers that may have the part.
  bool NeedsMap(const Part& part) const;

 private:
  std::optional<std::size_t> Best(const Part& part, Part::Candidates excluded, Among among) const;
  std::optional<std::size_t> FirstWell(const Part& part) const;

  const ReplicaHealth& health_;
  const Time now_;
  std::map<std::tuple<std::uint32_t, Part::Candidates, Among>, std::optional<std::size_t>> picked_;
};

}  // namespace ffrecord::net
