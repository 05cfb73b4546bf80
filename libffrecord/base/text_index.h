#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "libffrecord/base/assert.h"

namespace ffrecord {

// Numbers texts from 0 in the order in which they first come, fewer than 2^32 of them.
//
// Borrows the texts. States have keys by the 100,000, and a node of memory for each of them, as
// std::unordered_map has, costs more than all else that is checked of a key: here they stand in two
// vectors.
class TextIndex {
 public:
  struct Place {
    std::size_t index;
    bool is_new;
  };

  // Makes room for as many texts, which makes adding them cheaper.
  void Reserve(std::size_t count) {
    texts_.reserve(count);
    if (2 * count > slots_.size()) Rehash(std::bit_ceil(2 * count));
  }

  Place Add(std::string_view text) {
    if (2 * (texts_.size() + 1) > slots_.size()) Reserve(std::max<std::size_t>(8, 2 * size()));
    const std::uint64_t hash = HashOf(text);
    Slot& slot = slots_[SlotOf(text, hash)];
    if (slot.number != 0) return {slot.number - 1, false};
    FFR_ASSERT(texts_.size() < std::numeric_limits<std::uint32_t>::max());
    texts_.push_back(text);
    slot = {TagOf(hash), static_cast<std::uint32_t>(texts_.size())};
    return {texts_.size() - 1, true};
  }

  std::optional<std::size_t> Find(std::string_view text) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[SlotOf(text, HashOf(text))];
    if (slot.number == 0) return std::nullopt;
    return slot.number - 1;
  }

  std::size_t size() const noexcept { return texts_.size(); }
  std::string_view operator[](std::size_t index) const { return texts_[index]; }

 private:
  // The tag tells most texts apart without a look at them.
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;  // One more than the text's; 0 in an empty slot.
  };

  static std::uint64_t HashOf(std::string_view text) { return std::hash<std::string_view>{}(text); }
  static std::uint32_t TagOf(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

  // Where `text` stands, or the empty slot where it would. Ends: half of all slots are empty.
  std::size_t SlotOf(std::string_view text, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.number == 0 || (slot.tag == TagOf(hash) && texts_[slot.number - 1] == text))
        return at;
    }
  }

  void Rehash(std::size_t slot_count) {
    slots_.assign(slot_count, {});
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const std::uint64_t hash = HashOf(texts_[i]);
      slots_[SlotOf(texts_[i], hash)] = {TagOf(hash), static_cast<std::uint32_t>(i + 1)};
    }
  }

  std::vector<std::string_view> texts_;
  std::vector<Slot> slots_;  // A power of two of them.
};

}  // namespace ffrecord
