#include "client/checkpoint/positions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/checkpoint/target.h"

namespace ffrecord::client {
namespace {

std::vector<Position>::const_iterator LastCertain(const std::vector<Position>& positions) {
  const auto found = std::find_if(positions.rbegin(), positions.rend(),
                                  [](const Position& each) { return each.is_certain; });
  return found == positions.rend() ? positions.begin() : std::prev(found.base());
}

// The oldest, but for the last certain one, without which later positions mean nothing, and for the
// earliest step: a save that gives up anything from one of the others does so from that one, too.
void DropOne(std::vector<Position>& past) {
  auto drop = past.cbegin();
  if (LastCertain(past) == drop) {
    const auto earliest = std::ranges::min_element(drop + 1, past.cend(), {}, &Position::step);
    drop += earliest == drop + 1 ? 2 : 1;
  }
  past.erase(drop);
}

// The least is forgotten first: targets where nothing would be given up, and those of long ago.
std::pair<bool, std::uint64_t> Worth(const std::vector<Position>& past) {
  const bool gives_up =
      std::ranges::any_of(past, [](const Position& each) { return !each.is_newest; });
  return {gives_up, past.empty() ? 0 : past.back().turn};
}

}  // namespace

void KeepFromLastCertain(std::vector<Position>& positions) {
  positions.erase(positions.cbegin(), LastCertain(positions));
}

Positions& Positions::Process() {
  static Positions positions;
  return positions;
}

std::vector<Position>& Positions::PastAt(ByTarget& all, std::string key) {
  if (all.size() >= kTargetsMax && !all.contains(key))
    all.erase(
        std::ranges::min_element(all, {}, [](const auto& each) { return Worth(each.second); }));
  return all[std::move(key)];
}

std::uint64_t Positions::Turn() {
  const std::lock_guard lock(mutex_);
  return ++turn_;
}

void Positions::Begin(const AttemptId& attempt) {
  const std::lock_guard lock(mutex_);
  if (begun_.size() >= kBegunMax) begun_.clear();
  begun_.insert(attempt);
}

bool Positions::HasBegun(const AttemptId& attempt) const {
  const std::lock_guard lock(mutex_);
  return begun_.contains(attempt);
}

void Positions::Load(std::string_view address, Position position) {
  std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  position.turn = ++turn_;
  for (ByTarget* const all : {&at_, &loads_}) {
    auto& past = PastAt(*all, key);
    past.push_back(position);
    if (past.size() > kPastMax) DropOne(past);
  }
}

void Positions::Save(std::string_view address, Position position) {
  std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  auto& past = PastAt(at_, std::move(key));
  const auto later = std::ranges::upper_bound(past, position.turn, {}, &Position::turn);
  for (auto each = later; each != past.end(); ++each)
    if (position.step > each->step) each->is_newest = false;
  past.insert(later, std::move(position));
  if (past.size() > kPastMax) DropOne(past);
}

void Positions::Clear() {
  const std::lock_guard lock(mutex_);
  at_.clear();
  loads_.clear();
  begun_.clear();
}

std::vector<Position> Positions::At(std::string_view address, std::uint64_t turn) const {
  const std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  const auto found = at_.find(key);
  if (found == at_.end()) return {};
  const auto& past = found->second;
  std::vector<Position> then(past.begin(),
                             std::ranges::upper_bound(past, turn, {}, &Position::turn));
  KeepFromLastCertain(then);
  return then;
}

std::vector<Position> Positions::LoadedElsewhere(std::string_view address, std::uint64_t since,
                                                 std::uint64_t turn) const {
  const std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  std::vector<Position> found;
  for (const auto& [place, loads] : loads_) {
    if (place == key) continue;
    std::ranges::copy_if(loads, std::back_inserter(found), [&](const Position& each) {
      return each.turn > since && each.turn <= turn;
    });
  }
  std::ranges::sort(found, {}, &Position::turn);
  return found;
}

}  // namespace ffrecord::client
