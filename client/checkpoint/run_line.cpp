#include "client/checkpoint/run_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <tuple>
#include <utility>

#include "client/checkpoint/positions.h"
#include "client/checkpoint/step_manifests.h"
#include "client/dataset/failures.h"
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

// If several processes go back at once, one makes the record of a number: the first to decide
// this name, with generation and content of its record. From then on the claim counts as the
// record, which may come later, or never if its process is killed. NamedBy() passes it over.
std::string NameOfClaim(std::uint64_t number) {
  return std::string(kPrefix) + std::to_string(number);
}

std::string EncodeClaim(const RunLine& line) { return Hex64(line.generation) + ";" + Encode(line); }

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

// The record that a claim of `number` tells of; nothing if `text` is damaged.
std::optional<RunLine> ClaimedBy(std::uint64_t number, std::string_view text) {
  const auto end = text.find(';');
  const auto generation = NumberIn(text.substr(0, end), 16);
  if (end == text.npos || !generation) return std::nullopt;
  RunLine line{number, {}, *generation};
  auto parts = PartsIn(NameOf(line), text.substr(end + 1));
  if (!parts) return std::nullopt;
  line.parts = *std::move(parts);
  return line;
}

// The number of a claim; nothing if that is no name of one.
std::optional<std::uint64_t> ClaimNamedBy(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return NumberIn(name.substr(kPrefix.size()), 10);
}

Error Damaged(const CheckpointTarget& target, const std::string& names) {
  return Error{ErrorCode::kCorruption,
               "checkpoint: " + names + " of " + target.name() +
                   " is damaged: it says which steps were given up when training went back. "
                   "Restore it from a backup of the run, or remove it: then the step with the "
                   "greatest number is the latest"};
}

// The record that was claimed with `number`. Fails with kNotFound if none was.
Result<RunLine> Claimed(const CheckpointTarget& target, std::uint64_t number) {
  const std::string name = NameOfClaim(number);
  auto line = ClaimedBy(number, FFR_TRY(target.Decided(name)));
  if (!line) return Damaged(target, name);
  return *std::move(line);
}

// The records of `target`, newest first, without their parts: a claim that is newer than all is
// one.
Result<std::vector<RunLine>> RecordsOf(const CheckpointTarget& target) {
  std::vector<RunLine> records;
  std::uint64_t newest = 0, claimed = 0;
  for (const std::string& name : FFR_TRY(target.Decisions(kPrefix))) {
    if (auto record = NamedBy(name)) {
      newest = std::max(newest, record->number);
      records.push_back(*std::move(record));
    } else if (const auto number = ClaimNamedBy(name)) {
      claimed = std::max(claimed, *number);
    }
  }
  if (claimed > newest)
    records.push_back({claimed, {}, FFR_TRY(Claimed(target, claimed)).generation});
  std::ranges::sort(records, [](const RunLine& a, const RunLine& b) {
    return std::tie(a.number, a.generation) > std::tie(b.number, b.generation);
  });
  return records;
}

// Reads the claim if the record is missing or damaged.
Result<RunLine> WithParts(const CheckpointTarget& target, RunLine record) {
  const std::string name = NameOf(record);
  const auto text = target.Decided(name);
  if (!text && text.error().code != ErrorCode::kNotFound) return text.error();
  auto parts = text ? PartsIn(name, text.value()) : std::nullopt;
  if (!parts) {
    auto claimed = Claimed(target, record.number);
    if (claimed && claimed.value().generation == record.generation) return claimed;
    if (!claimed && !IsDamage(claimed.error())) return claimed;
    return Damaged(target, name + ", with " + NameOfClaim(record.number) + ",");
  }
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

// Whether both have saves of steps on `line`, and none is the same: going back would give up, or
// replace, those of somebody else.
Result<bool> IsOfAnotherRun(const CheckpointTarget& from, const CheckpointTarget& to,
                            const RunLine& line) {
  const auto here = FFR_TRY(from.Steps());
  bool differs = false;
  for (const std::uint64_t step : FFR_TRY(to.Steps())) {
    if (!std::ranges::binary_search(here, step)) continue;
    const auto there = FFR_TRY(AttemptAt(to, step));
    const auto mine = FFR_TRY(AttemptAt(from, step));
    if (!there || !mine) continue;
    if (*there == *mine) return false;
    differs |= FFR_TRY(IsOnLine(to, line, step)) && FFR_TRY(IsOnLine(from, line, step));
  }
  return differs;
}

bool HasPartOf(const RunLine& line, std::uint64_t generation) {
  return std::ranges::find(line.parts, generation, &RunLine::Part::generation) != line.parts.end();
}

// The line as it was when `generation`, of which `line` has a part, was the newest one; nothing if
// no record says so.
Result<std::optional<RunLine>> LineBefore(const CheckpointTarget& target, const RunLine& line,
                                          std::uint64_t generation) {
  if (!HasPartOf(line, generation)) return std::optional<RunLine>();
  for (RunLine& record : FFR_TRY(RecordsOf(target)))
    if (record.generation == generation)
      return std::optional(FFR_TRY(WithParts(target, std::move(record))));
  return std::optional<RunLine>();
}

Error GoneBack(const CheckpointTarget& target, const std::string& what) {
  return Error{ErrorCode::kConflict,
               "checkpoint: another process has gone back to an earlier step of " + target.name() +
                   ", " + what + ". End one of the two, or load the latest step and go on from it"};
}

Error NobodySaid(const CheckpointTarget& target, std::uint64_t step,
                 const std::vector<Position>& origins) {
  std::string loaded;
  for (const Position& from : origins)
    if (!from.is_certain) loaded += (loaded.empty() ? "" : ", ") + std::to_string(from.step);
  return Error{ErrorCode::kConflict,
               "checkpoint: this process has loaded step " + loaded + " of " + target.name() +
                   ", and nobody has said whether the run goes on from there or the step was only "
                   "looked at; what a save of step " +
                   std::to_string(step) +
                   " gives up depends on that. Load with resume=True what the run goes on from "
                   "(without a state, a load changes nothing), and with resume=False what is only "
                   "looked at"};
}

Error NotWhatWasLoaded(const CheckpointTarget& target, std::uint64_t step) {
  return Error{ErrorCode::kConflict,
               "checkpoint: step " + std::to_string(step) + " of " + target.name() +
                   ", which this process goes on from, was saved again since "
                   "it was loaded, and there are later steps. Load the "
                   "latest step and go on from it, or save to another target"};
}

// Whether nothing is at `target`, as far as its places answer: a farther one that does not must not
// stop a save.
Result<bool> IsEmpty(const CheckpointTarget& target) {
  const auto steps = target.Steps();
  if (!steps && !IsAway(steps.error())) return steps.error();
  return steps && steps.value().empty();
}

// Adds the copies that a state may go on from: steps at `target`, as a copy is the same save,
// that were loaded `elsewhere`.
void AddCopies(const CheckpointTarget& target, const RunLine& line,
               const std::vector<Position>& elsewhere, std::vector<Position>& origins) {
  for (const Position& loaded : elsewhere) {
    if (!IsAt(target, loaded)) continue;
    origins.push_back(loaded);
    origins.back().is_newest = false;
    origins.back().line = line;
  }
  std::ranges::sort(origins, {}, &Position::turn);
  KeepFromLastCertain(origins);
}

// Where `save` of `step` stands if its state goes on from `from`.
Result<SaveLine> LineFrom(const CheckpointTarget& target, SaveLine save, std::uint64_t step,
                          const Position& from) {
  if (step <= from.step) return save;
  const RunLine line = save.line;
  const std::uint64_t number = from.knows_line ? from.line.number : line.number;
  const bool is_on_line = line.Has(from.generation, from.step);
  if (!is_on_line && (!from.is_load || number != line.number))
    return GoneBack(
        target, "behind step " + std::to_string(from.step) + ", which this process goes on from");
  if (from.is_newest || (is_on_line && !FFR_TRY(HasFrom(target, line, step)))) return save;
  if (number != line.number)
    return GoneBack(target, "since this one loaded or saved step " + std::to_string(from.step));
  // The step may have been removed since it was loaded; then the line begins with this save.
  if (const auto there = FFR_TRY(AttemptAt(target, from.step)); there && *there != from.attempt)
    return NotWhatWasLoaded(target, from.step);
  save.is_new = true;
  save.line.parts = FFR_TRY(PartsUpTo(target, line, from.generation, from.step));
  save.line.generation = RandomNumber() | 1;
  save.line.number = line.number + 1;
  return save;
}

// Whether a save comes to the same by both; a new generation has any number.
bool IsSame(const Result<SaveLine>& one, const Result<SaveLine>& other) {
  if (!one || !other) return !one && !other;
  return one.value().is_new == other.value().is_new &&
         one.value().line.parts == other.value().line.parts;
}

// Where `save` of `step` stands, if its state goes on from one of `origins`: nobody has said from
// which, and it must not matter. A save that `replaces` a step does not say that the run goes back.
Result<SaveLine> LineFromOneOf(const CheckpointTarget& target, const SaveLine& save,
                               std::uint64_t step, const std::vector<Position>& origins,
                               bool replaces) {
  std::vector<Result<SaveLine>> lines;
  if (origins.empty() || (replaces && !origins.front().is_certain)) lines.emplace_back(save);
  for (const Position& from : origins) {
    lines.push_back(LineFrom(target, save, step, from));
    if (!lines.back() && lines.back().error().code != ErrorCode::kConflict) return lines.back();
  }
  for (const auto& line : lines)
    if (!IsSame(line, lines.back())) return NobodySaid(target, step, origins);
  return std::move(lines.back());
}

// Makes the number of `line`, which is new, its own. Fails with kConflict if another process has
// done that first. Its record may be missing still, or for good if it was killed.
Result<void> ClaimNumber(CheckpointTarget& target, const RunLine& line) {
  const std::string name = NameOfClaim(line.number);
  const std::string mine = EncodeClaim(line);
  const std::string claim = FFR_TRY(target.Decide(name, mine));
  if (claim == mine) return {};
  const auto other = ClaimedBy(line.number, claim);
  if (!other) return Damaged(target, name);
  FFR_TRY(target.Decide(NameOf(*other), Encode(*other)));
  return GoneBack(target, "at the same moment as this one");
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
  auto steps = FFR_TRY(target.StepsForSure());
  std::ranges::reverse(steps);
  for (const std::uint64_t step : steps) {
    if (step < first) return false;
    if (FFR_TRY(IsOnLine(target, line, step))) return true;
  }
  return false;
}

Result<SaveLine> LineOfSave(const CheckpointTarget& target, std::string_view address,
                            std::uint64_t step, std::uint64_t turn, bool replaces) {
  const RunLine line = FFR_TRY(LineOf(target));
  if (turn == 0) turn = TakeTurn();
  SaveLine save{line, false, line.number, turn};
  auto origins = Positions::Process().At(address, turn);
  const std::uint64_t since =
      !origins.empty() && origins.front().is_certain ? origins.front().turn : 0;
  const auto elsewhere = Positions::Process().LoadedElsewhere(address, since, turn);
  if (!elsewhere.empty() && FFR_TRY(IsEmpty(target))) {
    save.was_last = true;
    const Position& last = elsewhere.back();
    const bool is_later = origins.empty() || origins.back().turn < last.turn;
    if (!is_later || line.number > 0 || last.line.number == 0 || step <= last.step) return save;
    save.line = last.line;  // The run goes on here.
    save.is_new = true;
    save.line.number = 1;
    return save;
  }
  AddCopies(target, line, elsewhere, origins);
  if (origins.empty()) {
    const auto more = HasFrom(target, line, step);
    save.was_last = more && !more.value();
  } else {
    save.was_last = std::ranges::all_of(origins, &Position::was_last);
  }
  auto standing = LineFromOneOf(target, save, step, origins, replaces);
  if (standing && standing.value().is_new) standing.value().was_last = true;
  return standing;
}

Result<void> CheckReplaces(const CheckpointTarget& target, std::string_view address,
                           std::uint64_t step, const SaveLine& save) {
  const auto origins = Positions::Process().At(address, save.turn);
  if (save.is_new || origins.empty()) return {};
  const Position& from = origins.back();
  if (!from.was_last || step < from.step) return {};
  const auto there = FFR_TRY(AttemptAt(target, step));
  if (!there || *there == from.attempt || Positions::Process().HasBegun(*there)) return {};
  if (!FFR_TRY(IsOnLine(target, save.line, step))) return {};
  return Error{ErrorCode::kConflict,
               "checkpoint: another process has saved step " + std::to_string(step) + " of " +
                   target.name() + " since this one loaded or saved step " +
                   std::to_string(from.step) +
                   ", which it goes on from. End one of the two, or load the latest step and go on "
                   "from it; to give up that save nevertheless, remove the step first"};
}

Result<void> TakeLine(CheckpointTarget& target, const SaveLine& save) {
  const auto records = FFR_TRY(RecordsOf(target));
  const std::uint64_t number = records.empty() ? 0 : records.front().number;
  if (number != save.number) return GoneBack(target, "while this save went on");
  if (save.line.number == 0) return {};
  if (save.is_new) FFR_TRY(ClaimNumber(target, save.line));
  // A record that is there already stays as it is. It may be at a farther place alone.
  FFR_TRY(target.Decide(NameOf(save.line), Encode(save.line)));
  return {};
}

Result<void> CheckOnLine(const CheckpointTarget& target, std::uint64_t generation,
                         std::uint64_t step) {
  const auto line = LineOf(target);
  if (!line || line.value().Has(generation, step)) return {};
  return GoneBack(target, "at the moment when step " + std::to_string(step) +
                              " of this one was committed: the step is there, and given up");
}

Result<SaveLine> LineOfCopy(const CheckpointTarget& from, std::uint64_t generation,
                            const CheckpointTarget& to, bool is_of_run) {
  const auto records = FFR_TRY(RecordsOf(to));
  SaveLine copy;
  if (!records.empty()) copy.line = FFR_TRY(WithParts(to, records.front()));
  copy.number = copy.line.number;
  RunLine line = FFR_TRY(LineOf(from));
  if (line.number == 0) return copy;
  if (std::ranges::find(records, generation, &RunLine::generation) != records.end()) return copy;
  if (line.generation != generation) {
    auto earlier = FFR_TRY(LineBefore(from, line, generation));
    if (!earlier || (copy.number > 0 && !HasPartOf(*earlier, copy.line.generation))) return copy;
    line = *std::move(earlier);
  }
  if (!is_of_run && !FFR_TRY(IsOfSameRun(from, to))) return copy;
  if (is_of_run && FFR_TRY(IsOfAnotherRun(from, to, line)))
    return Error{ErrorCode::kConflict, "checkpoint: " + to.name() +
                                           " has steps of another run than " + from.name() +
                                           ": give this run an address of its own"};
  copy.line = std::move(line);
  copy.line.number = copy.number + 1;
  copy.is_new = true;
  return copy;
}

void NoteSaved(std::string_view address, const SaveLine& save, std::uint64_t step,
               const AttemptId& attempt) {
  const std::uint64_t generation = save.line.GenerationAt(step);
  Position now{save.turn, step, attempt, generation, save.line};
  now.was_last = save.was_last;
  for (const Position& before : Positions::Process().At(address, save.turn)) {
    // A save of an earlier step is none to go on from.
    if (before.generation == generation && step < before.step) return;
    // The step that was loaded, saved again: what is behind it is not given up yet.
    if (step == before.step && !before.is_newest) now.is_newest = false;
  }
  Positions::Process().Save(address, std::move(now));
}

std::uint64_t TakeTurn() { return Positions::Process().Turn(); }

void ForgetWhereRunsGoOn() { Positions::Process().Clear(); }

void NoteLoaded(std::string_view address, const Result<RunLine>& line, const RootManifest& root,
                bool is_newest, bool is_certain) {
  Positions::Process().Load(
      address, {0, root.step, root.attempt, root.generation, line ? line.value() : RunLine(), true,
                is_newest, is_newest, static_cast<bool>(line), is_certain});
}

}  // namespace ffrecord::client
