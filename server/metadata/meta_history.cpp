#include "server/metadata/meta_history.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {

std::size_t MetaHistory::SizeOf(const Change& change) {
  return change.event.key.size() + (change.event.value ? change.event.value->size() : 0) +
         (change.before ? change.before->value.size() : 0);
}

void MetaHistory::Add(std::vector<Change> changes) {
  for (Change& change : changes) {
    size_bytes_ += SizeOf(change);
    changes_.push_back(std::move(change));
  }
  while (changes_.size() > limits_.change_count_max || size_bytes_ > limits_.size_bytes_max)
    CompactTo(changes_.front().event.revision);
}

void MetaHistory::CompactTo(std::uint64_t revision) {
  while (!changes_.empty() && changes_.front().event.revision <= revision) {
    size_bytes_ -= SizeOf(changes_.front());
    changes_.pop_front();
  }
  compacted_ = std::max(compacted_, revision);
}

void MetaHistory::PutBack(std::uint64_t revision) {
  changes_.clear();
  size_bytes_ = 0;
  compacted_ = revision;
}

std::optional<std::vector<MetaStore::Event>> MetaHistory::Since(std::string_view prefix,
                                                                std::uint64_t from_revision) const {
  if (from_revision <= compacted_) return std::nullopt;
  const auto is_before = [](const Change& change, std::uint64_t revision) {
    return change.event.revision < revision;
  };
  std::vector<MetaStore::Event> events;
  auto change = std::lower_bound(changes_.begin(), changes_.end(), from_revision, is_before);
  for (; change != changes_.end(); ++change)
    if (change->event.key.starts_with(prefix)) events.push_back(change->event);
  return events;
}

bool MetaHistory::Undo(Entries& entries, std::uint64_t revision) const {
  if (revision < compacted_) return false;
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (change->event.revision <= revision) break;
    if (change->before)
      entries.insert_or_assign(change->event.key, change->before);
    else
      entries.erase(change->event.key);
  }
  return true;
}

}  // namespace ffrecord::server
