#include "client/checkpoint/last_digests.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint/target.h"
#include "libffrecord/base/checksum.h"

namespace ffrecord::client {
namespace {

struct LastSave {
  std::uint64_t step;
  RankDigests digests;
  // The first to be forgotten: a save of nothing that trains, and of these the oldest.
  std::pair<bool, std::uint64_t> worth;
};

struct LastSaves {
  static constexpr std::size_t kTargetsMax = 64;  // Each has some bytes for each tensor.

  std::mutex mutex;  // Guards what follows.
  std::map<std::string, LastSave> by_target;
  std::uint64_t count = 0;

  static LastSaves& Process() {
    static LastSaves saves;
    return saves;
  }
};

std::uint64_t HashOf(std::string_view key) { return Xxh3(std::as_bytes(std::span(key))); }

void Sort(RankDigests& digests) {
  if (!std::ranges::is_sorted(digests)) std::ranges::sort(digests);
}

// Null if there is none. Requires that they are sorted.
const std::uint64_t* Find(const RankDigests& digests, std::uint64_t hash) {
  const auto found = std::ranges::lower_bound(digests, hash, {}, &RankDigests::value_type::first);
  return found != digests.end() && found->first == hash ? &found->second : nullptr;
}

}  // namespace

RankDigests DigestsOfRank(const PartManifest& part) {
  RankDigests digests;
  digests.reserve(part.boxes.size());
  std::string_view key;  // Boxes of one tensor are side by side.
  for (const StoredBox& box : part.boxes) {
    if (box.size_bytes == 0) continue;
    if (digests.empty() || box.key != key) digests.emplace_back(HashOf(box.key), 0);
    key = box.key;
    digests.back().second ^= box.digest;
  }
  return digests;
}

Result<void> CheckChanged(std::string_view address, std::uint64_t step, RankDigests& digests,
                          const SaveOptions& options) {
  if (!options.unchanged || options.training.empty()) return {};
  std::uint64_t last_step = 0;
  std::vector<std::string> unchanged;
  {
    LastSaves& saves = LastSaves::Process();
    const std::lock_guard lock(saves.mutex);
    const auto last = saves.by_target.find(KeyOfTarget(address));
    if (last == saves.by_target.end() || last->second.step == step) return {};
    last_step = last->second.step;
    Sort(last->second.digests);
    Sort(digests);
    for (const std::string& key : options.training) {
      const std::uint64_t hash = HashOf(key);
      const std::uint64_t* const now = Find(digests, hash);
      const std::uint64_t* const before = Find(last->second.digests, hash);
      if (now != nullptr && before != nullptr && *now == *before) unchanged.push_back(key);
    }
  }
  if (unchanged.empty()) return {};
  return options.unchanged(last_step, unchanged);
}

void NoteDigests(std::string_view address, std::uint64_t step, RankDigests digests,
                 const SaveOptions& options) {
  LastSaves& saves = LastSaves::Process();
  const std::string key = KeyOfTarget(address);
  const std::lock_guard lock(saves.mutex);
  if (saves.by_target.size() >= LastSaves::kTargetsMax && !saves.by_target.contains(key))
    saves.by_target.erase(std::ranges::min_element(
        saves.by_target, {}, [](const auto& each) { return each.second.worth; }));
  saves.by_target.insert_or_assign(
      key, LastSave{step, std::move(digests), {!options.training.empty(), ++saves.count}});
}

}  // namespace ffrecord::client
