#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint/forwarding_target.h"
#include "client/checkpoint/reachable_places.h"
#include "client/checkpoint/run_line.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/dataset/failures.h"

namespace ffrecord::client {
namespace {

constexpr std::size_t kPlacesMax = 16;

// How long a farther place may take to answer a first question. A save asks it too, and one that
// does not answer must not hold saves up.
constexpr std::chrono::milliseconds kProbeTime{2'000};

struct StagedPlace {
  std::string address;
  std::unique_ptr<CheckpointTarget> target;
  std::unique_ptr<CheckpointTarget> probe;  // The same, with little patience.
};

// Which save the files are of: a part says so, too, if the root manifest is damaged. Nothing if
// neither can be read.
std::optional<AttemptId> SaveOf(const CommittedStep& files, std::uint64_t step) {
  if (const auto root = ReadRootManifest(files, step)) return root.value().attempt;
  const auto bytes = files.ReadFile(PartManifestName(0), kManifestSizeMax);
  const auto part = bytes ? DecodePartManifest(bytes.value()) : bytes.error();
  if (!part || part.value().step != step) return std::nullopt;
  return part.value().attempt;
}

// A step at one place, and behind it the same save at the places farther away.
class StagedStep final : public CommittedStep {
 public:
  StagedStep(std::unique_ptr<CommittedStep> nearest, std::uint64_t step,
             std::vector<std::string> farther, const SessionOptions& options)
      : nearest_(std::move(nearest)),
        step_(step),
        farther_(std::move(farther)),
        options_(options) {}

  std::string Describe(std::string_view name) const override { return nearest_->Describe(name); }
  std::string IdentityOf(std::string_view name) const override {
    return nearest_->IdentityOf(name);
  }
  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    return nearest_->ReadFile(name, size_bytes_max);
  }
  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    return nearest_->OpenFiles(names);
  }
  Result<bool> Holds(std::span<const std::string> segments) const override {
    return nearest_->Holds(segments);
  }
  std::unique_ptr<CommittedStep> Twin() const override { return nearest_->Twin(); }
  std::vector<std::string> LostCopies() const override { return nearest_->LostCopies(); }
  std::vector<std::unique_ptr<CommittedStep>> Copies() const override { return nearest_->Copies(); }

  std::vector<std::unique_ptr<CommittedStep>> Fallbacks() const override {
    auto others = nearest_->Fallbacks();
    std::ranges::move(SameSaveAt(farther_, *nearest_, step_, options_), std::back_inserter(others));
    return others;
  }

 private:
  std::unique_ptr<CommittedStep> nearest_;
  std::uint64_t step_;
  std::vector<std::string> farther_;
  SessionOptions options_;
};

// A save is one at the first place. Questions go to all that answer, nearest first: what the first
// has lost, or never had, is at others.
class StagedTarget final : public ForwardingTarget {
 public:
  StagedTarget(std::string_view address, std::vector<StagedPlace> places,
               const SessionOptions& options)
      : ForwardingTarget(*places.front().target),
        name_(address),
        places_(std::move(places)),
        options_(options),
        reachable_(ReachOf(places_)) {}

  const std::string& name() const noexcept override { return name_; }

  // That there is none, all places have to say.
  Result<std::vector<std::uint64_t>> Steps() const override {
    std::set<std::uint64_t> steps;
    const auto list = [&](const CheckpointTarget& target) -> Result<void> {
      const auto here = FFR_TRY(target.Steps());
      steps.insert(here.begin(), here.end());
      return {};
    };
    FFR_TRY(ForEachNear(list));
    for (std::size_t place = 0; steps.empty() && place < places_.size(); ++place)
      if (TroubleOf(place)) return MayHaveMore(place);
    return std::vector<std::uint64_t>(steps.begin(), steps.end());
  }
  Result<std::vector<std::uint64_t>> StepsForSure() const override {
    auto steps = FFR_TRY(Steps());
    for (std::size_t place = 0; place < places_.size(); ++place)
      if (TroubleOf(place)) return MayHaveMore(place);
    return steps;
  }
  std::vector<std::string> Unseen() const override {
    std::vector<std::string> unseen;
    for (std::size_t place = 0; place < places_.size(); ++place)
      if (TroubleOf(place)) unseen.push_back(MayHaveMore(place).message);
    return unseen;
  }

  // The save at the nearest place that has one on the run's line.
  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    std::unique_ptr<CommittedStep> given_up, unknown;
    std::optional<Error> trouble;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      if (!reachable_.IsNear(place)) {
        trouble = *TroubleOf(place);
        continue;
      }
      auto files = places_[place].target->Open(step);
      if (!files && files.error().code != ErrorCode::kNotFound) trouble = files.error();
      if (!files) continue;
      // A farther place stands in for one of which nobody can tell which save it is, if it has a
      // step on the line, and never with one that was given up.
      if (!SaveOf(*files.value(), step)) {
        if (unknown == nullptr) unknown = std::move(files).value();
        continue;
      }
      auto staged = Behind(place, step, std::move(files).value());
      if (!IsGivenUp(*staged, step)) return staged;
      if (given_up == nullptr) given_up = std::move(staged);
    }
    if (unknown != nullptr) return unknown;
    if (given_up != nullptr) return given_up;
    if (trouble) return *std::move(trouble);
    return Error{ErrorCode::kNotFound,
                 "checkpoint: no place of " + name_ + " has " + StepName(step)};
  }

  // Nearest first, so that no new copy of it is begun. A place that does not answer keeps
  // the step.
  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    std::size_t removed = 0;
    std::optional<Error> trouble;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      Result<void> outcome;
      if (reachable_.IsNear(place))
        outcome = places_[place].target->Remove(step, only);
      else
        outcome = *TroubleOf(place);
      if (outcome)
        ++removed;
      else if (outcome.error().code != ErrorCode::kNotFound)
        trouble = outcome.error();
    }
    if (trouble) {
      trouble->message += "; " + StepName(step) + " may still be there: remove it again";
      return *std::move(trouble);
    }
    if (removed > 0) return {};
    if (only) return AnotherSave(*this, step);
    return Error{ErrorCode::kNotFound, "checkpoint: " + name_ + " has no " + StepName(step)};
  }

  // A step that only a farther place has is committed.
  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    for (std::size_t place = 1; place < places_.size(); ++place)
      if (reachable_.IsNear(place) && places_[place].target->Open(step))
        return Error{ErrorCode::kConflict, "checkpoint: " + places_[place].address + " has " +
                                               StepName(step) +
                                               " already; save another step, or remove it first"};
    return first().Begin(step, attempt);
  }
  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    const auto here = first().Open(step);
    if (here || here.error().code != ErrorCode::kNotFound)
      return first().BeginInPlace(step, attempt, gives_way);
    if (!FFR_TRY(gives_way())) return Begin(step, attempt);
    return first().Begin(step, attempt);
  }

  // The first place may have lost a decision that farther ones know.
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    line_.reset();
    const auto known = Decided(name);
    return first().Decide(name, known ? std::string_view(known.value()) : answer);
  }
  void Forget(std::string_view name) noexcept override {
    line_.reset();
    for (std::size_t place = 0; place < places_.size(); ++place)
      if (reachable_.IsNear(place)) places_[place].target->Forget(name);
  }
  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    std::set<std::string> names;
    const auto list = [&](const CheckpointTarget& target) -> Result<void> {
      const auto here = FFR_TRY(target.Decisions(prefix));
      names.insert(here.begin(), here.end());
      return {};
    };
    FFR_TRY(ForEachNear(list));
    return std::vector<std::string>(names.begin(), names.end());
  }
  Result<std::string> Decided(std::string_view name) const override {
    std::optional<Error> why;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      if (!reachable_.IsNear(place)) continue;
      auto decided = places_[place].target->Decided(name);
      if (decided) return decided;
      if (!why || why->code == ErrorCode::kNotFound) why = decided.error();
    }
    return why.value_or(Error{ErrorCode::kNotFound, "checkpoint: nothing is decided"});
  }

 private:
  CheckpointTarget& first() const { return *places_.front().target; }

  // The first one is near until it fails. Others are asked briefly.
  static std::vector<ReachablePlaces::Place> ReachOf(const std::vector<StagedPlace>& places) {
    std::vector<ReachablePlaces::Place> all;
    for (const StagedPlace& place : places)
      all.push_back({place.target.get(), all.empty() ? nullptr : place.probe.get()});
    return all;
  }

  const std::optional<Error>& TroubleOf(std::size_t place) const {
    return reachable_.troubles()[place];
  }

  // Does `work` at every place that answers; fails if it fails at all of them.
  Result<void> ForEachNear(const ReachablePlaces::Work& work) const {
    if (reachable_.ForEachNear(work)) return {};
    return *TroubleOf(0);
  }

  Error MayHaveMore(std::size_t place) const {
    const Error& why = *TroubleOf(place);
    return Error{why.code,
                 "checkpoint: " + places_[place].address + " of " + name_ +
                     " may have other steps, and cannot be asked: " + why.message,
                 why.system_errno};
  }

  std::unique_ptr<CommittedStep> Behind(std::size_t place, std::uint64_t step,
                                        std::unique_ptr<CommittedStep> files) const {
    std::vector<std::string> farther;
    for (std::size_t i = place + 1; i < places_.size(); ++i) farther.push_back(places_[i].address);
    return std::make_unique<StagedStep>(std::move(files), step, std::move(farther), options_);
  }

  // Whether training went back behind this save: another place may have one of the same number that
  // was made since.
  bool IsGivenUp(const CommittedStep& files, std::uint64_t step) const {
    if (!line_) {
      const auto line = LineOf(*this);
      line_ = line ? line.value() : RunLine();
    }
    if (line_->number == 0) return false;
    const auto root = ReadRootManifest(files, step);
    return root && !line_->Has(root.value().generation, step);
  }

  std::string name_;
  std::vector<StagedPlace> places_;
  SessionOptions options_;
  ReachablePlaces reachable_;
  mutable std::optional<RunLine> line_;  // As it was when it was first asked for.
};

}  // namespace

std::vector<std::unique_ptr<CommittedStep>> SameSaveAt(std::span<const std::string> places,
                                                       const CommittedStep& here,
                                                       std::uint64_t step,
                                                       const SessionOptions& options) {
  std::vector<std::unique_ptr<CommittedStep>> found;
  const auto save_here = SaveOf(here, step);
  for (const std::string& place : places) {
    const auto target = OpenTarget(place, {true, options});
    if (!target) continue;
    auto there = target.value()->Open(step);
    const auto root = there ? ReadRootManifest(*there.value(), step) : there.error();
    if (!root || (save_here && *save_here != root.value().attempt)) continue;
    auto others = there.value()->Fallbacks();
    found.push_back(std::move(there).value());
    std::ranges::move(others, std::back_inserter(found));
  }
  return found;
}

Result<std::unique_ptr<CheckpointTarget>> OpenStagedTarget(std::string_view address,
                                                           const TargetOptions& options) {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::string(address.substr(0, 300)) + ": " + why +
                     "; an address is stage:PLACE>PLACE, of two or more places"};
  };
  TargetOptions brief = options;
  brief.session.timeout = std::min(options.session.timeout, kProbeTime);
  std::vector<StagedPlace> places;
  const auto names = PlacesIn(address.substr(kStageScheme.size()), kStageMark);
  if (names.size() < 2) return bad("that is one place");
  if (names.size() > kPlacesMax) return bad("more than 16 places");
  for (const std::string_view name : names) {
    if (name.starts_with(kStageScheme)) return bad("a place cannot be a staged target itself");
    for (const StagedPlace& place : places)
      if (SharePlace(place.address, name))
        return bad(place.address + " and " + std::string(name) + " are the same place");
    places.push_back(
        {std::string(name), FFR_TRY(OpenTarget(name, options)), FFR_TRY(OpenTarget(name, brief))});
  }
  return std::unique_ptr<CheckpointTarget>(
      std::make_unique<StagedTarget>(address, std::move(places), options.session));
}

}  // namespace ffrecord::client
