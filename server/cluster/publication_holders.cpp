// Where a publication looks for the extents of its manifest, and when it has found enough.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/hex.h"
#include "server/cluster/publication.h"

namespace ffrecord::server::cluster {
namespace {

// How often extents that are published already may be nowhere before that is believed.
constexpr int kMovedMax = 3;

}  // namespace

std::string Publication::DomainOf(const View& view, const std::string& node) const {
  const std::uint16_t ordinal = view.slots.map.Find(node);
  if (ordinal == SlotMap::kNoNode || view.slots.map.nodes[ordinal].weight == 0) return "";
  return view.slots.map.nodes[ordinal].domain;
}

// The likeliest first.
std::vector<std::string> Publication::HoldersOf(const View& view, const ExtentId& id) const {
  auto nodes = view.CandidatesOf(id);
  const auto place = places_.find(id);
  if (place == places_.end()) return nodes;
  const std::uint16_t owner = view.stripes.OwnerOf(view.slots.map, place->second);
  if (owner != SlotMap::kNoNode) nodes.insert(nodes.begin(), view.slots.map.nodes[owner].id);
  return nodes;
}

std::size_t Publication::AddQuestions(const View& view, Sought& sought, std::size_t count,
                                      Questions& questions) const {
  std::size_t added = 0;
  for (const std::string& node : HoldersOf(view, sought.extent.id)) {
    if (added == count) break;
    const std::string domain = DomainOf(view, node);
    if (!view.IsLive(node) || domain.empty() || sought.domains.contains(domain) ||
        !sought.asked.insert(node).second)
      continue;
    questions[node].push_back(sought.extent);
    ++added;
  }
  return added;
}

void Publication::AskNodes(TimePoint now, Questions questions, Outbox& out) {
  for (auto& [node, extents] : questions) {
    std::vector<ExtentId> ids;
    for (const ManifestExtent& extent : extents) ids.push_back(extent.id);
    const CallId call = out.Ask(AskHoldings{node, 0, std::move(extents)}, now + kPatience);
    questions_.emplace(call, std::pair(node, std::move(ids)));
  }
}

void Publication::AskHolders(TimePoint now, const View& view, Outbox& out) {
  Questions questions;
  for (auto& [id, sought] : sought_) {
    if (sought.domains.size() >= FilesHeldMin()) continue;
    const std::size_t missing = FilesHeldMin() - sought.domains.size();
    if (AddQuestions(view, sought, missing, questions) > 0) continue;
    if (!silent_.empty()) return WaitForSilent(now);
    if (IsRepaired()) continue;
    // It may have come to a node after that was asked, and left another before.
    if (view.names.Find(id) != nullptr && ++moved_count_ <= kMovedMax)
      return Wait(now + kRetry, "nodes that are up do not hold enough of its extents");
    return Fail(ErrorCode::kConflict, request_.name + ": extent " + Hex(id) + " is held in " +
                                          std::to_string(sought.domains.size()) +
                                          " failure domains of " + std::to_string(FilesHeldMin()) +
                                          "; upload it again");
  }
  AskNodes(now, std::move(questions), out);
  if (!questions_.empty()) return;
  if (!CheckStripes(now, view, out)) return;
  phase_ = is_small_ ? Phase::kCommit : Phase::kBody;
  next_ = now;
  Step(now, view, out);
}

}  // namespace ffrecord::server::cluster
