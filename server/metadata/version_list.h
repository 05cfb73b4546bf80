#pragma once

#include <string>

#include <ffrecord/result.h>

namespace ffrecord::server {

// Prefix of the names that list the versions of a dataset: checkpoints, one for each change. While
// there is one, the name itself is not published, whatever its client may look at: readers of the
// dataset would get that instead of a version.
inline std::string VersionListOf(const std::string& name) { return name + "/.catalogue/"; }

// The dataset whose list of versions, or the data of one of them, has this name; empty: it is of
// none.
inline std::string DatasetOf(const std::string& name) {
  for (const char* const part : {"/.catalogue/", "/.versions/"})
    if (const auto at = name.find(part); at != std::string::npos) return name.substr(0, at);
  return "";
}

// Whether there is one, among names in order.
template <class Names>
bool HasVersions(const Names& names, const std::string& name) {
  const std::string list = VersionListOf(name);
  const auto first = names.lower_bound(list);
  return first != names.end() && first->first.starts_with(list);
}

// The refusal to publish the name.
inline Error RefusalForVersions(const std::string& name) {
  return {ErrorCode::kConflict,
          name +
              " has versions, or had some, and is no dataset itself; give the files a version "
              "(ffrecord publish --version)"};
}

}  // namespace ffrecord::server
