#include "client/checkpoint/reachable_places.h"

#include <utility>

#include "client/dataset/failures.h"

namespace ffrecord::client {

ReachablePlaces::ReachablePlaces(std::vector<Place> places)
    : places_(std::move(places)), troubles_(places_.size()) {
  for (const Place& place : places_)
    reach_.push_back(place.probe == nullptr ? Reach::kNear : Reach::kUnknown);
}

bool ReachablePlaces::IsNear(std::size_t place) const {
  if (reach_[place] == Reach::kUnknown) Probe(*places_[place].probe, place);
  return reach_[place] == Reach::kNear;
}

bool ReachablePlaces::ForEachNear(const Work& work) const {
  bool any = false;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (!IsNear(place)) continue;
    const auto outcome = work(*places_[place].target);
    any |= static_cast<bool>(outcome);
    troubles_[place] = outcome ? std::nullopt : std::optional(outcome.error());
    if (!outcome && IsAway(outcome.error())) reach_[place] = Reach::kAway;
  }
  return any;
}

bool ReachablePlaces::AskAgain() const {
  if (std::exchange(has_asked_again_, true)) return false;
  bool any = false;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (reach_[place] != Reach::kAway) continue;
    Probe(*places_[place].target, place);
    any |= reach_[place] == Reach::kNear;
  }
  return any;
}

void ReachablePlaces::Probe(const CheckpointTarget& target, std::size_t place) const {
  const auto answer = target.Steps();
  const bool is_away = !answer && IsAway(answer.error());
  reach_[place] = is_away ? Reach::kAway : Reach::kNear;
  troubles_[place] = is_away ? std::optional(answer.error()) : std::nullopt;
}

}  // namespace ffrecord::client
