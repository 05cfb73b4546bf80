#include "client/checkpoint/step_manifests.h"

#include <iterator>
#include <string>

#include "client/checkpoint/plan.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/format/checkpoint_values.h"

namespace ffrecord::client {
namespace {

Error Bad(const CommittedStep& files, std::string_view name, const std::string& what) {
  return Error{ErrorCode::kCorruption, files.Describe(name) + ": " + what};
}

// The same error, told of which file.
Error InFile(const CommittedStep& files, std::string_view name, Error error) {
  error.message = files.Describe(name) + ": " + error.message;
  return error;
}

Result<void> CheckTogether(const CommittedStep& files, const StepManifests& step) {
  std::vector<PlannedBox> boxes;
  for (const PartManifest& part : step.parts)
    std::ranges::move(BoxesOf(part), std::back_inserter(boxes));
  const auto references = FFR_TRY(CheckValues(step.root.tree));
  const auto saved = CheckBoxes(boxes);
  if (!saved) return Bad(files, kRootManifestName, saved.error().message);
  const auto found = CheckReferences(references, saved.value());
  if (!found) return Bad(files, kRootManifestName, found.error().message);
  return {};
}

}  // namespace

Result<RootManifest> ReadRootManifest(const CommittedStep& files, std::uint64_t step) {
  const auto bytes = FFR_TRY(files.ReadFile(kRootManifestName, kManifestSizeMax));
  auto root = DecodeRootManifest(bytes);
  if (!root) return InFile(files, kRootManifestName, std::move(root).error());
  if (root.value().step != step)
    return Bad(files, kRootManifestName, "belongs to step " + std::to_string(root.value().step));
  return root;
}

Result<bool> IsAttemptVisible(const CheckpointTarget& target, std::uint64_t step,
                              const AttemptId& attempt) {
  const auto files = FFR_TRY(target.Open(step));
  return FFR_TRY(ReadRootManifest(*files, step)).attempt == attempt;
}

Result<std::optional<AttemptId>> AttemptAt(const CheckpointTarget& target, std::uint64_t step) {
  const auto files = target.Open(step);
  const auto root = files ? ReadRootManifest(*files.value(), step) : files.error();
  if (root) return std::optional(root.value().attempt);
  if (IsDamage(root.error())) return std::optional<AttemptId>();
  return root.error();
}

Result<PartManifest> ReadPartManifest(const CommittedStep& files, const RootManifest& root,
                                      std::uint32_t rank) {
  const std::string name = PartManifestName(rank);
  const RootManifest::Part& listed = root.parts[rank];
  const auto bytes = FFR_TRY(files.ReadFile(name, listed.manifest_size_bytes));
  if (bytes.size() != listed.manifest_size_bytes || Xxh3Digest(bytes) != listed.manifest_digest)
    return Bad(files, name, "not the part that the root manifest lists");
  auto decoded = DecodePartManifest(bytes);
  if (!decoded) return InFile(files, name, std::move(decoded).error());
  PartManifest part = std::move(decoded).value();
  if (part.step != root.step || part.attempt != root.attempt || part.rank != rank)
    return Bad(files, name, "belongs to another step, save or rank");
  std::uint64_t rest = listed.tensor_bytes;
  for (const StoredBox& box : part.boxes) {
    if (box.size_bytes > rest) return Bad(files, name, "has more bytes than the root lists");
    rest -= box.size_bytes;
  }
  if (rest != 0) return Bad(files, name, "has fewer bytes than the root lists");
  return part;
}

Result<AttemptId> AttemptOf(std::string_view hex) {
  AttemptId id{};
  if (FromHex(hex, id)) return id;
  return Error{ErrorCode::kInvalidArgument,
               "checkpoint: an attempt is 32 hex digits, not " + std::string(hex.substr(0, 40))};
}

Commit CommitOf(const RootManifest& root) {
  Commit commit{root.step, Hex(root.attempt), 0};
  for (const RootManifest::Part& part : root.parts) commit.size_bytes += part.tensor_bytes;
  return commit;
}

bool IsDamage(const Error& error) noexcept {
  return error.code == ErrorCode::kCorruption || error.code == ErrorCode::kNotFound;
}

Result<StepManifests> ReadStepManifests(const CommittedStep& files, std::uint64_t step) {
  StepManifests manifests;
  manifests.root = FFR_TRY(ReadRootManifest(files, step));
  for (std::uint32_t rank = 0; rank < manifests.root.parts.size(); ++rank)
    manifests.parts.push_back(FFR_TRY(ReadPartManifest(files, manifests.root, rank)));
  FFR_TRY(CheckTogether(files, manifests));
  return manifests;
}

}  // namespace ffrecord::client
