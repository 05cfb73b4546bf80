// The changes that a newer map makes to the batches under way.

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/net/replicas/replica_steps.h"

namespace ffrecord::net {

void ReplicaReads::Stepping::On(const NewMap& newer) {
  reads_.map_ = newer.map;
  // None refers to the map before once the first one is asked for.
  std::map<BatchId, std::vector<std::uint32_t>> changed;
  for (auto& [id, batch] : reads_.batches_) {
    std::vector<std::uint32_t> parts;
    for (std::uint32_t number = 0; number < batch.parts.size(); ++number)
      if (Replan(batch.parts[number])) parts.push_back(number);
    if (parts.empty()) continue;
    FindCandidates(batch);
    changed.emplace(id, std::move(parts));
  }
  for (const auto& [id, parts] : changed) {
    Batch& batch = reads_.batches_.at(id);
    for (const std::uint32_t number : parts) AskNext(id, batch, number);
    EndBatchIfDone(id);
  }
}

// Whether the new map has other candidates for the part. Answers that they have given are kept; the
// legs' own places among them are for FindCandidates().
bool ReplicaReads::Stepping::Replan(Part& part) const {
  const Part newer = MakePart({part.extent, part.bytes});
  const auto before = std::exchange(part.nodes, newer.nodes);
  part.owner_count = newer.owner_count;
  if (std::ranges::equal(before, part.nodes)) return false;
  const auto translate = [&](Candidates& set) {
    Candidates translated = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      if ((set & Bit(i)) != 0) translated |= Bit(PlaceOf(before[i], part.nodes));
    set = translated;
  };
  translate(part.asked);
  translate(part.refused);
  translate(part.absent);
  part.final_from = Time::max();
  part.is_last_round = false;
  return true;
}

std::uint8_t ReplicaReads::Stepping::PlaceOf(NodeIndex node, std::span<const NodeIndex> nodes) {
  const auto found = std::ranges::find(nodes, node);
  return found == nodes.end() ? kFormer : static_cast<std::uint8_t>(found - nodes.begin());
}

void ReplicaReads::Stepping::NoteUnderWay(Part& part, const Entry& entry) {
  part.asked |= Bit(entry.candidate);
  part.under_way |= Bit(entry.candidate);
  if (entry.candidate == kFormer) ++part.former;
}

void ReplicaReads::Stepping::NoteSilent(Part& part, const Entry& entry) {
  part.silent |= Bit(entry.candidate);
  if (entry.candidate == kFormer) --part.former;
}

void ReplicaReads::Stepping::NoteHeard(Part& part, const Entry& entry) {
  part.silent &= ~Bit(entry.candidate);
  if (entry.candidate == kFormer) ++part.former;
}

void ReplicaReads::Stepping::NoteEnded(Part& part, const Entry& entry, bool is_silent) {
  part.under_way &= ~Bit(entry.candidate);
  part.silent &= ~Bit(entry.candidate);
  if (entry.candidate == kFormer && !is_silent) --part.former;
}

// Where the nodes of the batch's legs are among the candidates of the new map.
void ReplicaReads::Stepping::FindCandidates(Batch& batch) {
  for (Part& part : batch.parts) part.under_way = part.silent = part.former = 0;
  for (const LegId id : batch.legs) {
    Leg& leg = reads_.legs_.at(id);
    for (Entry& entry : leg.entries) {
      if (entry.has_ended) continue;
      Part& part = batch.parts[entry.part];
      entry.candidate = PlaceOf(leg.node, part.nodes);
      NoteUnderWay(part, entry);
      if (leg.is_silent) NoteSilent(part, entry);
    }
  }
}

}  // namespace ffrecord::net
