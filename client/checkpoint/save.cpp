#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/delta.h"
#include "client/checkpoint/last_digests.h"
#include "client/checkpoint/plan.h"
#include "client/checkpoint/publish.h"
#include "client/checkpoint/tally.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/write_part.h"
#include "client/dataset/failures.h"
#include "libffrecord/base/random.h"

namespace ffrecord::client {
namespace {

// One rank's side of one save: three rounds with the others (plan, write, publish), in which no
// message grows with the state, and between them its own work. Every local failure is carried into
// the next round instead of being returned at once, so that no rank is left waiting and all learn
// the same outcome.
class Save {
 public:
  Save(CheckpointTarget& target, std::string_view address, std::uint64_t step,
       std::span<const TensorView> tensors, std::span<const std::byte> tree, CheckpointGroup* group,
       const SaveOptions& options)
      : target_(target),
        address_(address),
        step_(step),
        tensors_(tensors),
        tree_(tree),
        group_(group),
        options_(options) {
    if (!options.incremental) return;
    cut_ = CutIntoRows(tensors);
    tensors_ = cut_;
  }

  Result<Commit> Run() {
    auto outcome = Rounds();
    if (!outcome && is_coordinator() && begun_.attempt) begun_.attempt->Abandon();
    return outcome;
  }

 private:
  bool is_coordinator() const { return group_ == nullptr || group_->rank() == 0; }
  std::uint32_t rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  Result<Commit> Rounds() {
    FFR_TRY(AgreeOnPlan(Plan()));
    const auto reports = FFR_TRY(Agree(group_, Write()));
    auto published = Agree(group_, Publish(reports));
    if (published) {
      NoteDigests(address_, step_, std::move(digests_), options_);
      return commit_;
    }
    if (begun_.attempt) begun_.attempt->ForgetKept();
    Error error = std::move(published).error();
    if (IsAway(error))
      error.message += "; step " + std::to_string(step_) + " may or may not be committed: list " +
                       target_.name() + " before saving it again";
    return error;
  }

  // The coordinator makes the attempt before it sends its round, so that a rank can join as soon as
  // it receives it.
  Result<void> Plan() {
    if (rank() == 0) {
      attempt_id_ = Random<std::array<std::byte, 16>>();
      begun_ = FFR_TRY(BeginSave(target_, address_, step_, attempt_id_, options_));
      tree_keys_ = FFR_TRY(ReferencesOf(tree_));
    }
    plan_ = FFR_TRY(PlanPart(step_, attempt_id_, rank(), tensors_));
    return {};
  }

  // The plan round. All ranks have the same words, and so come to the same verdict.
  Result<void> AgreeOnPlan(Result<void> planned) {
    if (group_ == nullptr) {
      FFR_TRY(planned);
      return CheckTold({IntentOf(plan_)});
    }
    BoxTallies tallies;
    Result<std::vector<std::byte>> mine = std::vector<std::byte>();
    if (planned) {
      tallies = TallyBoxes(BoxesOf(plan_.part), tree_keys_);
      mine = EncodePlanWord({step_, attempt_id_, SumOf(tallies), begun_.shares});
    } else {
      mine = std::move(planned).error();
    }
    const auto told = FFR_TRY(Agree(group_, std::move(mine)));
    const PlanWord first = FFR_TRY(DecodePlanWord(told.front()));
    attempt_id_ = first.attempt;
    begun_.shares = first.shares;
    BoxTally sum;
    for (std::size_t from = 0; from < told.size(); ++from) {
      const PlanWord word = FFR_TRY(DecodePlanWord(told[from]));
      if (word.step != first.step)
        return Error{ErrorCode::kInvalidArgument,
                     "checkpoint: rank 0 saves step " + std::to_string(first.step) + ", rank " +
                         std::to_string(from) + " saves step " + std::to_string(word.step)};
      sum += word.tally;
    }
    if (sum.IsZero()) {
      tree_keys_.clear();  // All of them are saved.
      return {};
    }
    return LookCloser(tallies);
  }

  // Two more rounds if the words do not add up: in which buckets they do not, and what boxes ranks
  // have there. Boxes may fit nevertheless, if they have no elements, or if the tree does not refer
  // to their tensor.
  Result<void> LookCloser(const BoxTallies& mine) {
    BoxTallies sums{};
    for (const auto& bytes : FFR_TRY(Agree(group_, EncodeTallies(mine)))) {
      const BoxTallies tallies = FFR_TRY(DecodeTallies(bytes));
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += tallies[i];
    }
    const auto is_right = [&](std::string_view key) { return sums[BucketOf(key)].IsZero(); };
    std::erase_if(tree_keys_, is_right);
    Intent intent = IntentOf(plan_);
    std::erase_if(intent.boxes, [&](const PlannedBox& box) { return is_right(box.key); });
    planned_ = FFR_TRY(Agree(group_, EncodeIntent(intent)));
    std::vector<Intent> intents;
    for (const auto& bytes : planned_) intents.push_back(FFR_TRY(DecodeIntent(bytes)));
    return CheckTold(std::move(intents));
  }

  Result<void> CheckTold(std::vector<Intent> intents) {
    saved_ = FFR_TRY(CheckIntents(std::move(intents)));
    return {};
  }

  // The write round: everything of this rank is durable when it succeeds.
  Result<std::vector<std::byte>> Write() {
    FFR_TRY(CheckReferences(tree_keys_, saved_));
    saved_ = {};  // Drops boxes of a plan that may be made anew.
    if (!begun_.attempt) begun_.attempt = FFR_TRY(target_.Join(step_, attempt_id_));
    plan_.part.attempt = attempt_id_;
    const auto report =
        FFR_TRY(WritePart(target_, begun_, std::move(plan_), tensors_, options_, digests_));
    FFR_TRY(CheckChanged(address_, step_, digests_, options_));
    return EncodePartReport(report);
  }

  // The publish round: the coordinator has the reports of all ranks, and commits.
  Result<std::vector<std::byte>> Publish(std::span<const std::vector<std::byte>> written) {
    std::vector<PartReport> reports;
    for (const auto& bytes : written) reports.push_back(FFR_TRY(DecodePartReport(bytes)));
    commit_ = CommitOf(step_, attempt_id_, reports);
    if (is_coordinator())
      FFR_TRY(client::Publish(target_, address_, begun_,
                              {step_, attempt_id_, {}, {tree_.begin(), tree_.end()}},
                              std::move(reports)));
    return std::vector<std::byte>{};
  }

  CheckpointTarget& target_;
  std::string_view address_;
  std::uint64_t step_;
  std::span<const TensorView> tensors_;
  std::span<const std::byte> tree_;
  CheckpointGroup* group_;
  const SaveOptions& options_;

  std::vector<TensorView> cut_;  // For an incremental save.
  AttemptId attempt_id_{};
  PartPlan plan_;
  std::vector<std::string_view> tree_keys_;      // The coordinator's, as far as they are in doubt.
  std::vector<std::vector<std::byte>> planned_;  // Intents of all ranks, if they are in doubt.
  TextIndex saved_;                              // Keys in them, lent by plan_ or planned_.
  BegunSave begun_;                              // Its line is the coordinator's alone.
  RankDigests digests_;                          // Digests of this rank's tensors.
  client::Commit commit_;
};

// Whether this rank can write all of its part once more: nobody has changed its tensors.
bool HasItsTensors(std::span<const TensorView> tensors, const SaveOptions& options) {
  return !options.released || std::ranges::all_of(tensors, &TensorView::is_stable);
}

}  // namespace

Result<Commit> SaveCheckpoint(std::string_view target, std::uint64_t step,
                              std::span<const TensorView> tensors, std::span<const std::byte> tree,
                              CheckpointGroup* group, const SaveOptions& options) {
  auto opened = OpenTarget(target, {options.direct, options.session});
  // The other ranks wait for this one's part of the round; a round in which a rank fails always
  // fails.
  if (!opened) return Agree(group, std::move(opened).error()).error();
  auto saved = Save(*opened.value(), target, step, tensors, tree, group, options).Run();
  // All ranks have the same error, and all of them must be able to write again.
  if (saved || !IsKeptLost(saved.error())) return saved;
  Result<std::vector<std::byte>> may_go_on = std::vector<std::byte>();
  if (!options.incremental || !HasItsTensors(tensors, options)) may_go_on = saved.error();
  if (!Agree(group, std::move(may_go_on)))
    return options.incremental ? OfIncremental(saved.error()) : saved.error();
  // It shares nothing: the coordinator has heard of the refusal.
  SaveOptions again = options;
  again.released = {};  // It has been called: ranks publish when all of them have written.
  return Save(*opened.value(), target, step, tensors, tree, group, again).Run();
}

}  // namespace ffrecord::client
