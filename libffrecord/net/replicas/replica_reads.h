#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/back_off.h"
#include "libffrecord/net/replicas/replica_choice.h"
#include "libffrecord/net/replicas/replica_health.h"
#include "libffrecord/net/replicas/replica_map.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// Decides which node is asked for which part of a batch, and when another one is asked too. A state
// machine: no thread, no clock, no system call. Its owner tells it events and does its actions, in
// their order.
//
// A batch has parts, pieces of one extent each. A leg is one request to one node for some parts of
// a batch. A direct leg reads into the caller's memory, and a part has at most one at a time; the
// other legs read into memory of their own, so that a late write of one node never meets the bytes
// of another. If such a leg is the first to bring a part, the direct one is cancelled, and the part
// ends when the direct leg can write no more: then the bytes are copied.
//
// - The first target is the best owner that is well (ReplicaHealth::IsBetter), one for each extent
//   of a batch. Nodes that are no owners are asked when no owner that is well is left.
// - A node whose copy of an extent is damaged (ReplicaHealth::NoteDamage) is the last one to be
//   asked for it.
// - A part that fails goes to the next candidate at once. When all have failed, it fails with the
//   status that says most if none of them may come back; else they are asked again, after a
//   back-off, until the deadline. Where extents move, a node that does not have one may have it in
//   the next round, of which there is one if no node has it.
// - All batches go by the newest map, also those that are under way. Answers of a part's candidates
//   stay with those that the new map names too. A node that it does not name any more, and that is
//   heard while it brings a part, is waited for like any other: only what nobody brings is asked
//   for elsewhere, so a new map alone costs no read. Nor does it put off the next round: a
//   candidate that was busy or had nothing is asked again however often the map changes.
// - Where extents move, the owner of these reads gets SeekMap while a part has no candidate left
//   that answers: there may be a newer map.
// - Where nodes fetch what they lack (ReplicaMap::AsksInOrder), a part waits for the first of its
//   candidates that answers and may have it, however often that one is busy.
// - A node that is silent for too long is suspected: its parts are asked elsewhere at once, and
//   whichever node answers first counts.
// - A node that is far slower than the fastest one is asked where there is no better owner, and for
//   trials.
// - A part that takes longer than p99 is hedged, within the budget of ReplicaHealth. Large parts
//   are not: their time says little.
class ReplicaReads {
 public:
  using Time = ReplicaHealth::Time;
  using Duration = ReplicaHealth::Duration;
  using BatchId = std::uint64_t;
  using LegId = std::uint64_t;  // From 1.

  static constexpr std::uint64_t kHedgedBytesMax = std::uint64_t{1} << 20;
  // Before an extent that moves is sought once more: connections have bound it anew by then.
  static constexpr std::chrono::milliseconds kMovedPause{300};
  // So often a newer map is sought while a part needs one.
  static constexpr std::chrono::milliseconds kSeekEvery{50};

  struct PartSize {
    std::uint32_t extent;
    std::uint64_t bytes;
  };

  // --- Events. Indices of parts count in the batch, those of entries in the leg. ---
  struct Begin {
    BatchId batch;  // Never used before.
    std::vector<PartSize> parts;
    Time deadline;
  };
  // Takes the place of the map before, which may be gone once the step is over. Borrowed.
  struct NewMap {
    const ReplicaMap* map;
  };
  struct Arrived {  // One entry has ended, and the node writes no more for it.
    LegId leg;
    std::uint32_t entry;
    ErrorCode status;
  };
  struct LegEnded {  // Once for each leg: the node writes no more for it.
    LegId leg;
    ErrorCode status;      // Status of the entries that have not arrived.
    Time busy_until = {};  // The node wants to be left alone until then.
  };
  struct Heard {  // Bytes have come from the node.
    NodeIndex node;
    Time at;
  };
  struct GiveUp {  // Nobody wants the batch any more. Nothing happens if it has ended.
    BatchId batch;
  };
  struct Away {  // The owner has not been there for so long.
    Duration time;
  };
  struct Tick {};  // NextTime() has come.
  using Event = std::variant<Begin, NewMap, Arrived, LegEnded, Heard, GiveUp, Away, Tick>;

  // --- Actions ---
  struct Send {
    LegId leg;
    NodeIndex node;
    BatchId batch;
    bool is_direct;
    std::vector<std::uint32_t> parts;
  };
  struct Cancel {  // The leg is to end soon.
    LegId leg;
  };
  struct Drop {  // The connection to the node is not trusted any more: its legs end at once.
    NodeIndex node;
  };
  struct EndPart {
    BatchId batch;
    std::uint32_t part;
    ErrorCode status;
    LegId leg = 0;  // kOk: the bytes are this leg's entry; 0: they are in their place.
    std::uint32_t entry = 0;
  };
  struct Release {  // The leg has ended, and nobody needs its memory.
    LegId leg;
  };
  struct EndBatch {  // Once for each batch, the last word on it: no node writes for it any more.
    BatchId batch;
  };
  struct SeekMap {};  // A part needs a newer map, if there is one. Said again while that lasts.
  using Action = std::variant<Send, Cancel, Drop, EndPart, Release, EndBatch, SeekMap>;
  using Actions = std::vector<Action>;

  // Borrows both, the map until there is a newer one. `seed`: of the back-off.
  ReplicaReads(const ReplicaMap& map, ReplicaHealth& health, std::size_t node_count,
               std::uint64_t seed)
      : map_(&map), health_(health), nodes_(node_count), seed_(seed) {}

  // There are so many nodes from now on, not fewer than before; `health` knows them too.
  void Grow(std::size_t node_count) {
    if (node_count > nodes_.size()) nodes_.resize(node_count);
  }

  // Appends what is to be done.
  void Step(Time now, const Event& event, Actions& actions);

  // When it wants a Tick at the latest.
  Time NextTime() const;
  // Whether the node is asked for anything that is still wanted.
  bool IsAsked(NodeIndex node) const noexcept { return nodes_[node].entry_count > 0; }

 private:
  using Part = ReplicaPart;
  using Candidates = Part::Candidates;
  static constexpr std::uint8_t kFormer = Part::kFormer;

  struct Batch {
    std::vector<Part> parts;
    Time deadline;
    std::size_t open_count;              // Parts that are not done.
    std::size_t won_count = 0;           // Parts whose end waits for a direct leg's.
    std::size_t direct_count = 0;        // Direct legs that have not ended.
    std::vector<LegId> legs;             // All that have not ended.
    std::vector<std::uint32_t> waiting;  // Parts whose next round is to come, the first one at
    Time retry_at = Time::max();
    Time round_at = Time::min();  // Parts that fail before it share this end of the back-off.
    Time seek_at = Time::max();   // While a part needs a newer map.
    std::optional<BackOff> back_off;
    bool is_over = false;  // Nothing more is asked for.

    void WaitUntil(std::uint32_t number, Time time) {
      if (std::exchange(parts[number].retry_at, time) == Time::max()) waiting.push_back(number);
      retry_at = std::min(retry_at, time);
    }
  };
  struct Entry {
    std::uint64_t bytes;
    std::uint32_t part;
    std::uint8_t candidate;  // kFormer: the newest map does not have it.
    bool has_ended = false;
  };
  enum class LegKind : std::uint8_t {
    kDirect,
    kApart,  // Into memory of its own.
    kProbe,  // As kApart, and checks whether the node is well: goes on when its batch has ended.
  };
  struct Leg {
    NodeIndex node;
    BatchId batch;  // May be gone.
    LegKind kind;
    std::vector<Entry> entries;
    std::size_t open_count = 0;  // Entries that have not ended.
    std::size_t won_count = 0;   // Parts that wait for the direct leg.
    Time sent_at{};
    Time hedge_at{};
    bool is_silent = false;
    bool is_cancelled = false;
    bool has_ended = false;
    bool has_answered = false;  // With an entry.
  };
  struct Node {
    std::size_t entry_count = 0;  // That are under way and were not cancelled.
    Time heard_at{};
    bool is_silent = false;
    bool has_silent_legs = false;
  };
  // Entries of legs that the current step is about to send.
  struct Outgoing {
    BatchId batch;
    NodeIndex node;
    LegKind kind;
    std::vector<Entry> entries;
  };
  class Stepping;  // One step: what it needs beside the state.

  const ReplicaMap* map_;
  ReplicaHealth& health_;
  std::vector<Node> nodes_;
  const std::uint64_t seed_;
  std::unordered_map<BatchId, Batch> batches_;
  std::map<LegId, Leg> legs_;
  LegId last_leg_ = 0;
};

}  // namespace ffrecord::net
