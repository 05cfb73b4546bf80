#include <algorithm>
#include <string>
#include <utility>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::client {
namespace {

// Asked for at once of a file that is copied: a multiple of what direct I/O needs.
constexpr std::uint64_t kReadSize = std::uint64_t{8} << 20;

// Gives the bytes of one file front to back.
class FileBytes {
 public:
  static Result<FileBytes> Open(const CommittedStep& step, const std::string& name) {
    FileBytes bytes(step.Describe(name));
    bytes.files_ = FFR_TRY(OpenSegments(step, {&name, 1}));
    bytes.buffer_ = FFR_TRY(bytes.files_->TakeMemory(kReadSize));
    return bytes;
  }

  std::uint64_t size_bytes() const { return files_->file_size_bytes(0); }

  Result<std::span<const std::byte>> At(std::uint64_t offset, std::uint64_t size_max) {
    if (offset < begin_ || offset >= begin_ + size_) FFR_TRY(Fill(offset));
    const auto held = buffer_->subspan(offset - begin_, begin_ + size_ - offset);
    return std::span<const std::byte>(held.first(std::min<std::uint64_t>(size_max, held.size())));
  }

 private:
  explicit FileBytes(std::string description) : description_(std::move(description)) {}

  Result<void> Fill(std::uint64_t offset) {
    const std::uint64_t alignment = files_->alignment_bytes(0);
    begin_ = offset / alignment * alignment;
    size_ = std::min(kReadSize, size_bytes() - begin_);
    const std::uint64_t aligned = (size_ + alignment - 1) / alignment * alignment;
    RangeRead range{0, begin_, buffer_->first(aligned), ErrorCode::kOk};
    FFR_TRY(files_->Read({&range, 1}));
    if (range.status == ErrorCode::kOk) return {};
    size_ = 0;
    return Error{range.status, description_ + ": reading at " + std::to_string(begin_) +
                                   " failed; verify the checkpoint"};
  }

  std::string description_;
  std::unique_ptr<RangeReader> files_;
  PooledBuffer buffer_;
  std::uint64_t begin_ = 0;
  std::uint64_t size_ = 0;
};

class Copy {
 public:
  Copy(const CommittedStep& from, CheckpointAttempt& to, bool compresses)
      : from_(from), to_(to), compresses_(compresses) {}

  Result<void> Run(const StepManifests& manifests) {
    for (const PartManifest& part : manifests.parts) {
      for (std::uint32_t i = 0; i < part.segments.size(); ++i)
        FFR_TRY(CopyFile(SegmentName(part.rank, i),
                         LayoutOfSegment(part.segments[i].payload_size_bytes).file_size_bytes));
      FFR_TRY(CopyManifest(PartManifestName(part.rank)));
    }
    FFR_TRY(CopyManifest(std::string(kRootManifestName)));
    return to_.Commit(files_);
  }

 private:
  Result<void> CopyFile(const std::string& name, std::uint64_t size_bytes) {
    FileBytes bytes = FFR_TRY(FileBytes::Open(from_, name));
    if (bytes.size_bytes() != size_bytes)
      return Error{ErrorCode::kCorruption,
                   from_.Describe(name) + ": has " + std::to_string(bytes.size_bytes()) +
                       " bytes, its manifest says " + std::to_string(size_bytes)};
    const FileSource source = [&](std::uint64_t offset, std::uint64_t size) {
      return bytes.At(offset, size);
    };
    if (!compresses_) {
      files_.push_back(FFR_TRY(to_.Put(name, size_bytes, source)));
      return {};
    }
    PackedSpool spool = FFR_TRY(PackedSpool::Fill(size_bytes, source));
    files_.push_back(FFR_TRY(
        to_.Put(name + std::string(kPackedSuffix), spool.size_bytes(),
                [&](std::uint64_t offset, std::uint64_t size) { return spool.At(offset, size); })));
    return {};
  }

  Result<void> CopyManifest(const std::string& name) {
    const auto bytes = FFR_TRY(from_.ReadFile(name, kManifestSizeMax));
    files_.push_back(FFR_TRY(to_.Put(
        name, bytes.size(),
        [&](std::uint64_t offset, std::uint64_t size) -> Result<std::span<const std::byte>> {
          return std::span(bytes).subspan(offset,
                                          std::min<std::uint64_t>(size, bytes.size() - offset));
        })));
    return {};
  }

  const CommittedStep& from_;
  CheckpointAttempt& to_;
  const bool compresses_;
  std::vector<WrittenFile> files_;
};

// --- A mirror behind a folder --------------------------------------------------------------------

// A step of a folder, and behind it the same save at the mirror.
class MirroredStep final : public CommittedStep {
 public:
  MirroredStep(std::unique_ptr<CommittedStep> local, std::uint64_t step, std::string remote,
               const SessionOptions& options)
      : local_(std::move(local)), step_(step), remote_(std::move(remote)), options_(options) {}

  std::string Describe(std::string_view name) const override { return local_->Describe(name); }
  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    return local_->ReadFile(name, size_bytes_max);
  }
  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    return local_->OpenFiles(names);
  }

  // The step may have been saved again since it was copied: another save is no fallback.
  std::unique_ptr<CommittedStep> Fallback() const override {
    const auto target = OpenTarget(remote_, {true, options_});
    if (!target) return nullptr;
    auto there = target.value()->Open(step_);
    if (!there) return nullptr;
    const auto here_root = ReadRootManifest(*local_, step_);
    const auto there_root = ReadRootManifest(*there.value(), step_);
    if (!there_root || (here_root && here_root.value().attempt != there_root.value().attempt))
      return nullptr;
    return std::move(there).value();
  }

 private:
  std::unique_ptr<CommittedStep> local_;
  std::uint64_t step_;
  std::string remote_;
  SessionOptions options_;
};

class MirroredTarget final : public CheckpointTarget {
 public:
  MirroredTarget(std::unique_ptr<CheckpointTarget> local, std::string remote,
                 const SessionOptions& options)
      : local_(std::move(local)), remote_(std::move(remote)), options_(options) {}

  const std::string& name() const noexcept override { return local_->name(); }

  Result<std::vector<std::uint64_t>> Steps() const override {
    auto steps = FFR_TRY(local_->Steps());
    if (!steps.empty()) return steps;
    return FartherSteps();
  }

  Result<std::vector<std::uint64_t>> FartherSteps() const override {
    const auto remote = FFR_TRY(OpenTarget(remote_, {true, options_}));
    return remote->Steps();
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    auto local = local_->Open(step);
    if (local)
      return std::unique_ptr<CommittedStep>(
          new MirroredStep(std::move(local).value(), step, remote_, options_));
    if (local.error().code != ErrorCode::kNotFound) return local;
    const auto remote = FFR_TRY(OpenTarget(remote_, {true, options_}));
    auto there = remote->Open(step);
    if (!there)
      return Error{there.error().code, local.error().message + "; " + there.error().message};
    return there;
  }

  Result<void> Remove(std::uint64_t step) override { return local_->Remove(step); }
  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    return local_->Begin(step, attempt);
  }
  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt) override {
    return local_->BeginInPlace(step, attempt);
  }
  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    return local_->Join(step, attempt);
  }
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    return local_->Decide(name, answer);
  }
  void Forget(std::string_view name) noexcept override { local_->Forget(name); }

 private:
  std::unique_ptr<CheckpointTarget> local_;
  std::string remote_;
  SessionOptions options_;
};

}  // namespace

std::unique_ptr<CheckpointTarget> WithMirror(std::unique_ptr<CheckpointTarget> local,
                                             std::string remote, const SessionOptions& options) {
  return std::make_unique<MirroredTarget>(std::move(local), std::move(remote), options);
}

Result<Commit> CopyCheckpoint(std::string_view from, std::uint64_t step, std::string_view to,
                              const SessionOptions& options, bool compresses) {
  const auto source = FFR_TRY(OpenTarget(from, {true, options}));
  const auto files = FFR_TRY(source->Open(step));
  const StepManifests manifests = FFR_TRY(ReadStepManifests(*files, step));
  client::Commit commit{step, Hex(manifests.root.attempt), 0};
  for (const auto& part : manifests.root.parts) commit.size_bytes += part.tensor_bytes;

  const auto target = FFR_TRY(OpenTarget(to, {true, options}));
  auto attempt = target->Begin(step, manifests.root.attempt);
  if (!attempt) {
    if (attempt.error().code != ErrorCode::kConflict) return std::move(attempt).error();
    const auto there = FFR_TRY(target->Open(step));
    const auto root = FFR_TRY(ReadRootManifest(*there, step));
    if (root.attempt != manifests.root.attempt) return std::move(attempt).error();
    return commit;
  }
  // What an attempt that fails has written stays: the next one goes on from there.
  FFR_TRY(Copy(*files, *attempt.value(), compresses).Run(manifests));
  return commit;
}

}  // namespace ffrecord::client
