#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/target.h"

namespace ffrecord::client {

// The places of a target of several, and which of them answer. A place that does not answer a first
// question soon is away: it is not asked again, unless AskAgain() finds it. Borrows the places.
// Thread-bound, as they are.
class ReachablePlaces {
 public:
  struct Place {
    CheckpointTarget* target;
    CheckpointTarget* probe;  // The same, with little patience; null: it is near until it fails.
  };
  using Work = std::function<Result<void>(const CheckpointTarget&)>;

  explicit ReachablePlaces(std::vector<Place> places);

  // Whether the place answers, or may.
  bool IsNear(std::size_t place) const;

  // Does `work` at each place that is near; whether it succeeded at any. Its failure at a place is
  // the trouble of that place.
  bool ForEachNear(const Work& work) const;

  // Asks the places that are away with patience, once; whether one has answered.
  bool AskAgain() const;

  // By place: why it is away, or why the last work there has failed.
  std::span<const std::optional<Error>> troubles() const noexcept { return troubles_; }

 private:
  enum class Reach : std::uint8_t { kUnknown, kNear, kAway };

  void Probe(const CheckpointTarget& target, std::size_t place) const;

  std::vector<Place> places_;
  mutable std::vector<Reach> reach_;
  mutable std::vector<std::optional<Error>> troubles_;
  mutable bool has_asked_again_ = false;
};

}  // namespace ffrecord::client
