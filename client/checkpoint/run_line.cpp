#include "client/checkpoint/run_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "client/checkpoint/step_manifests.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/random.h"

namespace ffrecord::client {
namespace {

// line-<number>-<generation>; what is decided there is Encode() of the parts.
constexpr std::string_view kPrefix = "line-";
constexpr std::size_t kPartsMax = 16;    // Older ones: see the first that is left.
constexpr std::size_t kDigits = 16;      // Digits of a generation, and of a checksum.
constexpr std::string_view kNone = "-";  // In place of parts.

std::string Hex64(std::uint64_t value) {
  std::array<char, kDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return {text.data(), kDigits};
}

// All of `text` as a number.
std::optional<std::uint64_t> NumberIn(std::string_view text, int base) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::string CheckOf(std::string_view name, std::string_view text) {
  return Hex64(Xxh3(std::as_bytes(std::span(text)), Xxh3(std::as_bytes(std::span(name)))));
}

std::string NameOf(const RunLine& line) {
  return std::string(kPrefix) + std::to_string(line.number) + "-" + Hex64(line.generation);
}

std::string Encode(const RunLine& line) {
  std::string text;
  for (const RunLine::Part& part : line.parts)
    text +=
        (text.empty() ? "" : ",") + Hex64(part.generation) + ":" + std::to_string(part.last_step);
  if (text.empty()) text = kNone;
  return text + ";" + CheckOf(NameOf(line), text);
}

// Number and generation; nothing if that is no name of a record.
std::optional<RunLine> NamedBy(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto rest = name.substr(kPrefix.size());
  const auto dash = rest.find('-');
  if (dash == rest.npos || rest.size() != dash + 1 + kDigits) return std::nullopt;
  const auto number = NumberIn(rest.substr(0, dash), 10);
  const auto generation = NumberIn(rest.substr(dash + 1), 16);
  if (!number || *number == 0 || !generation) return std::nullopt;
  return RunLine{*number, {}, *generation};
}

std::optional<std::vector<RunLine::Part>> PartsIn(std::string_view name, std::string_view text) {
  const auto end = text.find(';');
  if (end == text.npos || text.substr(end + 1) != CheckOf(name, text.substr(0, end)))
    return std::nullopt;
  text = text.substr(0, end);
  std::vector<RunLine::Part> parts;
  while (text != kNone && !text.empty()) {
    const auto entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const auto colon = entry.find(':');
    if (colon == entry.npos) return std::nullopt;
    const auto generation = NumberIn(entry.substr(0, colon), 16);
    const auto step = NumberIn(entry.substr(colon + 1), 10);
    if (!generation || !step) return std::nullopt;
    parts.push_back({*generation, *step});
  }
  return parts;
}

// The records of `target`, newest first, without their parts.
Result<std::vector<RunLine>> RecordsOf(const CheckpointTarget& target) {
  std::vector<RunLine> records;
  for (const std::string& name : FFR_TRY(target.Decisions(kPrefix)))
    if (auto record = NamedBy(name)) records.push_back(*std::move(record));
  std::ranges::sort(records, [](const RunLine& a, const RunLine& b) {
    return std::tie(a.number, a.generation) > std::tie(b.number, b.generation);
  });
  return records;
}

Result<RunLine> WithParts(const CheckpointTarget& target, RunLine record) {
  const std::string name = NameOf(record);
  auto parts = PartsIn(name, FFR_TRY(target.Decided(name)));
  if (!parts)
    return Error{ErrorCode::kCorruption,
                 "checkpoint: " + name + " of " + target.name() +
                     " is damaged: it says which steps were given up when training went back. "
                     "Restore it from a backup of the run, or remove it: then the step with the "
                     "greatest number is the latest"};
  record.parts = *std::move(parts);
  return record;
}

// The line that ends with `step` of `generation`.
Result<std::vector<RunLine::Part>> PartsUpTo(const CheckpointTarget& target, const RunLine& line,
                                             std::uint64_t generation, std::uint64_t step) {
  std::vector<RunLine::Part> parts;
  const auto found = std::ranges::find(line.parts, generation, &RunLine::Part::generation);
  if (generation == line.generation || found != line.parts.end()) {
    parts.assign(line.parts.begin(), found);
  } else if (generation != 0) {
    for (RunLine& record : FFR_TRY(RecordsOf(target)))
      if (record.generation == generation)
        parts = FFR_TRY(WithParts(target, std::move(record))).parts;
  }
  parts.push_back({generation, step});
  if (parts.size() > kPartsMax) parts.erase(parts.begin());
  return parts;
}

// --- Where this process is -----------------------------------------------------------------------

struct Position {
  std::uint64_t turn = 0;  // When it was loaded, or when the state was taken that was saved.
  std::uint64_t step = 0;
  AttemptId attempt{};
  std::uint64_t generation = 0;
  RunLine line;          // Line of the target at that time.
  bool is_load = false;  // It was loaded.
  bool is_newest = true;
  bool knows_line = true;
};

class Positions {
 public:
  static Positions& Process() {
    static Positions positions;
    return positions;
  }

  std::uint64_t Turn() {
    const std::lock_guard lock(mutex_);
    return ++turn_;
  }

  void Load(std::string_view address, Position position) {
    std::string key = KeyOf(address);
    const std::lock_guard lock(mutex_);
    position.turn = ++turn_;
    loaded_.emplace_back(key, position);
    if (loaded_.size() > kPastMax) loaded_.erase(loaded_.begin());
    Add(std::move(key), std::move(position));
  }

  // A state that was taken before the last load or save is none to go on from: the save ends while
  // training is elsewhere already. The step that it has saved may be behind that.
  void Save(std::string_view address, Position position) {
    std::string key = KeyOf(address);
    const std::lock_guard lock(mutex_);
    const auto found = at_.find(key);
    if (found != at_.end() && found->second.back().turn > position.turn) {
      Position& now = found->second.back();
      if (position.step > now.step) now.is_newest = false;
      return;
    }
    Add(std::move(key), std::move(position));
  }

  void Clear() {
    const std::lock_guard lock(mutex_);
    at_.clear();
    loaded_.clear();
  }

  // As it was at `turn`.
  std::optional<Position> At(std::string_view address, std::uint64_t turn) const {
    const std::string key = KeyOf(address);
    const std::lock_guard lock(mutex_);
    const auto found = at_.find(key);
    if (found == at_.end()) return std::nullopt;
    const auto& past = found->second;
    const auto then = std::find_if(past.rbegin(), past.rend(),
                                   [&](const Position& each) { return each.turn <= turn; });
    return then == past.rend() ? std::nullopt : std::optional(*then);
  }

  // The step that was loaded last at `turn`, if another target had it.
  std::optional<Position> Elsewhere(std::string_view address, std::uint64_t turn) const {
    const std::string key = KeyOf(address);
    const std::lock_guard lock(mutex_);
    const auto then = std::find_if(loaded_.rbegin(), loaded_.rend(),
                                   [&](const auto& each) { return each.second.turn <= turn; });
    if (then == loaded_.rend() || then->first == key) return std::nullopt;
    return then->second;
  }

 private:
  static constexpr std::size_t kCountMax = 4096;
  static constexpr std::size_t kPastMax = 4;  // Loads while a save is on its way.

  static std::string KeyOf(std::string_view address) {
    return address.starts_with(kBuddiesScheme) ? std::string(address) : IdentityOfTarget(address);
  }

  void Add(std::string key, Position position) {
    if (at_.size() >= kCountMax) at_.clear();
    auto& past = at_[std::move(key)];
    past.push_back(std::move(position));
    if (past.size() > kPastMax) past.erase(past.begin());
  }

  mutable std::mutex mutex_;                              // Guards what follows.
  std::map<std::string, std::vector<Position>> at_;       // Rising turns, the last few.
  std::vector<std::pair<std::string, Position>> loaded_;  // The last kPastMax.
  std::uint64_t turn_ = 0;
};

bool IsAt(const CheckpointTarget& target, const Position& position) {
  const auto is_it = IsAttemptVisible(target, position.step, position.attempt);
  return is_it && is_it.value();
}

// Whether `to` has nothing yet, or a save that is at `from` too.
Result<bool> IsOfSameRun(const CheckpointTarget& from, const CheckpointTarget& to) {
  const auto steps = FFR_TRY(to.Steps());
  for (const std::uint64_t step : steps) {
    const auto there = FFR_TRY(AttemptAt(to, step));
    if (there && FFR_TRY(AttemptAt(from, step)) == there) return true;
  }
  return steps.empty();
}

Error GoneBack(const CheckpointTarget& target, const std::string& what) {
  return Error{ErrorCode::kConflict,
               "checkpoint: another process has gone back to an earlier step of " + target.name() +
                   ", " + what + ". End one of the two, or load the latest step and go on from it"};
}

Error NotWhatWasLoaded(const CheckpointTarget& target, std::uint64_t step) {
  return Error{ErrorCode::kConflict,
               "checkpoint: step " + std::to_string(step) + " of " + target.name() +
                   ", which this process goes on from, was saved again since "
                   "it was loaded, and there are later steps. Load the "
                   "latest step and go on from it, or save to another target"};
}

}  // namespace

std::uint64_t RunLine::GenerationAt(std::uint64_t step) const noexcept {
  for (const Part& part : parts)
    if (step <= part.last_step) return part.generation;
  return generation;
}

bool RunLine::Has(std::uint64_t of_generation, std::uint64_t step) const noexcept {
  if (number == 0) return true;
  if (of_generation == generation) return parts.empty() || step > parts.back().last_step;
  for (const Part& part : parts)
    if (part.generation == of_generation) return step <= part.last_step;
  return parts.size() == kPartsMax && step <= parts.front().last_step;
}

Result<RunLine> LineOf(const CheckpointTarget& target) {
  auto records = FFR_TRY(RecordsOf(target));
  if (records.empty()) return RunLine();
  return WithParts(target, std::move(records.front()));
}

Result<bool> IsOnLine(const CheckpointTarget& target, const RunLine& line, std::uint64_t step) {
  if (line.number == 0) return true;
  const auto files = target.Open(step);
  const auto root = files ? ReadRootManifest(*files.value(), step) : files.error();
  if (root) return line.Has(root.value().generation, step);
  if (IsDamage(root.error())) return true;
  return root.error();
}

Result<bool> HasFrom(const CheckpointTarget& target, const RunLine& line, std::uint64_t first) {
  auto steps = FFR_TRY(target.Steps());
  std::ranges::reverse(steps);
  for (const std::uint64_t step : steps) {
    if (step < first) return false;
    if (FFR_TRY(IsOnLine(target, line, step))) return true;
  }
  return false;
}

Result<SaveLine> LineOfSave(const CheckpointTarget& target, std::string_view address,
                            std::uint64_t step, std::uint64_t turn) {
  RunLine line = FFR_TRY(LineOf(target));
  if (turn == 0) turn = TakeTurn();
  SaveLine save{line, false, line.number, turn};
  auto from = Positions::Process().At(address, turn);
  // A copy of a step is the same save: what was loaded from a backup may be of this run.
  if (auto loaded = Positions::Process().Elsewhere(address, turn);
      loaded && (!from || loaded->turn > from->turn)) {
    if (FFR_TRY(target.Steps()).empty()) {
      if (line.number > 0 || loaded->line.number == 0 || step <= loaded->step) return save;
      save.line = std::move(loaded->line);  // The run goes on here.
      save.is_new = true;
      save.line.number = 1;
      return save;
    }
    if (IsAt(target, *loaded)) {
      loaded->is_newest = false;
      loaded->line = line;
      from = std::move(loaded);
    }
  }
  if (!from || step <= from->step) return save;
  if (!from->knows_line) from->line = line;
  const bool is_on_line = line.Has(from->generation, from->step);
  if (!is_on_line && (!from->is_load || from->line.number != line.number))
    return GoneBack(
        target, "behind step " + std::to_string(from->step) + ", which this process goes on from");
  if (from->is_newest || (is_on_line && !FFR_TRY(HasFrom(target, line, step)))) return save;
  if (from->line.number != line.number)
    return GoneBack(target, "since this one loaded or saved step " + std::to_string(from->step));
  // The step that it goes on from may have been removed since; then the line begins with this save.
  if (const auto there = FFR_TRY(AttemptAt(target, from->step)); there && *there != from->attempt)
    return NotWhatWasLoaded(target, from->step);
  save.is_new = true;
  save.line.parts = FFR_TRY(PartsUpTo(target, line, from->generation, from->step));
  save.line.generation = RandomNumber() | 1;
  save.line.number = line.number + 1;
  return save;
}

Result<void> TakeLine(CheckpointTarget& target, const SaveLine& save) {
  const auto records = FFR_TRY(RecordsOf(target));
  const std::uint64_t number = records.empty() ? 0 : records.front().number;
  if (number != save.number) return GoneBack(target, "while this save went on");
  // A record that is there already stays as it is. It may be at the mirror of a folder alone.
  if (save.line.number > 0) FFR_TRY(target.Decide(NameOf(save.line), Encode(save.line)));
  return {};
}

Result<SaveLine> LineOfCopy(const CheckpointTarget& from, std::uint64_t generation,
                            const CheckpointTarget& to, bool is_of_run) {
  const auto records = FFR_TRY(RecordsOf(to));
  SaveLine copy;
  if (!records.empty()) copy.line = FFR_TRY(WithParts(to, records.front()));
  copy.number = copy.line.number;
  RunLine line = FFR_TRY(LineOf(from));
  if (line.number == 0 || line.generation != generation) return copy;
  if (std::ranges::find(records, generation, &RunLine::generation) != records.end()) return copy;
  if (!is_of_run && !FFR_TRY(IsOfSameRun(from, to))) return copy;
  copy.line = std::move(line);
  copy.line.number = copy.number + 1;
  copy.is_new = true;
  return copy;
}

void NoteSaved(std::string_view address, const SaveLine& save, std::uint64_t step,
               const AttemptId& attempt) {
  const auto before = Positions::Process().At(address, save.turn);
  // A save of an earlier step is none to go on from.
  const std::uint64_t generation = save.line.GenerationAt(step);
  if (before && before->generation == generation && step < before->step) return;
  Position now{save.turn, step, attempt, generation, save.line};
  // The step that was loaded, saved again: what is behind it is not given up yet.
  if (before && step == before->step) now.is_newest = before->is_newest;
  Positions::Process().Save(address, std::move(now));
}

std::uint64_t TakeTurn() { return Positions::Process().Turn(); }

void ForgetWhereRunsGoOn() { Positions::Process().Clear(); }

void NoteLoaded(std::string_view address, const Result<RunLine>& line, const RootManifest& root,
                bool is_newest) {
  Positions::Process().Load(
      address, {0, root.step, root.attempt, root.generation, line ? line.value() : RunLine(), true,
                is_newest, static_cast<bool>(line)});
}

}  // namespace ffrecord::client
