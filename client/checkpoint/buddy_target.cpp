#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/checkpoint/buddy_step.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/dataset/failures.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/side_by_side.h"

namespace ffrecord::client {
namespace {

// Bounds what an address can ask for: a place for each of as many nodes as a run has.
constexpr std::size_t kPlacesMax = 65'536;

// How long a place may take to answer a first question while others are there to load from. One
// that takes longer is asked again, with patience, if what the others have is not enough.
constexpr std::chrono::milliseconds kProbeTime{500};

// The places of an address, which may name one several times: rank r's part is at the r-th name,
// counted round, and at the next that is another place.
struct Places {
  std::vector<std::string> names;                          // Each once.
  std::vector<std::unique_ptr<CheckpointTarget>> targets;  // Of the names.
  std::vector<std::unique_ptr<CheckpointTarget>> probes;   // The same, with little patience.
  std::vector<std::size_t> order;                          // Indices of the names, as given.
  std::vector<std::size_t> ranked;                         // All indices, ascending by address.

  std::size_t size() const { return names.size(); }

  // Where it is decided what becomes of an attempt: the same place for all who name the same.
  CheckpointTarget& arbiter() const { return *targets[ranked.front()]; }

  // Two different ones.
  std::array<std::size_t, 2> Of(std::uint32_t rank) const {
    const std::size_t home = rank % order.size();
    std::size_t buddy = home;
    while (order[buddy] == order[home]) buddy = (buddy + 1) % order.size();
    return {order[home], order[buddy]};
  }

  // Those that hold file `name`; all, if it is of all ranks.
  std::vector<std::size_t> OfFile(std::string_view name) const {
    std::vector<std::size_t> all(size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    const auto rank = RankOfFile(name);
    if (!rank) return all;
    const auto two = Of(*rank);
    return {two.begin(), two.end()};
  }
};

// What a file's places say of it travels to the coordinator as one entry.
struct EntryAt {
  std::size_t place;
  std::vector<std::byte> entry;
};

WrittenFile Joined(std::string name, std::span<const EntryAt> entries) {
  ByteWriter writer;
  for (const EntryAt& each : entries) {
    writer.Put(static_cast<std::uint32_t>(each.place));
    writer.Put(static_cast<std::uint32_t>(each.entry.size()));
    writer.PutBytes(each.entry);
  }
  return {std::move(name), std::move(writer).Take()};
}

Result<std::vector<EntryAt>> Parted(const WrittenFile& file, std::size_t place_count) {
  ByteReader reader(file.entry);
  std::vector<EntryAt> entries;
  while (reader.ok() && reader.remaining() > 0) {
    const std::size_t place = reader.Take<std::uint32_t>();
    const auto entry = reader.TakeBytes(reader.Take<std::uint32_t>());
    if (place < place_count) entries.push_back({place, {entry.begin(), entry.end()}});
  }
  if (!reader.ok() || entries.empty())
    return Error{ErrorCode::kInvalidArgument, "checkpoint: what a rank wrote of " + file.name +
                                                  " is garbled; do all ranks name the same "
                                                  "places?"};
  return entries;
}

// What becomes of an attempt that is visible at some of its places, or at all: its own saver says
// kStands once it is visible at all, another one kGivenUp who finds it before that and cannot know
// whether its saver lives. The arbiter keeps what was said first, and both do as it says.
constexpr std::string_view kStands = "stands";
constexpr std::string_view kGivenUp = "given-up";

std::string DecisionName(std::uint64_t step, const AttemptId& attempt) {
  return "decision-" + std::to_string(step) + "-" + Hex(attempt);
}

// As CheckpointTarget::Decide, should the answer that was there be forgotten before it is read.
Result<bool> IsDecided(CheckpointTarget& arbiter, const std::string& name,
                       std::string_view answer) {
  auto decided = arbiter.Decide(name, answer);
  if (!decided && decided.error().code == ErrorCode::kNotFound)
    decided = arbiter.Decide(name, answer);
  return FFR_TRY(std::move(decided)) == answer;
}

// The attempt at a place where it is visible already: by a copy that was killed, or still goes on.
class VisibleAttempt final : public CheckpointAttempt {
 public:
  Result<WrittenFile> Put(std::string_view name, std::uint64_t /*size_bytes*/,
                          const FileSource& /*source*/) override {
    return WrittenFile{std::string(name), {}};
  }
  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> /*segments*/,
                                               const std::function<void()>& /*released*/) override {
    return Error{ErrorCode::kInvalidArgument, "checkpoint: what is saved anew is not visible yet"};
  }
  Result<bool> Keep(std::uint64_t /*step*/, std::string_view /*old_name*/,
                    const StoredSegment& /*segment*/, std::string_view /*name*/) override {
    return false;
  }

 protected:
  Result<void> MakeVisible(std::span<const WrittenFile> /*files*/) override { return {}; }
  void Discard() noexcept override {}
};

// Removes the step from those places where it is `attempt`. What fails is left to a later save.
void TakeBack(const Places& places, std::uint64_t step, const AttemptId& attempt) {
  for (const auto& target : places.targets) static_cast<void>(target->Remove(step, attempt));
}

class BuddyAttempt final : public CheckpointAttempt {
 public:
  // `given_up`: attempts at the step that this one may take the place of.
  BuddyAttempt(std::shared_ptr<const Places> places, std::uint64_t step, const AttemptId& id,
               std::vector<std::unique_ptr<CheckpointAttempt>> attempts,
               std::vector<AttemptId> given_up)
      : places_(std::move(places)),
        step_(step),
        id_(id),
        attempts_(std::move(attempts)),
        given_up_(std::move(given_up)) {
    attempts_.resize(places_->size());
  }

  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    std::vector<EntryAt> entries;
    for (const std::size_t place : places_->OfFile(name)) {
      CheckpointAttempt* const attempt = FFR_TRY(At(place));
      WrittenFile written = FFR_TRY(attempt->Put(name, size_bytes, source));
      entries.push_back({place, std::move(written.entry)});
    }
    return Joined(std::string(name), entries);
  }

  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& released) override {
    std::vector<WrittenFile> joined;
    if (!segments.empty()) joined = FFR_TRY(PutTwice(segments));
    if (released) released();
    return joined;
  }

  Result<bool> Keep(std::uint64_t /*step*/, std::string_view /*old_name*/,
                    const StoredSegment& /*segment*/, std::string_view /*name*/) override {
    return false;
  }

 protected:
  // Place by place, in the same order for all: of two attempts one loses at the first place where
  // they meet, and takes back what it has made visible before. Visible at every place, it has
  // still to be decided that it stands; and then to be seen there, for who gave it up before has
  // removed it, and may have forgotten that.
  Result<void> MakeVisible(std::span<const WrittenFile> files) override {
    std::vector<std::vector<WrittenFile>> files_at(places_->size());
    for (const WrittenFile& file : files)
      for (EntryAt& at : FFR_TRY(Parted(file, places_->size())))
        files_at[at.place].push_back({file.name, std::move(at.entry)});
    for (const std::size_t place : places_->ranked) {
      CheckpointAttempt* const attempt = FFR_TRY(At(place));
      auto committed = attempt->Commit(files_at[place]);
      if (committed) continue;
      if (committed.error().code == ErrorCode::kConflict) TakeBack(*places_, step_, id_);
      return committed;
    }
    const std::string decision = DecisionName(step_, id_);
    if (!FFR_TRY(IsDecided(places_->arbiter(), decision, kStands))) {
      TakeBack(*places_, step_, id_);
      places_->arbiter().Forget(decision);  // This saver has heard of it.
      return GivenUp();
    }
    FFR_TRY(CheckVisible());
    places_->arbiter().Forget(decision);
    for (const AttemptId& other : given_up_) places_->arbiter().Forget(DecisionName(step_, other));
    return {};
  }

  // Each place knows what may be visible there.
  void Discard() noexcept override {
    for (const auto& attempt : attempts_)
      if (attempt) attempt->Abandon();
  }

 private:
  Error GivenUp() const {
    return Error{ErrorCode::kConflict,
                 "checkpoint: another save of step " + std::to_string(step_) +
                     " took this one for dead while it was becoming visible; save it again"};
  }

  Result<void> CheckVisible() const {
    for (std::size_t place = 0; place < places_->size(); ++place) {
      const auto is_there = IsAttemptVisible(*places_->targets[place], step_, id_);
      if (!is_there && is_there.error().code != ErrorCode::kNotFound) return is_there.error();
      if (!is_there || !is_there.value()) return GivenUp();
    }
    return {};
  }

  // To both places at once. Both hash what they send: tensors that changed between the two show.
  Result<std::vector<WrittenFile>> PutTwice(std::span<SegmentFile> segments) {
    const auto rank = RankOfFile(segments.front().name);
    FFR_ASSERT(rank.has_value());
    const auto two = places_->Of(*rank);
    const std::array<CheckpointAttempt*, 2> attempts{FFR_TRY(At(two[0])), FFR_TRY(At(two[1]))};
    std::vector<SegmentFile> twins(segments.begin(), segments.end());
    for (SegmentFile& twin : twins) twin.image.StopCounting();
    const std::array<std::span<SegmentFile>, 2> copies{segments, twins};
    std::array<std::vector<WrittenFile>, 2> written;
    std::atomic<std::size_t> next{0};
    const auto put = [&](const SideBySide& others) -> Result<void> {
      for (std::size_t i; !others.failed() && (i = next++) < 2;)
        written[i] = FFR_TRY(attempts[i]->PutSegments(copies[i], {}));
      return {};
    };
    FFR_TRY(SideBySide::Run(2, put));
    std::vector<WrittenFile> joined;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].image.table_digest() != twins[i].image.table_digest())
        return Error{ErrorCode::kInvalidArgument,
                     "checkpoint: " + segments[i].name +
                         ": its two copies differ; a tensor was changed while it was saved"};
      const std::array<EntryAt, 2> entries{EntryAt{two[0], std::move(written[0][i].entry)},
                                           EntryAt{two[1], std::move(written[1][i].entry)}};
      joined.push_back(Joined(segments[i].name, entries));
    }
    return joined;
  }

  // A rank joins where it has to write.
  Result<CheckpointAttempt*> At(std::size_t place) {
    if (!attempts_[place]) attempts_[place] = FFR_TRY(places_->targets[place]->Join(step_, id_));
    return attempts_[place].get();
  }

  std::shared_ptr<const Places> places_;
  std::uint64_t step_;
  AttemptId id_;
  std::vector<std::unique_ptr<CheckpointAttempt>> attempts_;  // Of the places; null: not joined.
  std::vector<AttemptId> given_up_;
};

class BuddyTarget final : public CheckpointTarget {
 public:
  BuddyTarget(std::string_view address, std::shared_ptr<const Places> places)
      : name_(address),
        places_(std::move(places)),
        reach_(places_->size(), Reach::kUnknown),
        troubles_(places_->size()) {}

  const std::string& name() const noexcept override { return name_; }

  // Of every place that answers, also those that are not whole; one at least has to. That there is
  // none, all have to say: what the others hold is not known.
  Result<std::vector<std::uint64_t>> Steps() const override {
    std::set<std::uint64_t> steps;
    const auto list = [&](const CheckpointTarget& target) -> Result<void> {
      const auto here = FFR_TRY(target.Steps());
      steps.insert(here.begin(), here.end());
      return {};
    };
    FFR_TRY(ForEachNear(list));
    if (steps.empty() && AskAgain()) FFR_TRY(ForEachNear(list));
    for (std::size_t place = 0; steps.empty() && place < places_->size(); ++place)
      if (troubles_[place])
        return Error{troubles_[place]->code,
                     "checkpoint: " + name_ + " may hold steps at a place that does not answer: " +
                         troubles_[place]->message,
                     troubles_[place]->system_errno};
    return std::vector<std::uint64_t>(steps.begin(), steps.end());
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    auto opened = OpenNear(step);
    if (opened || opened.error().code != ErrorCode::kNotFound || !AskAgain()) return opened;
    return OpenNear(step);
  }

  // Wherever it is. What an unreachable place has of it stays there.
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

  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    return std::unique_ptr<CheckpointAttempt>(new BuddyAttempt(places_, step, attempt, {}, {}));
  }

  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    return places_->arbiter().Decide(name, answer);
  }
  void Forget(std::string_view name) noexcept override { places_->arbiter().Forget(name); }

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
          begun = std::unique_ptr<CheckpointAttempt>(new VisibleAttempt());
      }
      if (begun) {
        attempts.push_back(std::move(begun).value());
        continue;
      }
      for (const auto& before : attempts) before->Abandon();
      return std::move(begun).error();
    }
    return std::unique_ptr<CheckpointAttempt>(
        new BuddyAttempt(places_, step, attempt, std::move(attempts), std::move(given_up)));
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
      if (troubles_[place])
        lost.push_back(places_->names[place] +
                       (IsAway(*troubles_[place]) ? " cannot be reached: " : " cannot be read: ") +
                       troubles_[place]->message);
    auto opened = OpenBuddyStep(std::move(found), StepName(step) + " of " + name_, std::move(lost));
    if (opened) return opened;
    Error error = std::move(opened).error();
    error.message += damage;
    for (std::size_t place = 0; place < places_->size(); ++place)
      if (troubles_[place])
        error.message += "; " + places_->names[place] +
                         (IsAway(*troubles_[place]) ? " cannot be reached" : " cannot be read");
    return error;
  }

  // Does `work` at every place that is near; what fails there is that place's trouble, and the
  // answer of none of the others. Fails if it fails everywhere.
  template <class Work>
  Result<void> ForEachNear(const Work& work) const {
    bool any = false;
    do {
      for (std::size_t place = 0; place < places_->size(); ++place) {
        if (reach_[place] == Reach::kUnknown) Probe(*places_->probes[place], place);
        if (reach_[place] != Reach::kNear) continue;
        const auto outcome = work(*places_->targets[place]);
        any |= static_cast<bool>(outcome);
        troubles_[place] = outcome ? std::nullopt : std::optional(outcome.error());
        if (!outcome && IsAway(outcome.error())) reach_[place] = Reach::kAway;
      }
    } while (!any && AskAgain());
    if (any) return {};
    return NoPlace();
  }

  Error NoPlace() const {
    Error error{ErrorCode::kUnavailable, "checkpoint: no place of " + name_ + " can be reached"};
    bool is_away = false;
    for (const auto& trouble : troubles_) is_away |= !trouble || IsAway(*trouble);
    if (!is_away) error.code = troubles_.front()->code;
    if (!is_away) error.system_errno = troubles_.front()->system_errno;
    for (const auto& trouble : troubles_)
      if (trouble) error.message += "; " + trouble->message;
    return error;
  }

  void Probe(const CheckpointTarget& target, std::size_t place) const {
    const auto answer = target.Steps();
    const bool is_away = !answer && IsAway(answer.error());
    reach_[place] = is_away ? Reach::kAway : Reach::kNear;
    troubles_[place] = is_away ? std::optional(answer.error()) : std::nullopt;
  }

  // Whether a place that was away is there after all. Each is asked with patience only once.
  bool AskAgain() const {
    if (std::exchange(has_asked_again_, true)) return false;
    bool any = false;
    for (std::size_t place = 0; place < places_->size(); ++place) {
      if (reach_[place] != Reach::kAway) continue;
      Probe(*places_->targets[place], place);
      any |= reach_[place] == Reach::kNear;
    }
    return any;
  }

  std::string name_;
  std::shared_ptr<const Places> places_;
  enum class Reach : std::uint8_t { kUnknown, kNear, kAway };
  mutable std::vector<Reach> reach_;
  mutable std::vector<std::optional<Error>> troubles_;  // Of the last work at each place.
  mutable bool has_asked_again_ = false;
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
    if (name.starts_with(kBuddiesScheme))
      return bad("a replica cannot be a replicated target itself");
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
  const auto joined = std::make_shared<Places>();
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
