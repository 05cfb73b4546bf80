#include "client/checkpoint/buddy_attempt.h"

#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/checkpoint/step_manifests.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/side_by_side.h"

namespace ffrecord::client {
namespace {

// The copies of a file at its places travel to the coordinator as one entry.
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

class VisibleAttempt final : public CheckpointAttempt {
 public:
  Result<WrittenFile> Put(std::string_view name, std::uint64_t /*size_bytes*/,
                          const FileSource& /*source*/) override {
    return WrittenFile{std::string(name), {}};
  }
  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& /*released*/) override {
    if (segments.empty()) return std::vector<WrittenFile>();
    return Error{ErrorCode::kInvalidArgument, "checkpoint: what is saved anew is not visible yet"};
  }
  Result<std::optional<WrittenFile>> Keep(const PartManifest& /*base*/, std::uint32_t /*index*/,
                                          std::string_view /*name*/) override {
    return std::optional<WrittenFile>();
  }

 protected:
  Result<void> MakeVisible(std::span<const WrittenFile> /*files*/) override { return {}; }
  void Discard() noexcept override {}
};

class BuddyAttempt final : public CheckpointAttempt {
 public:
  // `given_up`: attempts at the step that this one may take the place of.
  BuddyAttempt(std::shared_ptr<const BuddyPlaces> places, std::uint64_t step, const AttemptId& id,
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
    for (const std::size_t place : PlacesOfKept()) FFR_TRY(attempts_[place]->PutSegments({}, {}));
    if (released) released();
    return joined;
  }

  // At both places of the part, or at none.
  Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                          std::string_view name) override {
    std::vector<EntryAt> entries;
    for (const std::size_t place : places_->OfFile(name)) {
      CheckpointAttempt* const attempt = FFR_TRY(At(place));
      auto kept = FFR_TRY(attempt->Keep(base, index, name));
      if (!kept) {
        for (const EntryAt& before : entries) FFR_TRY(attempts_[before.place]->DropKept(name));
        return std::optional<WrittenFile>();
      }
      entries.push_back({place, std::move(kept->entry)});
    }
    kept_.emplace_back(name);
    return std::optional(Joined(std::string(name), entries));
  }

  Result<bool> IsKeptFrom(std::uint64_t step, const AttemptId& attempt) override {
    for (const std::size_t place : PlacesOfKept()) {
      if (FFR_TRY(attempts_[place]->IsKeptFrom(step, attempt))) continue;
      for (const std::string& name : std::exchange(kept_, {}))
        for (const std::size_t other : places_->OfFile(name))
          FFR_TRY(attempts_[other]->DropKept(name));
      return false;
    }
    return true;
  }

  void ForgetKept() noexcept override {
    for (const auto& attempt : attempts_)
      if (attempt) attempt->ForgetKept();
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

  std::set<std::size_t> PlacesOfKept() const {
    std::set<std::size_t> all;
    for (const std::string& name : kept_)
      for (const std::size_t place : places_->OfFile(name)) all.insert(place);
    return all;
  }

  // A rank joins where it has to write.
  Result<CheckpointAttempt*> At(std::size_t place) {
    if (!attempts_[place]) attempts_[place] = FFR_TRY(places_->targets[place]->Join(step_, id_));
    return attempts_[place].get();
  }

  std::shared_ptr<const BuddyPlaces> places_;
  std::uint64_t step_;
  AttemptId id_;
  std::vector<std::unique_ptr<CheckpointAttempt>> attempts_;  // By place; null: not joined.
  std::vector<AttemptId> given_up_;
  std::vector<std::string> kept_;  // Segments, at both of their places.
};

}  // namespace

std::string DecisionName(std::uint64_t step, const AttemptId& attempt) {
  return "decision-" + std::to_string(step) + "-" + Hex(attempt);
}

Result<bool> IsDecided(CheckpointTarget& arbiter, const std::string& name,
                       std::string_view answer) {
  auto decided = arbiter.Decide(name, answer);
  if (!decided && decided.error().code == ErrorCode::kNotFound)
    decided = arbiter.Decide(name, answer);
  return FFR_TRY(std::move(decided)) == answer;
}

void TakeBack(const BuddyPlaces& places, std::uint64_t step, const AttemptId& attempt) {
  for (const auto& target : places.targets) static_cast<void>(target->Remove(step, attempt));
}

std::unique_ptr<CheckpointAttempt> MakeBuddyAttempt(
    std::shared_ptr<const BuddyPlaces> places, std::uint64_t step, const AttemptId& id,
    std::vector<std::unique_ptr<CheckpointAttempt>> attempts, std::vector<AttemptId> given_up) {
  return std::make_unique<BuddyAttempt>(std::move(places), step, id, std::move(attempts),
                                        std::move(given_up));
}

std::unique_ptr<CheckpointAttempt> MakeVisibleAttempt() {
  return std::make_unique<VisibleAttempt>();
}

}  // namespace ffrecord::client
