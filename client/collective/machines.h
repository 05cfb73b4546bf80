#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::client {

// The address of a rank, as all ranks receive it: "host:port", or "host:port/machine/name" if it
// shares memory with the ranks that name the same machine, and listens at that local socket for
// them.
struct MemberAddress {
  std::string tcp;
  std::string machine{};  // Both empty: it shares no memory.
  std::string local{};

  std::string ToString() const { return local.empty() ? tcp : tcp + "/" + machine + "/" + local; }
  // Fails with kInvalidArgument if what stands behind the first "/" cannot be right.
  static Result<MemberAddress> Parse(std::string_view text);
};

// MachineIdentity() in hexadecimal digits.
std::optional<std::string> ThisMachine();
// A name for a local socket that nobody has yet, nor can guess.
std::string NewLocalName();

// Which ranks share a machine, and so memory. Made of the same addresses, equal on all ranks.
class Machines {
 public:
  Machines() = default;  // Nobody shares anything.
  // For each rank a number that those of its machine have too.
  explicit Machines(std::span<const std::uint32_t> machine_of_rank);
  static Result<Machines> Of(std::span<const std::string> addresses);

  bool Share(std::uint32_t a, std::uint32_t b) const {
    return a < places_.size() && b < places_.size() && places_[a].machine == places_[b].machine;
  }
  // Ranks on each machine, if there are equally many on all, and more than one; else 0.
  std::uint32_t ranks_each() const { return ranks_each_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(ranks_.size()); }
  // Ranks on the fullest machine.
  std::uint32_t ranks_max() const;

  // A rank is the `local`th of its machine, in the order of ranks.
  struct Place {
    std::uint32_t machine;
    std::uint32_t local;
  };
  Place PlaceOf(std::uint32_t rank) const { return places_[rank]; }
  std::uint32_t RankAt(Place place) const { return ranks_[place.machine][place.local]; }

 private:
  std::vector<Place> places_;                      // By rank.
  std::vector<std::vector<std::uint32_t>> ranks_;  // By machine, ascending.
  std::uint32_t ranks_each_ = 0;
};

}  // namespace ffrecord::client
