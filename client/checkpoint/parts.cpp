#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/delta.h"
#include "client/checkpoint/last_digests.h"
#include "client/checkpoint/plan.h"
#include "client/checkpoint/publish.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/write_part.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"

namespace ffrecord::client {
namespace {

// Behind the attempt in what the coordinator sends to the other ranks, if none of them is to share.
constexpr std::string_view kSharesNothing = "-shares-nothing";

Error Invalid(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "checkpoint: " + what};
}

// A rank's message to the coordinator: its intent, then its report, each behind its size.
std::vector<std::byte> EncodePart(std::span<const std::byte> intent,
                                  std::span<const std::byte> report) {
  ByteWriter writer;
  for (const auto bytes : {intent, report}) {
    writer.Put(static_cast<std::uint64_t>(bytes.size()));
    writer.PutBytes(bytes);
  }
  return std::move(writer).Take();
}

struct Part {
  Intent intent;
  PartReport report;
};

Result<Part> DecodePart(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto intent = reader.TakeBytes(reader.Take<std::uint64_t>());
  const auto report = reader.TakeBytes(reader.Take<std::uint64_t>());
  if (!reader.ok() || reader.remaining() != 0) return Invalid("the message of a rank is malformed");
  return Part{FFR_TRY(DecodeIntent(intent)), FFR_TRY(DecodePartReport(report))};
}

}  // namespace

struct CheckpointShards::Impl {
  std::uint64_t step = 0;
  bool is_coordinator = false;
  SaveOptions options;
  AttemptId id{};
  std::string name;
  std::string address;
  std::unique_ptr<CheckpointTarget> target;
  BegunSave begun;

  Impl(std::uint64_t step_number, bool coordinator, const SaveOptions& save_options)
      : step(step_number), is_coordinator(coordinator), options(save_options) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (is_coordinator && begun.attempt) begun.attempt->Abandon();
  }

  // The reports in `parts`, which together are a whole checkpoint of `tree`.
  Result<std::vector<PartReport>> Check(std::span<const std::vector<std::byte>> parts,
                                        std::span<const std::byte> tree) const {
    std::vector<Intent> intents;
    std::vector<PartReport> reports;
    for (const auto& bytes : parts) {
      Part part = FFR_TRY(DecodePart(bytes));
      if (part.intent.step != step || part.intent.attempt != id)
        return Invalid("rank " + std::to_string(reports.size()) + " wrote for another save");
      intents.push_back(std::move(part.intent));
      reports.push_back(std::move(part.report));
    }
    if (reports.empty()) return Invalid("a checkpoint has at least one rank shard");
    const TextIndex saved = FFR_TRY(CheckIntents(std::move(intents)));
    const auto references = FFR_TRY(ReferencesOf(tree));
    FFR_TRY(CheckReferences(references, saved));
    return reports;
  }
};

CheckpointShards::CheckpointShards(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CheckpointShards::CheckpointShards(CheckpointShards&&) noexcept = default;
CheckpointShards& CheckpointShards::operator=(CheckpointShards&&) noexcept = default;
CheckpointShards::~CheckpointShards() = default;

Result<CheckpointShards> CheckpointShards::Begin(std::string_view target, std::uint64_t step,
                                                 const SaveOptions& options) {
  auto impl = std::make_unique<Impl>(step, true, options);
  impl->target = FFR_TRY(OpenTarget(target, {options.direct, options.session}));
  impl->id = Random<std::array<std::byte, 16>>();
  impl->address = target;
  impl->begun = FFR_TRY(BeginSave(*impl->target, target, step, impl->id, options));
  impl->name = Hex(impl->id);
  if (!impl->begun.shares) impl->name += kSharesNothing;
  return CheckpointShards(std::move(impl));
}

Result<CheckpointShards> CheckpointShards::Join(std::string_view target, std::uint64_t step,
                                                std::string_view attempt,
                                                const SaveOptions& options) {
  auto impl = std::make_unique<Impl>(step, false, options);
  impl->target = FFR_TRY(OpenTarget(target, {options.direct, options.session}));
  impl->name = attempt;
  impl->begun.shares = !attempt.ends_with(kSharesNothing);
  if (!impl->begun.shares) attempt.remove_suffix(kSharesNothing.size());
  impl->id = FFR_TRY(AttemptOf(attempt));
  impl->address = target;
  impl->begun.attempt = FFR_TRY(impl->target->Join(step, impl->id));
  return CheckpointShards(std::move(impl));
}

const std::string& CheckpointShards::attempt() const noexcept { return impl_->name; }

void CheckpointShards::Watch(
    std::vector<std::string> training,
    std::function<Result<void>(std::uint64_t step, std::span<const std::string> keys)> unchanged) {
  impl_->options.training = std::move(training);
  impl_->options.unchanged = std::move(unchanged);
}

Result<std::vector<std::byte>> CheckpointShards::Write(std::uint32_t rank,
                                                       std::span<const TensorView> tensors) {
  std::vector<TensorView> cut;
  if (impl_->options.incremental) {
    cut = CutIntoRows(tensors);
    tensors = cut;
  }
  PartPlan plan = FFR_TRY(PlanPart(impl_->step, impl_->id, rank, tensors));
  const auto intent = EncodeIntent(IntentOf(plan));
  RankDigests digests;
  const auto report = FFR_TRY(
      WritePart(*impl_->target, impl_->begun, std::move(plan), tensors, impl_->options, digests));
  FFR_TRY(CheckChanged(impl_->address, impl_->step, digests, impl_->options));
  NoteDigests(impl_->address, impl_->step, std::move(digests), impl_->options);
  return EncodePart(intent, EncodePartReport(report));
}

Result<Commit> CheckpointShards::Commit(std::span<const std::vector<std::byte>> parts,
                                        std::span<const std::byte> tree) {
  if (!impl_->is_coordinator || !impl_->begun.attempt)
    return Invalid("only the coordinator commits, and once");
  auto reports = FFR_TRY(impl_->Check(parts, tree));
  auto commit = CommitOf(impl_->step, impl_->id, reports);
  const auto published =
      Publish(*impl_->target, impl_->address, impl_->begun,
              {impl_->step, impl_->id, {}, {tree.begin(), tree.end()}}, std::move(reports));
  if (!published) {
    impl_->begun.attempt->ForgetKept();
    return impl_->options.incremental ? OfIncremental(published.error()) : published.error();
  }
  impl_->begun.attempt.reset();
  return commit;
}

}  // namespace ffrecord::client
