#include "client/collective/machines.h"

#include <algorithm>
#include <map>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/base/random.h"

namespace ffrecord::client {

Result<MemberAddress> MemberAddress::Parse(std::string_view text) {
  const std::size_t first = text.find('/');
  if (first == std::string_view::npos) return MemberAddress{std::string(text)};
  const std::size_t second = text.find('/', first + 1);
  if (second == std::string_view::npos || second == first + 1 || second + 1 == text.size())
    return Error{
        ErrorCode::kInvalidArgument,
        "'" + std::string(text) + "' is not the address of a rank; pass the value of address()"};
  return MemberAddress{std::string(text.substr(0, first)),
                       std::string(text.substr(first + 1, second - first - 1)),
                       std::string(text.substr(second + 1))};
}

std::optional<std::string> ThisMachine() {
  const auto identity = MachineIdentity();
  return identity ? std::optional(Hex(*identity)) : std::nullopt;
}

std::string NewLocalName() { return "ffrecord-rank-" + Hex(RandomNumber()); }

Machines::Machines(std::span<const std::uint32_t> machine_of_rank) {
  std::map<std::uint32_t, std::uint32_t> numbers;  // In the order of their first ranks.
  for (std::uint32_t rank = 0; rank < machine_of_rank.size(); ++rank) {
    const auto number = static_cast<std::uint32_t>(numbers.size());
    const std::uint32_t machine = numbers.try_emplace(machine_of_rank[rank], number).first->second;
    if (machine == ranks_.size()) ranks_.emplace_back();
    places_.push_back({machine, static_cast<std::uint32_t>(ranks_[machine].size())});
    ranks_[machine].push_back(rank);
  }
  const auto as_first = [&](const auto& ranks) { return ranks.size() == ranks_[0].size(); };
  if (!ranks_.empty() && ranks_[0].size() > 1 && std::ranges::all_of(ranks_, as_first))
    ranks_each_ = static_cast<std::uint32_t>(ranks_[0].size());
}

std::uint32_t Machines::ranks_max() const {
  std::size_t most = 1;
  for (const auto& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<std::uint32_t>(most);
}

Result<Machines> Machines::Of(std::span<const std::string> addresses) {
  std::map<std::string, std::uint32_t> first_rank;
  std::vector<std::uint32_t> machine_of_rank;
  for (std::uint32_t rank = 0; rank < addresses.size(); ++rank) {
    const MemberAddress address = FFR_TRY(MemberAddress::Parse(addresses[rank]));
    // A rank that shares no memory is a machine of its own.
    machine_of_rank.push_back(
        address.local.empty() ? rank : first_rank.try_emplace(address.machine, rank).first->second);
  }
  return Machines(machine_of_rank);
}

}  // namespace ffrecord::client
