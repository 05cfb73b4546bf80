#pragma once

#include <cstdint>
#include <string>

#include "server/metadata/version_list.h"
#include "server/service/cluster/adoption.h"

namespace ffrecord::server {

// The name of another dataset in the cluster that keeps this one of the daemon's out of it; empty:
// none does. Two lists of versions that began apart are never joined, nor the versions that they
// list: the longer one would be the newest, and hide the versions of the other.
//
// `find` returns the cluster's entry of a name, with its record, or null.
template <class Find>
std::string InTheWay(const Adoption& adoption, const Adoption::Name& name, const Find& find) {
  const auto is_anothers = [&](const Adoption::Name& own) {
    const auto* const known = find(own.name);
    return known != nullptr && known->record.attempt != own.attempt;
  };
  if (is_anothers(name)) return name.name;
  const std::string dataset = DatasetOf(name.name);
  if (dataset.empty()) return "";
  for (const Adoption::Name& own : adoption.List(VersionListOf(dataset), "", SIZE_MAX))
    if (is_anothers(own)) return own.name;
  return "";
}

}  // namespace ffrecord::server
