#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "server/metadata/version_list.h"
#include "server/service/cluster/adoption.h"

namespace ffrecord::server {

// The prefix of the names that tell the history of which this name is a part: the steps and lines
// of a run of checkpoints, or the list of the versions of a dataset, to which the data of the
// versions belongs too. Empty: it is of none. Leases of
// readers are a set, in no order.
inline std::string HistoryOf(const std::string& name) {
  if (const std::string dataset = DatasetOf(name); !dataset.empty()) return VersionListOf(dataset);
  const auto slash = name.rfind('/');
  if (slash == std::string::npos) return "";
  const auto is_called = [&](std::string_view kind) {
    return name.compare(slash + 1, kind.size(), kind) == 0;
  };
  const bool is_lease = std::string_view(name).substr(0, slash).ends_with(".readers");
  return !is_lease && (is_called("step-") || is_called("line-")) ? name.substr(0, slash + 1) : "";
}

// Which names of the daemon are kept out of its cluster because of what that has. Two histories
// that began apart, or went on apart, are never joined: the newest step of one would hide those of
// the other, and a run would go on from a step of another one.
//
// `Names`: names in order with the cluster's entries, which have records. Borrows both for a moment
// in which neither changes much: what was found for a history is not looked for again.
template <class Names>
class AdoptedHistories {
 public:
  AdoptedHistories(const Adoption& adoption, const Names& names)
      : adoption_(adoption), names_(names) {}

  // The name in the cluster that keeps this one of the daemon's out of it; empty: none does.
  std::string InTheWay(const Adoption::Name& name) {
    if (IsAnothers(name)) return name.name;
    const std::string history = HistoryOf(name.name);
    if (history.empty()) return "";
    const auto [known, is_new] = in_the_way_.try_emplace(history);
    if (is_new) known->second = InTheWayOf(history);
    return known->second;
  }

 private:
  bool IsAnothers(const Adoption::Name& own) const {
    const auto at = names_.lower_bound(own.name);
    return at != names_.end() && at->first == own.name && at->second.record.attempt != own.attempt;
  }

  std::string InTheWayOf(const std::string& history) const {
    std::string last_own;
    for (const Adoption::Name& own : adoption_.List(history, "", SIZE_MAX)) {
      if (HistoryOf(own.name) != history) continue;
      if (IsAnothers(own)) return own.name;
      last_own = own.name;
    }
    std::string others;  // The first one.
    for (auto at = names_.lower_bound(history);
         at != names_.end() && std::string_view(at->first).starts_with(history); ++at) {
      if (HistoryOf(at->first) != history) continue;
      if (adoption_.IsOwn(at->first, at->second.record.attempt)) return "";
      if (others.empty()) others = at->first;
    }
    // A run that goes on in the cluster before its first step is there has later steps only.
    return last_own < others ? "" : others;
  }

  const Adoption& adoption_;
  const Names& names_;
  std::map<std::string, std::string> in_the_way_;  // By history.
};

}  // namespace ffrecord::server
