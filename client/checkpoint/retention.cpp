#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/run_line.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/dataset/failures.h"

namespace ffrecord::client {
namespace {

// Whether an error is this one step's: of its bytes, of its files, or of two saves of it. Others
// are of the target, as of a daemon that does not answer, and say nothing of the step.
bool IsOfStep(const Error& error) noexcept {
  return !IsAway(error) && error.code != ErrorCode::kDenied;
}

// The step as a list shows it; nothing if it is gone.
Result<std::optional<Commit>> Look(const CheckpointTarget& target, const RunLine& line,
                                   std::uint64_t step, ListDepth depth) {
  const auto files = target.Open(step);
  const auto root = files ? ReadRootManifest(*files.value(), step) : files.error();
  if (!root && !IsOfStep(root.error())) return root.error();
  Commit commit{step, {}, 0, {}, false};
  if (root) commit = CommitOf(root.value());
  if (root) commit.is_given_up = !line.Has(root.value().generation, step);
  if (root && depth != ListDepth::kManifests) return std::optional(std::move(commit));
  // Another copy may have what the first one has not.
  const auto reader = OpenStep(target, step);
  if (reader) {
    const bool is_given_up = std::exchange(commit, reader.value().commit()).is_given_up;
    commit.is_given_up = is_given_up;
    return std::optional(std::move(commit));
  }
  if (!IsOfStep(reader.error())) return reader.error();
  // It may have been removed meanwhile, file by file.
  const auto steps = FFR_TRY(target.Steps());
  if (std::ranges::find(steps, step) == steps.end()) return std::optional<Commit>();
  commit.damage = reader.error().message;
  return std::optional(std::move(commit));
}

Result<std::vector<Commit>> List(const CheckpointTarget& target, const RunLine& line,
                                 ListDepth depth) {
  std::vector<Commit> commits;
  for (const std::uint64_t step : FFR_TRY(target.Steps()))
    if (auto found = FFR_TRY(Look(target, line, step, depth))) commits.push_back(*std::move(found));
  return commits;
}

// Whether a load would find all of it.
Result<bool> IsWhole(const CheckpointTarget& target, const Commit& commit, bool verify) {
  const auto reader = OpenStep(target, commit.step);
  if (!reader && IsOfStep(reader.error())) return false;
  if (!reader) return reader.error();
  if (reader.value().commit().attempt != commit.attempt) return false;
  const auto is_whole = reader.value().IsWhole(verify);
  if (!is_whole && IsOfStep(is_whole.error())) return false;
  return is_whole;
}

}  // namespace

Result<std::vector<Commit>> ListCheckpoints(std::string_view target, const SessionOptions& options,
                                            ListDepth depth, std::string_view line_of) {
  const auto opened = FFR_TRY(OpenTarget(target, {true, options}));
  const auto other = line_of.empty() ? nullptr : FFR_TRY(OpenTarget(line_of, {true, options}));
  const RunLine line = FFR_TRY(LineOf(other ? *other : *opened));
  return List(*opened, line, depth);
}

Result<std::vector<std::uint64_t>> ListSteps(std::string_view target,
                                             const SessionOptions& options) {
  return FFR_TRY(OpenTarget(target, {true, options}))->Steps();
}

Result<void> RemoveCheckpoint(std::string_view target, std::uint64_t step,
                              const SessionOptions& options, std::string_view attempt) {
  std::optional<AttemptId> only;
  if (!attempt.empty()) only = FFR_TRY(AttemptOf(attempt));
  const auto opened = FFR_TRY(OpenTarget(target, {true, options}));
  return opened->Remove(step, only);
}

Result<std::vector<Commit>> PruneCheckpoints(std::string_view target, const Retention& retention,
                                             const SessionOptions& options) {
  if (retention.keep_last == 0)
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: prune: keep_last is 0, must be at least 1"};
  const auto opened = FFR_TRY(OpenTarget(target, {true, options}));
  const RunLine line = FFR_TRY(LineOf(*opened));
  std::vector<Commit> old = FFR_TRY(List(*opened, line, ListDepth::kRoots));
  std::erase_if(old, [](const Commit& each) { return !each.damage.empty(); });
  // Steps that were given up do not count, and are removed when enough other steps are whole.
  const auto end = std::stable_partition(old.begin(), old.end(),
                                         [](const Commit& each) { return !each.is_given_up; });
  std::vector<Commit> given_up(end, old.end());
  old.erase(end, old.end());
  std::uint64_t kept = 0;
  for (; !old.empty() && kept < retention.keep_last; old.pop_back())
    kept += FFR_TRY(IsWhole(*opened, old.back(), retention.verify)) ? 1 : 0;
  if (retention.keep_every != 0)
    std::erase_if(old, [&](const Commit& each) { return each.step % retention.keep_every == 0; });
  if (kept == retention.keep_last) std::ranges::move(given_up, std::back_inserter(old));
  std::ranges::sort(old, {}, &Commit::step);
  if (retention.dry_run) return old;
  std::vector<Commit> removed;
  for (Commit& each : old) {
    // Another process may have removed it, and even saved the step again.
    const auto outcome = opened->Remove(each.step, FFR_TRY(AttemptOf(each.attempt)));
    if (!outcome && !IsDamage(outcome.error())) return outcome.error();
    if (outcome) removed.push_back(std::move(each));
  }
  return removed;
}

}  // namespace ffrecord::client
