#include "client/checkpoint/publish.h"

#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/checkpoint/delta.h"
#include "client/checkpoint/plan.h"
#include "client/checkpoint/positions.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/write_part.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/format/checkpoint_values.h"

namespace ffrecord::client {
namespace {

// The targets, by KeyOfTarget(), at which what the last save had shared was refused. Thread-safe.
class RefusedTargets {
 public:
  static RefusedTargets& Process() {
    static RefusedTargets targets;
    return targets;
  }

  bool Has(std::string_view address) {
    const std::string key = KeyOfTarget(address);
    const std::lock_guard lock(mutex_);
    return targets_.contains(key);
  }
  // Any other failure leaves it as it was: it says nothing of what was shared.
  void Note(std::string_view address, const Result<void>& published) {
    const bool is_refused = !published && IsKeptLost(published.error());
    if (!published && !is_refused) return;
    const std::string key = KeyOfTarget(address);
    const std::lock_guard lock(mutex_);
    if (is_refused)
      targets_.insert(key);
    else
      targets_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> targets_;
};

}  // namespace

Result<BegunSave> BeginSave(CheckpointTarget& target, std::string_view address, std::uint64_t step,
                            const AttemptId& attempt, const SaveOptions& options) {
  SaveLine line = FFR_TRY(LineOfSave(target, address, step, options.turn, options.replaces));
  const auto begin = [&]() -> Result<std::unique_ptr<CheckpointAttempt>> {
    if (options.replaces)
      return target.BeginInPlace(step, attempt, [&]() -> Result<bool> {
        FFR_TRY(CheckReplaces(target, address, step, line));
        return true;
      });
    auto begun = target.Begin(step, attempt);
    if (begun || begun.error().code != ErrorCode::kConflict) return begun;
    return target.BeginInPlace(step, attempt, [&]() -> Result<bool> {
      if (!FFR_TRY(IsOnLine(target, line.line, step))) return true;
      const auto there = OpenStep(target, step);
      if (!there && !IsDamage(there.error())) return there.error();
      return !there || !FFR_TRY(there.value().IsWhole());
    });
  };
  Positions::Process().Begin(attempt);
  auto begun = FFR_TRY(begin());
  bool shares = !RefusedTargets::Process().Has(address);
  if (shares && options.incremental)
    shares = target.MayShare([&]() -> std::optional<std::uint64_t> {
      const auto base = FindBase(target, 0);
      return base ? std::optional(base->step) : std::nullopt;
    });
  return BegunSave{std::move(begun), std::move(line), shares};
}

Result<TextIndex> CheckIntents(std::vector<Intent> intents) {
  std::vector<PlannedBox> boxes;
  for (std::uint32_t rank = 0; rank < intents.size(); ++rank) {
    auto& planned = intents[rank].boxes;
    for (PlannedBox& box : planned) box.rank = rank;
    if (rank == 0)
      boxes = std::move(planned);
    else
      boxes.insert(boxes.end(), planned.begin(), planned.end());
  }
  return CheckBoxes(boxes);
}

Result<std::vector<std::string_view>> ReferencesOf(std::span<const std::byte> tree) {
  auto keys = CheckValues(tree);
  if (!keys)
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: the state-dict structure is malformed: " + keys.error().message};
  return keys;
}

bool IsKeptLost(const Error& error) noexcept {
  return error.code == ErrorCode::kConflict && error.system_errno == kKeptIsLost;
}

Error OfIncremental(Error error) {
  if (IsKeptLost(error))
    error.message +=
        "; an incremental save fails so if what it shares with the step before was removed "
        "meanwhile, is damaged, or is held by fewer nodes than the cluster asks for, as while one "
        "is down: the next save of this process shares nothing, and sends all of the state";
  return error;
}

Commit CommitOf(std::uint64_t step, const AttemptId& attempt, std::span<const PartReport> reports) {
  Commit commit{step, Hex(attempt), 0};
  for (const PartReport& report : reports) commit.size_bytes += report.part.tensor_bytes;
  return commit;
}

Result<void> Publish(CheckpointTarget& target, std::string_view address, const BegunSave& save,
                     RootManifest root, std::vector<PartReport> reports) {
  std::vector<WrittenFile> files;
  root.generation = save.line.line.GenerationAt(root.step);
  for (PartReport& report : reports) {
    root.parts.push_back(report.part);
    std::move(report.files.begin(), report.files.end(), std::back_inserter(files));
  }
  files.push_back(
      FFR_TRY(WriteSmallFile(*save.attempt, kRootManifestName, EncodeRootManifest(root))));
  // A kill between the two leaves the step that training went back to as the newest one.
  FFR_TRY(TakeLine(target, save.line));
  const auto published = save.attempt->Commit(files);
  RefusedTargets::Process().Note(address, published);
  FFR_TRY(published);
  NoteSaved(address, save.line, root.step, root.attempt);
  return CheckOnLine(target, root.generation, root.step);
}

}  // namespace ffrecord::client
