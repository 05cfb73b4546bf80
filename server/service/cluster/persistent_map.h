#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ffrecord::server {

// Values by name, in order of their names. A map with changes shares with the one before all that
// is not near to what has changed: it costs the changes, and little more.
//
// A value: it does not change. Copies share everything.
template <class T>
class PersistentMap {
 public:
  using Entry = std::pair<const std::string, T>;

 private:
  using EntryPtr = std::shared_ptr<const Entry>;
  using Part = std::vector<EntryPtr>;  // Neighbours in order; never empty.
  using PartPtr = std::shared_ptr<const Part>;

 public:
  // None: the name is not there any more.
  using Changes = std::map<std::string, std::optional<T>, std::less<>>;

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    Iterator() = default;
    reference operator*() const { return *(*(*parts_)[part_])[entry_]; }
    pointer operator->() const { return &**this; }
    Iterator& operator++() {
      if (++entry_ == (*parts_)[part_]->size()) {
        ++part_;
        entry_ = 0;
      }
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const {
      return part_ == other.part_ && entry_ == other.entry_;
    }

   private:
    friend class PersistentMap;
    Iterator(const std::vector<PartPtr>& parts, std::size_t part, std::size_t entry)
        : parts_(&parts), part_(part), entry_(entry) {}

    const std::vector<PartPtr>* parts_ = nullptr;  // Parts of a map that outlives it.
    std::size_t part_ = 0;
    std::size_t entry_ = 0;
  };
  using const_iterator = Iterator;

  PersistentMap() = default;
  explicit PersistentMap(Changes entries) { *this = With(std::move(entries)); }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  Iterator begin() const { return {parts_, 0, 0}; }
  Iterator end() const { return {parts_, parts_.size(), 0}; }
  Iterator lower_bound(std::string_view name) const {
    return Bound([&](const EntryPtr& entry) { return entry->first < name; });
  }
  Iterator upper_bound(std::string_view name) const {
    return Bound([&](const EntryPtr& entry) { return entry->first <= name; });
  }
  const T* Find(std::string_view name) const {
    const Iterator found = lower_bound(name);
    return found == end() || found->first != name ? nullptr : &found->second;
  }

  PersistentMap With(Changes changes) const {
    PersistentMap after;
    auto change = changes.begin();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      // Changes before the next part belong to this one.
      const auto last = i + 1 == parts_.size() ? changes.end()
                                               : changes.lower_bound(parts_[i + 1]->front()->first);
      if (change == last)
        after.Append(parts_[i]);
      else
        after.AppendAll(Merge(*parts_[i], change, last));
      change = last;
    }
    if (parts_.empty()) after.AppendAll(Merge({}, change, changes.end()));
    return after;
  }

  // Calls `visit` with each name whose value is not the same one in both, in order, and with both
  // values; null: it has none.
  template <class Visit>
  static void ForEachDifference(const PersistentMap& before, const PersistentMap& after,
                                const Visit& visit) {
    const Part old = before.PartsBeside(after);
    const Part now = after.PartsBeside(before);
    auto left = old.begin();
    auto right = now.begin();
    while (left != old.end() || right != now.end()) {
      const bool has_left =
          left != old.end() && (right == now.end() || (*left)->first <= (*right)->first);
      const bool has_right =
          right != now.end() && (left == old.end() || (*right)->first <= (*left)->first);
      const EntryPtr& named = has_left ? *left : *right;
      if (!has_left || !has_right || *left != *right)
        visit(named->first, has_left ? &(*left)->second : nullptr,
              has_right ? &(*right)->second : nullptr);
      if (has_left) ++left;
      if (has_right) ++right;
    }
  }

 private:
  static constexpr std::size_t kPartMax = 256;

  template <class IsBefore>
  Iterator Bound(const IsBefore& is_before) const {
    const auto part = std::ranges::partition_point(
        parts_, [&](const PartPtr& one) { return is_before(one->back()); });
    if (part == parts_.end()) return end();
    const auto entry = std::ranges::partition_point(**part, is_before);
    return {parts_, static_cast<std::size_t>(part - parts_.begin()),
            static_cast<std::size_t>(entry - (*part)->begin())};
  }

  static Part Merge(const Part& part, typename Changes::iterator change,
                    const typename Changes::iterator& last) {
    Part merged;
    auto entry = part.begin();
    for (; change != last; ++change) {
      for (; entry != part.end() && (*entry)->first < change->first; ++entry)
        merged.push_back(*entry);
      if (entry != part.end() && (*entry)->first == change->first) ++entry;
      if (change->second)
        merged.push_back(std::make_shared<const Entry>(change->first, *std::move(change->second)));
    }
    merged.insert(merged.end(), entry, part.end());
    return merged;
  }

  void Append(PartPtr part) {
    size_ += part->size();
    parts_.push_back(std::move(part));
  }
  // In parts of one size; with the part before them, where both are small.
  void AppendAll(Part entries) {
    if (entries.empty()) return;
    if (!parts_.empty() && parts_.back()->size() + entries.size() <= kPartMax / 2) {
      const PartPtr before = std::move(parts_.back());
      parts_.pop_back();
      size_ -= before->size();
      entries.insert(entries.begin(), before->begin(), before->end());
    }
    const std::size_t part_count = (entries.size() + kPartMax - 1) / kPartMax;
    for (std::size_t i = 0; i < part_count; ++i) {
      const auto at = [&](std::size_t part) {
        return entries.begin() + static_cast<std::ptrdiff_t>(entries.size() * part / part_count);
      };
      Append(std::make_shared<const Part>(at(i), at(i + 1)));
    }
  }

  // The entries of the parts that `other` does not have.
  Part PartsBeside(const PersistentMap& other) const {
    std::unordered_set<const Part*> shared;
    for (const PartPtr& part : other.parts_) shared.insert(part.get());
    Part beside;
    for (const PartPtr& part : parts_)
      if (!shared.contains(part.get())) beside.insert(beside.end(), part->begin(), part->end());
    return beside;
  }

  std::vector<PartPtr> parts_;
  std::size_t size_ = 0;
};

}  // namespace ffrecord::server
