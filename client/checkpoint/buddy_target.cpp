#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/checkpoint/buddy_attempt.h"
#include "client/checkpoint/buddy_step.h"
#include "client/checkpoint/reachable_places.h"
#include "client/checkpoint/run_line.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/dataset/failures.h"

namespace ffrecord::client {
namespace {

// Bounds what an address can ask for: a place for each of as many nodes as a run has.
constexpr std::size_t kPlacesMax = 65'536;

// How long a place may take to answer a first question while others are there to load from. One
// that takes longer is asked again, with patience, if what the others have is not enough.
constexpr std::chrono::milliseconds kProbeTime{500};

class BuddyTarget final : public CheckpointTarget {
 public:
  BuddyTarget(std::string_view address, std::shared_ptr<const BuddyPlaces> places)
      : name_(address), places_(std::move(places)), reachable_(PlacesOf(*places_)) {}

  const std::string& name() const noexcept override { return name_; }

  // The steps at every place that answers, also those that are not whole; one at least has to. That
  // there is none, all have to say: what the others hold is not known.
  Result<std::vector<std::uint64_t>> Steps() const override {
    std::set<std::uint64_t> steps;
    const auto list = [&](const CheckpointTarget& target) -> Result<void> {
      const auto here = FFR_TRY(target.Steps());
      steps.insert(here.begin(), here.end());
      return {};
    };
    FFR_TRY(ForEachNear(list));
    if (steps.empty() && reachable_.AskAgain()) FFR_TRY(ForEachNear(list));
    if (!steps.empty()) return std::vector<std::uint64_t>(steps.begin(), steps.end());
    for (const auto& trouble : reachable_.troubles())
      if (trouble)
        return Error{trouble->code,
                     "checkpoint: " + name_ +
                         " may hold steps at a place that does not answer: " + trouble->message,
                     trouble->system_errno};
    return std::vector<std::uint64_t>();
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    auto opened = OpenNear(step);
    if (opened || opened.error().code != ErrorCode::kNotFound || !reachable_.AskAgain())
      return opened;
    return OpenNear(step);
  }

  // Wherever it is. Files at an unreachable place stay there.
  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    // With `only`, what each place has now goes: a place that was away may have an older save.
    std::vector<std::optional<AttemptId>> there(places_->size());
    for (std::size_t i = 0; only && i < there.size(); ++i)
      if (const auto found = AttemptAt(*places_->targets[i], step)) there[i] = found.value();
    if (only && FFR_TRY(AttemptAt(*this, step)) != only) return AnotherSave(*this, step);
    std::size_t removed = 0;
    std::optional<Error> trouble;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const auto outcome = places_->targets[i]->Remove(step, there[i]);
      if (outcome)
        ++removed;
      else if (outcome.error().code != ErrorCode::kNotFound)
        trouble = outcome.error();
    }
    if (trouble) return *std::move(trouble);
    if (removed == 0)
      return Error{ErrorCode::kNotFound, "checkpoint: " + name_ + " has no " + StepName(step)};
    return {};
  }

  // A save that was killed while it became visible has left a step that is not whole, and that
  // nobody can load: it is given up and removed here, where every place has answered. One that
  // still goes on will hear of that.
  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    auto begun = BeginEverywhere(step, attempt, {});
    if (begun || begun.error().code != ErrorCode::kConflict) return begun;
    if (!FFR_TRY(IsNotWhole(step))) return begun;
    const auto others = FFR_TRY(AttemptsAt(step));
    for (const AttemptId& other : others) {
      const std::string decision = DecisionName(step, other);
      if (!FFR_TRY(IsDecided(places_->arbiter(), decision, kGivenUp))) return begun;
    }
    // It may have come to its end between the look and the decision.
    if (!FFR_TRY(IsNotWhole(step))) {
      for (const AttemptId& other : others) places_->arbiter().Forget(DecisionName(step, other));
      return begun;
    }
    for (const AttemptId& other : others) TakeBack(*places_, step, other);
    return BeginEverywhere(step, attempt, others);
  }

  // At each place what was there before `gives_way` looked gives way.
  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    std::vector<std::optional<AttemptId>> there;
    for (const auto& target : places_->targets) there.push_back(FFR_TRY(AttemptAt(*target, step)));
    if (!FFR_TRY(gives_way())) return Begin(step, attempt);
    std::vector<std::unique_ptr<CheckpointAttempt>> attempts;
    for (std::size_t place = 0; place < places_->size(); ++place) {
      CheckpointTarget& target = *places_->targets[place];
      auto begun = target.BeginInPlace(step, attempt, [&]() -> Result<bool> {
        return FFR_TRY(AttemptAt(target, step)) == there[place];
      });
      if (begun) {
        attempts.push_back(std::move(begun).value());
        continue;
      }
      for (const auto& before : attempts) before->Abandon();
      return std::move(begun).error();
    }
    return MakeBuddyAttempt(places_, step, attempt, std::move(attempts), {});
  }

  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    return MakeBuddyAttempt(places_, step, attempt, {}, {});
  }

  bool MayShare(const FindStep& base) const override {
    return std::ranges::all_of(places_->targets,
                               [&](const auto& target) { return target->MayShare(base); });
  }

  // The arbiter decides, and the others keep what it has said, for it may be lost.
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    std::string decided = FFR_TRY(places_->arbiter().Decide(name, answer));
    for (const auto& target : places_->targets) FFR_TRY(target->Decide(name, decided));
    return decided;
  }
  void Forget(std::string_view name) noexcept override {
    for (const auto& target : places_->targets) target->Forget(name);
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
    std::optional<std::string> decided;
    const auto look = [&](const CheckpointTarget& target) -> Result<void> {
      if (!decided) decided = FFR_TRY(target.Decided(name));
      return {};
    };
    FFR_TRY(ForEachNear(look));
    return *std::move(decided);
  }

 private:
  // Fails if a place does not answer: what it has is not known.
  Result<bool> IsNotWhole(std::uint64_t step) const {
    std::vector<StepAtPlace> found;
    for (const auto& target : places_->targets) {
      auto files = target->Open(step);
      if (!files && files.error().code == ErrorCode::kNotFound) continue;
      if (!files && IsDamage(files.error())) continue;
      if (!files) return files.error();
      auto root = files.value()->ReadFile(kRootManifestName, kManifestSizeMax);
      if (!root && IsDamage(root.error())) continue;
      if (!root) return root.error();
      found.push_back({std::move(files).value(), std::move(root).value()});
    }
    const auto opened = OpenBuddyStep(std::move(found), StepName(step), {});
    if (opened) return false;
    if (opened.error().code != ErrorCode::kNotFound) return opened.error();
    return true;
  }

  // Whose the step is, at any of the places. A root that is damaged is nobody's.
  Result<std::vector<AttemptId>> AttemptsAt(std::uint64_t step) const {
    std::vector<AttemptId> found;
    for (const auto& target : places_->targets) {
      const auto files = target->Open(step);
      if (!files && files.error().code == ErrorCode::kNotFound) continue;
      if (!files) return files.error();
      const auto root = ReadRootManifest(*files.value(), step);
      if (!root && IsDamage(root.error())) continue;
      const AttemptId attempt = FFR_TRY(root).attempt;
      if (std::ranges::find(found, attempt) == found.end()) found.push_back(attempt);
    }
    return found;
  }

  Result<std::unique_ptr<CheckpointAttempt>> BeginEverywhere(std::uint64_t step,
                                                             const AttemptId& attempt,
                                                             std::vector<AttemptId> given_up) {
    std::vector<std::unique_ptr<CheckpointAttempt>> attempts;
    std::size_t visible_count = 0;
    for (const auto& target : places_->targets) {
      auto begun = target->Begin(step, attempt);
      if (!begun && begun.error().code == ErrorCode::kConflict) {
        const auto is_there = IsAttemptVisible(*target, step, attempt);
        if (is_there && is_there.value() && ++visible_count < places_->size())
          begun = MakeVisibleAttempt();
      }
      if (begun) {
        attempts.push_back(std::move(begun).value());
        continue;
      }
      for (const auto& before : attempts) before->Abandon();
      return std::move(begun).error();
    }
    return MakeBuddyAttempt(places_, step, attempt, std::move(attempts), std::move(given_up));
  }

  Result<std::unique_ptr<CommittedStep>> OpenNear(std::uint64_t step) const {
    std::vector<StepAtPlace> found;
    std::vector<std::string> lost;
    std::string damage;
    const auto look = [&](const CheckpointTarget& target) -> Result<void> {
      auto files = target.Open(step);
      auto root = files ? files.value()->ReadFile(kRootManifestName, kManifestSizeMax)
                        : Result<std::vector<std::byte>>(files.error());
      if (root) {
        found.push_back({std::move(files).value(), std::move(root).value()});
      } else if (IsDamage(root.error())) {
        lost.push_back(target.name() + " has no copy: " + root.error().message);
        if (files) damage += "; " + root.error().message;
      } else {
        return std::move(root).error();
      }
      return {};
    };
    FFR_TRY(ForEachNear(look));
    for (std::size_t place = 0; place < places_->size(); ++place)
      if (const auto& trouble = reachable_.troubles()[place])
        lost.push_back(HowIll(place, *trouble) + ": " + trouble->message);
    const auto is_on_line = [&](const RootManifest& root) -> Result<bool> {
      const RunLine line = FFR_TRY(LineOf(*this));
      return line.number > 0 && line.Has(root.generation, root.step);
    };
    auto opened = OpenBuddyStep(std::move(found), StepName(step) + " of " + name_, std::move(lost),
                                is_on_line);
    if (opened) return opened;
    Error error = std::move(opened).error();
    error.message += damage;
    for (std::size_t place = 0; place < places_->size(); ++place)
      if (const auto& trouble = reachable_.troubles()[place])
        error.message += "; " + HowIll(place, *trouble);
    return error;
  }

  static std::vector<ReachablePlaces::Place> PlacesOf(const BuddyPlaces& places) {
    std::vector<ReachablePlaces::Place> all;
    for (std::size_t i = 0; i < places.size(); ++i)
      all.push_back({places.targets[i].get(), places.probes[i].get()});
    return all;
  }

  std::string HowIll(std::size_t place, const Error& trouble) const {
    return places_->names[place] + (IsAway(trouble) ? " cannot be reached" : " cannot be read");
  }

  // Does `work` at every place that is near; its failure at one is the answer of none of the
  // others. Fails if it fails everywhere.
  Result<void> ForEachNear(const ReachablePlaces::Work& work) const {
    do {
      if (reachable_.ForEachNear(work)) return {};
    } while (reachable_.AskAgain());
    return NoPlace();
  }

  Error NoPlace() const {
    Error error{ErrorCode::kUnavailable, "checkpoint: no place of " + name_ + " can be reached"};
    bool is_away = false;
    const auto troubles = reachable_.troubles();
    for (const auto& trouble : troubles) is_away |= !trouble || IsAway(*trouble);
    if (!is_away) error.code = troubles.front()->code;
    if (!is_away) error.system_errno = troubles.front()->system_errno;
    for (const auto& trouble : troubles)
      if (trouble) error.message += "; " + trouble->message;
    return error;
  }

  std::string name_;
  std::shared_ptr<const BuddyPlaces> places_;
  ReachablePlaces reachable_;
};

}  // namespace

Result<std::unique_ptr<CheckpointTarget>> OpenBuddyTarget(std::string_view address,
                                                          const TargetOptions& options) {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::string(address.substr(0, 300)) + ": " + why +
                     "; an address is buddies:PLACE|PLACE, of two or more places"};
  };
  std::vector<BuddyPlace> places;
  std::vector<std::string> identities;
  std::vector<std::size_t> order;
  TargetOptions brief = options;
  brief.session.timeout = std::min(options.session.timeout, kProbeTime);
  std::string_view rest = address.substr(kBuddiesScheme.size());
  for (;;) {
    const std::string_view name = rest.substr(0, rest.find('|'));
    if (IsOfSeveral(name)) return bad("a replica cannot be a target of several places itself");
    std::string identity = IdentityOfTarget(name);
    const auto known =
        places.begin() + (std::ranges::find(identities, identity) - identities.begin());
    if (known != places.end() && known->name != name)
      return bad(known->name + " and " + std::string(name) + " are the same place");
    order.push_back(static_cast<std::size_t>(known - places.begin()));
    if (order.size() > kPlacesMax) return bad("more than 65,536 places");
    if (known == places.end()) {
      auto target = FFR_TRY(OpenTarget(name, options));
      identities.push_back(std::move(identity));
      places.push_back({std::string(name), std::move(target), FFR_TRY(OpenTarget(name, brief)),
                        CanonicalAddress(name)});
    }
    if (name.size() == rest.size()) break;
    rest.remove_prefix(name.size() + 1);
  }
  if (places.size() < 2) return bad("that is one place");
  return JoinBuddies(address, std::move(places), std::move(order));
}

std::unique_ptr<CheckpointTarget> JoinBuddies(std::string_view address,
                                              std::vector<BuddyPlace> places,
                                              std::vector<std::size_t> order) {
  const auto joined = std::make_shared<BuddyPlaces>();
  std::vector<std::string> canonical;
  for (BuddyPlace& place : places) {
    joined->ranked.push_back(joined->size());
    canonical.push_back(place.canonical.empty() ? place.name : std::move(place.canonical));
    joined->names.push_back(std::move(place.name));
    joined->targets.push_back(std::move(place.target));
    joined->probes.push_back(std::move(place.probe));
  }
  std::ranges::sort(joined->ranked, {}, [&](std::size_t i) { return canonical[i]; });
  joined->order = std::move(order);
  return std::make_unique<BuddyTarget>(address, joined);
}

}  // namespace ffrecord::client
