#include "libffrecord/net/replicas/replica_choice.h"

#include <algorithm>
#include <utility>

namespace ffrecord::net {

ReplicaPart ReplicaPart::Make(const ReplicaMap& map, std::uint32_t extent, std::uint64_t bytes) {
  const auto nodes = map.NodesOf(extent);
  const std::size_t count = std::min(nodes.size(), ReplicaMap::kCandidatesMax);
  return {extent,
          bytes,
          nodes.first(count),
          std::min(count, map.OwnerCountOf(extent)),
          map.MovesExtents(),
          map.AsksInOrder()};
}

std::uint8_t ReplicaPart::PlaceOf(NodeIndex node) const {
  const auto found = std::ranges::find(nodes, node);
  return found == nodes.end() ? kFormer : static_cast<std::uint8_t>(found - nodes.begin());
}

bool ReplicaPart::GoBy(const ReplicaMap& newer) {
  const ReplicaPart made = Make(newer, extent, bytes);
  const auto before = std::exchange(nodes, made.nodes);
  owner_count = made.owner_count;
  if (std::ranges::equal(before, nodes)) return false;
  const auto translate = [&](Candidates& set) {
    Candidates translated = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      if ((set & Bit(i)) != 0) translated |= Bit(PlaceOf(before[i]));
    set = translated;
  };
  translate(asked);
  translate(refused);
  translate(absent);
  final_from = Time::max();
  is_last_round = false;
  return true;
}

void ReplicaPart::NoteUnderWay(std::uint8_t candidate) {
  asked |= Bit(candidate);
  under_way |= Bit(candidate);
  if (candidate == kFormer) ++former;
}

void ReplicaPart::NoteSilent(std::uint8_t candidate) {
  silent |= Bit(candidate);
  if (candidate == kFormer) --former;
}

void ReplicaPart::NoteHeard(std::uint8_t candidate) {
  silent &= ~Bit(candidate);
  if (candidate == kFormer) ++former;
}

void ReplicaPart::NoteEnded(std::uint8_t candidate, bool is_silent) {
  under_way &= ~Bit(candidate);
  silent &= ~Bit(candidate);
  if (candidate == kFormer && !is_silent) --former;
}

std::optional<std::size_t> ReplicaChoice::Choose(const Part& part) {
  if (part.keeps_order) {
    if (const auto first = FirstWell(part)) {
      const bool is_due = ((part.asked | part.under_way) & Part::Bit(*first)) == 0 &&
                          !health_.IsBusy(part.nodes[*first], now_);
      return is_due ? first : std::nullopt;
    }
  }
  auto candidate = Pick(part, Among::kWell);
  if (!candidate) candidate = Pick(part, Among::kWhole);
  if (!candidate) candidate = Pick(part, Among::kAll);
  return candidate;
}

// The first candidate that answers, if only that it is busy, and that may have the part.
std::optional<std::size_t> ReplicaChoice::FirstWell(const Part& part) const {
  const Part::Candidates out = part.refused | part.absent | part.silent;
  for (std::size_t i = 0; i < part.nodes.size(); ++i)
    if ((out & Part::Bit(i)) == 0 && !health_.IsInTrouble(part.nodes[i]) &&
        !health_.IsDamaged(part.extent, part.nodes[i], now_))
      return i;
  return std::nullopt;
}

bool ReplicaChoice::NeedsMap(const Part& part) const {
  return part.moves && part.is_wanted() && !part.is_brought() && !FirstWell(part);
}

std::optional<std::size_t> ReplicaChoice::Pick(const Part& part, Among among) {
  const Part::Candidates excluded = part.asked | part.refused | part.under_way;
  const auto [picked, is_new] = picked_.try_emplace({part.extent, excluded, among});
  if (is_new) picked->second = Best(part, excluded, among);
  return picked->second;
}

std::optional<std::size_t> ReplicaChoice::Best(const Part& part, Part::Candidates excluded,
                                               Among among) const {
  const auto nodes = part.nodes;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i >= part.owner_count && (best || among == Among::kOwners)) break;
    if ((excluded & Part::Bit(i)) != 0) continue;
    const bool may_be_asked = among == Among::kOwners || among == Among::kWell
                                  ? health_.MayAsk(nodes[i], now_)
                                  : !health_.IsBusy(nodes[i], now_);
    if (!may_be_asked) continue;
    if (among != Among::kAll && health_.IsDamaged(part.extent, nodes[i], now_)) continue;
    if (!best || health_.IsBetter(nodes[i], nodes[*best], now_)) best = i;
  }
  return best;
}

}  // namespace ffrecord::net
