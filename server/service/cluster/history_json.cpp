#include "server/service/cluster/history_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/json_text.h"

namespace ffrecord::server {
namespace {

using cluster::Difference;

std::string_view NameOf(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::kLost:
      return "lost";
    case Difference::Kind::kReplaced:
      return "replaced";
    case Difference::Kind::kReturned:
      break;
  }
  return "returned";
}

// The items that `write` makes of each, with commas.
template <class Items, class Write>
std::string List(const Items& items, const Write& write) {
  std::string list;
  for (const auto& item : items) list += (list.empty() ? "" : ", ") + write(item);
  return list;
}

}  // namespace

std::string ToJson(const cluster::Rebuild::Report& report) {
  const auto nodes = List(report.marks, [](const auto& entry) {
    return fmt::format("{{\"id\": {}, \"incarnation\": \"{}\", \"revision\": {}}}",
                       Quoted(entry.first), Hex(entry.second.incarnation), entry.second.revision);
  });
  const auto silent = List(report.silent, [](const auto& node) { return Quoted(node); });
  // A reply has room for so many; the count is that of all.
  constexpr std::size_t kListedMax = 30'000;
  const auto listed =
      std::span(report.differences).first(std::min(report.differences.size(), kListedMax));
  const auto differences = List(listed, [](const Difference& one) {
    return fmt::format(
        "{{\"name\": {}, \"kind\": \"{}\", \"attempt\": \"{}\", \"size_bytes\": {}, "
        "\"file_count\": {}}}",
        Quoted(one.name), NameOf(one.kind), Hex(one.record.attempt), one.record.size_bytes,
        one.record.file_count);
  });
  return fmt::format(
      "{{\"incarnation\": \"{}\", \"why\": {}, \"witness\": {}, \"changed\": {}, \"nodes\": [{}], "
      "\"silent\": [{}], \"difference_count\": {}, \"differences\": [{}]}}",
      Hex(report.incarnation), Quoted(report.why), Quoted(report.witness), report.changed_count,
      nodes, silent, report.differences.size(), differences);
}

}  // namespace ffrecord::server
