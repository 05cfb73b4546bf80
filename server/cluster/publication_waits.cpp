// The events that a publication waits for, and the error of one that does not come.

#include <map>
#include <set>
#include <string>
#include <utility>

#include "server/cluster/publication.h"

namespace ffrecord::server::cluster {
namespace {

// Joins `text` of each value, in order, each once.
template <class Map, class Text>
std::string TextOf(const Map& map, const Text& text) {
  std::set<std::string> texts;
  for (const auto& [key, value] : map) texts.insert(text(value));
  std::string list;
  for (const std::string& one : texts) list += (list.empty() ? "" : ", ") + one;
  return list;
}

// "n2: why; n3: why".
std::string Whys(const std::map<std::string, std::string>& nodes) {
  std::string list;
  for (const auto& [node, why] : nodes) list += (list.empty() ? "" : "; ") + node + ": " + why;
  return list;
}

}  // namespace

// Fails before the client gives up, so that it hears what the publication was waiting for.
void Publication::FailLate(const View& view) {
  NoteUnderWay();
  Fail(ErrorCode::kUnavailable,
       request_.name + (unanswered_.any() ? ": no outcome in time" : " cannot be changed now") +
           Awaited(view));
}

std::string Publication::Awaited(const View& view) const {
  if (call_ != 0) return ": the coordinator does not answer this daemon";
  if (!questions_.empty())
    return ": waiting for " + TextOf(questions_, [](const auto& asked) { return asked.first; }) +
           " to say which of its extents they hold";
  if (!stores_.empty())
    return ": waiting for " + TextOf(stores_, [](const auto& node) { return node; }) +
           " to store its list of files";
  if (std::string hindrance = Hindrance(view); !hindrance.empty()) return hindrance;
  return waits_for_.empty() ? "" : ": " + waits_for_;
}

void Publication::Wait(TimePoint until, std::string why) {
  waits_for_ = std::move(why);
  Again(until);
}

void Publication::WaitForStore(TimePoint until, const Error& error) {
  Wait(until, "the coordinator does not answer this daemon (" + error.message + ")");
}

void Publication::WaitForSilent(TimePoint now) {
  Wait(now + kRetry, "these nodes do not say which extents they hold: " + Whys(silent_));
}

// Notes that its list of files is not yet in `wanted` failure domains.
void Publication::NoteUnstored(std::size_t wanted) {
  waits_for_ = "its list of files is stored in " + std::to_string(body_.domains.size()) + " of " +
               std::to_string(wanted) + " failure domains, and " +
               (unstored_.empty() ? "no other one is up" : Whys(unstored_));
}

std::string Publication::Hindrance(const View& view) {
  if (!view.mirror.was_listed() || view.names.IsComplete()) return "";
  return ", as the lists of files of some names are on no node that answers (" +
         view.names.MissingNames() +
         "): start the nodes that are down, or remove these names if the nodes are lost";
}

}  // namespace ffrecord::server::cluster
