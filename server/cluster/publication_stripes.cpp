// The demands of a publication on the stripes of its manifest.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/hex.h"
#include "server/cluster/publication.h"

namespace ffrecord::server::cluster {
namespace {

// The failure domains in which each member of a stripe is held.
using Held = std::map<ExtentId, std::set<std::string>>;
// Members that are held in fewer domains than there are of them, and these domains.
struct Crowd {
  std::vector<std::string> members;  // As text.
  std::set<std::string> domains;
};

// Gives the member a domain of its own, those that have one giving way. `tried`: domains that were
// asked for without success.
bool Seat(const ExtentId& member, const Held& held, std::map<std::string, ExtentId>& seats,
          std::set<std::string>& tried) {
  for (const std::string& domain : held.at(member)) {
    if (!tried.insert(domain).second) continue;
    const auto [seat, is_free] = seats.try_emplace(domain, member);
    if (!is_free && !Seat(seat->second, held, seats, tried)) continue;
    seat->second = member;
    return true;
  }
  return false;
}

// None: each member can have a domain of its own.
std::optional<Crowd> CrowdOf(const Held& held) {
  std::map<std::string, ExtentId> seats;
  for (const auto& [member, domains] : held) {
    Crowd crowd;
    if (Seat(member, held, seats, crowd.domains)) continue;
    crowd.members.push_back(Hex(member));
    for (const std::string& domain : crowd.domains) crowd.members.push_back(Hex(seats.at(domain)));
    return crowd;
  }
  return std::nullopt;
}

std::string Listed(const auto& texts) {
  std::string list;
  for (const std::string& text : texts) list += (list.empty() ? "" : ", ") + text;
  return list;
}

}  // namespace

// A publisher could otherwise give the stripe of another name other members, which it could not be
// computed from.
bool Publication::CheckWholeStripes(const View& view) {
  std::map<std::uint32_t, ExtentId> published, others;  // By stripe.
  for (const auto& [id, place] : places_)
    (view.names.Find(id) != nullptr ? published : others).emplace(place.stripe, id);
  for (const auto& [stripe, id] : others) {
    const auto found = published.find(stripe);
    if (found == published.end()) continue;
    Fail(ErrorCode::kConflict, request_.name + ": of one stripe extent " + Hex(found->second) +
                                   " is published and extent " + Hex(id) +
                                   " is not; upload all of it again");
    return false;
  }
  return true;
}

bool Publication::CheckStripes(TimePoint now, const View& view, Outbox& out) {
  if (!manifest_->has_code()) return true;
  if (IsRepaired()) return CheckComputable();
  std::map<std::uint32_t, Held> stripes;
  // Published members are not checked again: while one moves, two nodes have it.
  for (const auto& [id, place] : places_)
    if (view.names.Find(id) == nullptr) stripes[place.stripe].emplace(id, sought_.at(id).domains);
  std::optional<Crowd> crowd;
  Questions questions;
  for (const auto& [stripe, held] : stripes) {
    auto found = CrowdOf(held);
    if (!found) continue;
    crowd = std::move(found);
    // A writer that got no answer has sent a member to another node as well: any may lie elsewhere.
    for (const auto& [id, domains] : held) AddQuestions(view, sought_.at(id), SIZE_MAX, questions);
  }
  if (!crowd) return true;
  AskNodes(now, std::move(questions), out);
  if (!questions_.empty()) return false;
  if (!silent_.empty())
    WaitForSilent(now);
  else
    Fail(ErrorCode::kConflict, request_.name + ": extents " + Listed(crowd->members) +
                                   " of one stripe are held in failure domain " +
                                   Listed(crowd->domains) + " alone; upload them again");
  return false;
}

bool Publication::CheckComputable() {
  std::map<std::uint32_t, std::size_t> counts;  // Held members by stripe.
  for (const auto& [id, place] : places_)
    if (!sought_.at(id).domains.empty()) ++counts[place.stripe];
  for (const auto& [id, place] : places_) {
    if (counts[place.stripe] >= place.data_count()) continue;
    Fail(ErrorCode::kConflict, request_.name + ": of the stripe of extent " + Hex(id) + " " +
                                   std::to_string(counts[place.stripe]) + " members of " +
                                   std::to_string(place.data_count()) +
                                   " are held; start the nodes that have the others");
    return false;
  }
  return true;
}

}  // namespace ffrecord::server::cluster
