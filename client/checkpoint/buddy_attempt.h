#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The places of an address, which may name one several times: rank r's part is at the r-th name,
// counted round, and at the next that is another place.
struct BuddyPlaces {
  std::vector<std::string> names;                          // Each once.
  std::vector<std::unique_ptr<CheckpointTarget>> targets;  // One for each name.
  std::vector<std::unique_ptr<CheckpointTarget>> probes;   // The same, with little patience.
  std::vector<std::size_t> order;                          // Indices of the names, as given.
  std::vector<std::size_t> ranked;                         // All indices, ascending by address.

  std::size_t size() const { return names.size(); }

  // Where it is decided what becomes of an attempt: the same place for all who name the same.
  CheckpointTarget& arbiter() const { return *targets[ranked.front()]; }

  // Two different ones.
  std::array<std::size_t, 2> Of(std::uint32_t rank) const {
    const std::size_t home = rank % order.size();
    std::size_t buddy = home;
    while (order[buddy] == order[home]) buddy = (buddy + 1) % order.size();
    return {order[home], order[buddy]};
  }

  // Those that hold file `name`; all, if it is of all ranks.
  std::vector<std::size_t> OfFile(std::string_view name) const {
    std::vector<std::size_t> all(size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    const auto rank = RankOfFile(name);
    if (!rank) return all;
    const auto two = Of(*rank);
    return {two.begin(), two.end()};
  }
};

// The decision about an attempt that is visible at some of its places, or at all: its own saver
// says kStands once it is visible at all; another process says kGivenUp if it finds the attempt
// before that and cannot know whether its saver lives. The arbiter keeps what was said first, and
// both do as it says.
inline constexpr std::string_view kStands = "stands";
inline constexpr std::string_view kGivenUp = "given-up";

std::string DecisionName(std::uint64_t step, const AttemptId& attempt);

// As CheckpointTarget::Decide, should the answer that was there be forgotten before it is read.
Result<bool> IsDecided(CheckpointTarget& arbiter, const std::string& name, std::string_view answer);

// Removes the step from those places where it is `attempt`. A later save removes what stays there.
void TakeBack(const BuddyPlaces& places, std::uint64_t step, const AttemptId& attempt);

// An attempt at all places, of which `attempts` have been begun; a rank joins others where it has
// to write. `given_up`: attempts at the step that this one may take the place of.
std::unique_ptr<CheckpointAttempt> MakeBuddyAttempt(
    std::shared_ptr<const BuddyPlaces> places, std::uint64_t step, const AttemptId& id,
    std::vector<std::unique_ptr<CheckpointAttempt>> attempts, std::vector<AttemptId> given_up);

// The attempt at a place where it is visible already: by a copy that was killed, or still goes on.
std::unique_ptr<CheckpointAttempt> MakeVisibleAttempt();

}  // namespace ffrecord::client
