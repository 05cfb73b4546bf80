#include "client/checkpoint/positions.h"

#include <algorithm>
#include <iterator>

#include "client/checkpoint/target.h"

namespace ffrecord::client {
namespace {

std::vector<Position>::const_iterator LastCertain(const std::vector<Position>& positions) {
  const auto found = std::find_if(positions.rbegin(), positions.rend(),
                                  [](const Position& each) { return each.is_certain; });
  return found == positions.rend() ? positions.begin() : std::prev(found.base());
}

// The oldest, but for the last certain one: later positions mean nothing without it.
void DropOne(std::vector<Position>& past) {
  past.erase(LastCertain(past) == past.begin() ? past.begin() + 1 : past.begin());
}

}  // namespace

void KeepFromLastCertain(std::vector<Position>& positions) {
  positions.erase(positions.cbegin(), LastCertain(positions));
}

Positions& Positions::Process() {
  static Positions positions;
  return positions;
}

std::uint64_t Positions::Turn() {
  const std::lock_guard lock(mutex_);
  return ++turn_;
}

void Positions::Load(std::string_view address, Position position) {
  std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  position.turn = ++turn_;
  elsewhere_.emplace_back(key, position);
  if (elsewhere_.size() > kPastMax) elsewhere_.erase(elsewhere_.begin());
  if (at_.size() >= kTargetsMax) at_.clear();
  auto& past = at_[std::move(key)];
  past.push_back(std::move(position));
  if (past.size() > kPastMax) DropOne(past);
}

void Positions::Save(std::string_view address, Position position) {
  std::string key = KeyOfTarget(address);
  const std::lock_guard lock(mutex_);
  if (at_.size() >= kTargetsMax) at_.clear();
  auto& past = at_[std::move(key)];
  const auto later = std::ranges::upper_bound(past, position.turn, {}, &Position::turn);
  for (auto each = later; each != past.end(); ++each)
    if (position.step > each->step) each->is_newest = false;
  past.insert(later, std::move(position));
  if (past.size() > kPastMax) DropOne(past);
}

void Positions::Clear() {
  const std::lock_guard lock(mutex_);
  at_.clear();
  elsewhere_.clear();
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
  for (const auto& [place, position] : elsewhere_)
    if (place != key && position.turn > since && position.turn <= turn) found.push_back(position);
  return found;
}

}  // namespace ffrecord::client
