#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/checkpoint/run_line.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// A step that this process has loaded or saved, and so may go on from.
struct Position {
  std::uint64_t turn = 0;  // When it was loaded, or when the saved state was taken.
  std::uint64_t step = 0;
  AttemptId attempt{};
  std::uint64_t generation = 0;
  RunLine line;           // Line of the target at that time.
  bool is_load = false;   // It was loaded.
  bool is_newest = true;  // No step behind it was on the line.
  // Nothing was behind it, and what has come since then, this process has not saved.
  bool was_last = false;
  bool knows_line = true;  // False: `line` could not be read.
  // False: a load whose caller has not said whether the run goes on from it.
  bool is_certain = true;
};

// Where this process is in its runs. The state that a save stores was taken at some turn; what the
// process has loaded and saved since then is not what that state goes on from. Thread-safe.
class Positions {
 public:
  static Positions& Process();

  std::uint64_t Turn();

  // Notes a save that this process begins, also if its outcome stays unknown.
  void Begin(const AttemptId& attempt);
  bool HasBegun(const AttemptId& attempt) const;

  // `position` gets the next turn. `address` is that of the target that was read.
  void Load(std::string_view address, Position position);

  // A save of a state that was taken at `position.turn`. It may be behind a step that was loaded
  // since.
  void Save(std::string_view address, Position position);

  void Clear();

  // The positions that a state taken at `turn` may go on from, by rising turns: the last certain
  // position, and the loads since then of which nobody has said what they are for.
  std::vector<Position> At(std::string_view address, std::uint64_t turn) const;

  // Loads from other targets between the turns `since` and `turn`, by rising turns.
  std::vector<Position> LoadedElsewhere(std::string_view address, std::uint64_t since,
                                        std::uint64_t turn) const;

 private:
  static constexpr std::size_t kTargetsMax = 4096;
  static constexpr std::size_t kBegunMax = 1 << 16;
  static constexpr std::size_t kPastMax = 16;  // Loads and saves while a save is on its way.

  using ByTarget = std::map<std::string, std::vector<Position>>;  // Each by rising turns.

  static std::vector<Position>& PastAt(ByTarget& all, std::string key);

  mutable std::mutex mutex_;  // Guards the fields below.
  ByTarget at_;
  ByTarget loads_;  // Saves push none of them out.
  std::set<AttemptId> begun_;
  std::uint64_t turn_ = 0;
};

// Without the positions before the last certain one.
void KeepFromLastCertain(std::vector<Position>& positions);

}  // namespace ffrecord::client
